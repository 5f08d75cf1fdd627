"""Replay from object storage: a directory and an S3 server, with warm and with empty caches."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from s3_server import Account, running_s3

from bench.figures import GIB, Figure, Goal, Sides, at_most, per_gib, times
from bench.pump import HttpLoad, Request
from bench.rows.append import STREAM
from bench.rows.replay import LOCAL_ONLY, fill, pages
from bench.servers.ours import Ours, running_ours
from bench.tree import Tree
from bench.turns import Row, Runner, Stage
from bench.wire import http

RECORDS: Final = 1_500_000
"""Some 156 MB: with warm caches all of it is within the reader's 256 MiB."""
PAGE_BYTES: Final = 8 << 20
TIERED: Final = {"fragment": {"max_age_ms": 1_000}}
SEGMENT_BYTES: Final = 4 << 20
NOTHING_LOCAL: Final = {
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "0",
    # The newest segment is never freed: with large ones all would be read from there.
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": str(SEGMENT_BYTES),
}
FREED_SECONDS: Final = 60
TOUCHED_BYTES: Final = 2 << 30
"""More than a server takes that was just started."""
READERS: Final = 50
READ_BY_ALL: Final = 500_000
"""Records of the stream that they read."""
READER_MEMORY_MIB: Final = 1_280
"""docs/settings.md: a cache of 256 MiB and 32 pages of 32 MiB."""
LARGE: Final = "s3-large"
LARGE_RECORDS: Final = 3_000_000
"""Some 312 MB: more than the reader's 256 MiB."""
RUN_BYTES: Final = 16 << 20
"""What the reader gets at once for who reads on (decision 43)."""
FRAGMENT_SIZE_MIN: Final = 1 << 20
"""Objects that are smaller are roots and groups."""
URL_SECONDS: Final = 3_600
EMPTIED: Final = "S3, empty cache, warm server"
RAW: Final = "raw GETs from the S3 server, 1 at once"
RAW_CONNECTIONS: Final = 4
RAW_MANY: Final = f"raw GETs from the S3 server, {RAW_CONNECTIONS} at once"


class Tiered:
    """A stream whose records lie in object storage, and a server that can be started anew."""

    def __init__(self, directory: Path, settings: dict[str, str], records: int = RECORDS) -> None:
        self.directory = directory
        self.settings = {**NOTHING_LOCAL, **settings}
        self.requests: list[Request] = []
        with running_ours(directory, self.settings) as ours:
            ours.create(STREAM, TIERED)
            fill(ours, STREAM, records)
            ours.wait_uploaded(STREAM)
            self.requests = pages(ours, STREAM, http.CHUNKS, wait_freed(ours), PAGE_BYTES)

    def cold(self, readers: int = 1) -> Runner:
        """Each run is on a server that has just been started."""

        def run(_: float) -> Figure:
            with running_ours(self.directory, self.settings) as ours:
                figure = read_all(ours, self.requests, readers)
            if figure.extra["stored bytes read"] < figure.extra["received"] / readers:
                raise RuntimeError("not all of it was read from object storage")
            return figure

        return run

    def warm(self, stage: Stage) -> Runner:
        """All runs are on one server, which has read everything before."""
        ours = stage.stack.enter_context(running_ours(self.directory, self.settings))
        return lambda _: read_all(ours, self.requests, 1)

    def emptied(self, stage: Stage) -> Runner:
        """The same where the stream is larger than the reader's cache: what a run kept, the next
        one has lost when it comes there."""
        run = self.warm(stage)

        def checked(seconds: float) -> Figure:
            figure = run(seconds)
            if figure.extra["stored bytes read"] < figure.extra["received"]:
                raise RuntimeError("part of it was still in the cache")
            return figure

        return checked


def raw_gets(
    endpoint: str, account: Account, prefix: str, records: int, connections: int
) -> Runner:
    """The objects of a stream, got from the S3 server by nobody in particular: in the ranges that
    the reader asks for, so many at once, and nobody looks at what comes."""
    with account.client(endpoint) as client:
        listed = client.list_objects_v2(Bucket=account.bucket, Prefix=f"{prefix}/")["Contents"]
        sizes = {one["Key"]: one["Size"] for one in listed if one["Size"] >= FRAGMENT_SIZE_MIN}
        urls = {
            key: client.generate_presigned_url(
                "get_object", {"Bucket": account.bucket, "Key": key}, URL_SECONDS
            )
            for key in sizes
        }
    where = urlsplit(endpoint)
    requests = []
    for key, size in sizes.items():
        for start in range(0, size, RUN_BYTES):
            end = min(start + RUN_BYTES, size)
            path = urls[key].removeprefix(endpoint)
            head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            content = f"{head}Range: bytes={start}-{end - 1}\r\n\r\n".encode()
            units = round(records * (end - start) / sum(sizes.values()))
            requests.append(Request(content, units))
    return HttpLoad(where.port or 80, Tree(), requests, connections, again=False)


def wait_freed(ours: Ours) -> int:
    """Until only the newest segment is left on the node; returns the offset at which it begins."""
    deadline = time.monotonic() + FREED_SECONDS
    while len(left := sorted(ours.data_dir.glob("ingest/streams/*/*.segment"))) != 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(left)} segments are still on the node")
        # Another process removes the files, and tells nobody.
        time.sleep(0.1)
    return int(left[0].stem)


def read_all(ours: Ours, requests: list[Request], readers: int) -> Figure:
    """So many readers that each read all pages; with what was asked of the store for it."""
    before = ours.store_calls()
    each = [request for request in requests for _ in range(readers)]
    figure = HttpLoad(ours.port, ours.tree, each, readers, again=False)(0)
    after = ours.store_calls()
    gets, stored = (after.get(name, 0) - before.get(name, 0) for name in ("get", "read_bytes"))
    given = figure.extra["received"] / readers
    extra = {
        **figure.extra,
        "GETs": gets,
        "GETs per GiB": gets / given * GIB,
        "stored bytes read": stored,
    }
    return replace(figure, extra=extra)


def _objects(stage: Stage) -> None:
    local = stage.stack.enter_context(running_ours(stage.directory / "local"))
    local.create(STREAM, LOCAL_ONLY)
    found = pages(local, STREAM, http.CHUNKS, fill(local, STREAM, RECORDS), PAGE_BYTES)
    stage.runners["local tier"] = lambda _: read_all(local, found, 1)
    _both(stage, "directory", lambda name: Tiered(stage.directory / name, {}))
    account = Account("bench", "bench", "bench-secret")
    endpoint = stage.stack.enter_context(running_s3(stage.directory / "s3", account))

    def on_s3(name: str, records: int = RECORDS) -> Tiered:
        url = account.store_url(endpoint, name)
        settings = {"BOTTOMLESS_STORE_URL": url, **account.environment()}
        return Tiered(stage.directory / name, settings, records)

    _both(stage, "S3", on_s3)
    stage.runners[EMPTIED] = on_s3(LARGE, LARGE_RECORDS).emptied(stage)
    for side, connections in ((RAW, 1), (RAW_MANY, RAW_CONNECTIONS)):
        stage.runners[side] = raw_gets(endpoint, account, LARGE, LARGE_RECORDS, connections)
    stage.notes += [
        "Cold means a server that was just started; the kernel's page cache is warm.",
        (
            f"`{EMPTIED}`: the stream has {LARGE_RECORDS:,} records, more than the cache holds. Raw GETs "
            "get the same objects from the same S3 server, in ranges of 16 MiB as the reader does; one "
            "reader has one GET under way."
        ),
    ]


def _both(stage: Stage, where: str, make: Callable[[str], Tiered]) -> None:
    """Two streams, since two servers cannot share a directory."""
    stage.runners[f"{where}, warm"] = make(f"{where}-warm").warm(stage)
    stage.runners[f"{where}, cold"] = make(f"{where}-cold").cold()


def _fifty(stage: Stage) -> None:
    tiered = Tiered(stage.directory / "ours", {}, READ_BY_ALL)
    stage.runners["1 reader, cold"] = tiered.cold(1)
    stage.runners[f"{READERS} readers, cold"] = tiered.cold(READERS)


def _more_gets(sides: Sides) -> list[float] | None:
    one, many = sides.get("1 reader, cold"), sides.get(f"{READERS} readers, cold")
    if not one or not many:
        return None
    pairs = zip(one, many, strict=False)
    return [most.extra["GETs"] / least.extra["GETs"] for least, most in pairs]


def _memory(side: str) -> Goal:
    return at_most(
        f"{side}: memory of all services ≤ the reader's bound of {READER_MEMORY_MIB} MiB",
        side,
        lambda figure: figure.rss_mib,
        READER_MEMORY_MIB,
        "MiB",
    )


SIDES: Final = ("directory, warm", "directory, cold", "S3, warm", "S3, cold")

ROWS: Final = (
    Row(
        "replay-objects",
        "Replay from object storage beside the local tier, chunks",
        "records",
        (
            *(times(f"{side}: ≥ 0.7 x local tier", side, "local tier", 0.7) for side in SIDES),
            _memory("S3, cold"),
            at_most(f"{EMPTIED}: ≤ 1.5 CPU s/GiB", EMPTIED, per_gib, 1.5, "CPU s/GiB"),
            times(f"{EMPTIED}: ≥ 0.8 x as many raw GETs", EMPTIED, RAW, 0.8),
            at_most(
                f"{EMPTIED}: ≤ 140 GETs per GiB",
                EMPTIED,
                lambda figure: figure.extra["GETs per GiB"],
                140,
                "GETs/GiB",
            ),
        ),
        _objects,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "fifty-readers",
        "50 readers of one cold stream",
        "records",
        (
            Goal(
                "object-store GETs ≤ 1.2 x those of one reader",
                _more_gets,
                at_most=1.2,
            ),
        ),
        _fifty,
        warms_up=False,
        rounds_max=3,
    ),
)
