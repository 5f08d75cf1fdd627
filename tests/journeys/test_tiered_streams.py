"""TI1 to TI7, a little of each: streams over S3 and two directories, one of which goes as a mount does.

One process serves all of them. Policies are evaluated where a test asks for it. More deaths, a timer
that evaluates, and a loss of coordination are in test_tiers.py.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.command_line import CommandLine
from support.contract import Stream
from support.s3 import CREDENTIALS, S3Server
from support.server import AllInOne
from support.tiered import (
    BY_HAND,
    EACH,
    Tiers,
    ask,
    by_bytes,
    done,
    everything,
    fill,
    give,
    id_of,
    orphan,
    running_tiers,
)
from support.waiting import until

from bottomless.formats.checks import crc32c
from bottomless.spark.options import parse_options
from bottomless.spark.partitions import place_of
from bottomless.spark.plan import Stored
from bottomless.spark.store import Counts
from bottomless.spark.ways import open_objects

PAUSE_SECONDS: Final = 0.05
SETTINGS: Final = {
    **BY_HAND,
    "BOTTOMLESS_READER_STORE_RETRY_SECONDS": "0.5",
    "BOTTOMLESS_READER_HEAT_INTERVAL_MS": "100",
}


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server) -> Iterator[Tiers]:
    folder = tmp_path_factory.mktemp("tiered")
    with running_tiers(folder, seaweed, "default", **SETTINGS) as running:
        yield running


def move(stream: Stream, first: int, end: int, drive: str) -> list[dict[str, Any]]:
    body = {"from_offset": first, "to_offset": end, "drive": drive}
    told = ask(stream.client, "POST", f"{stream.path}/moves", body).json()
    assert told["left"]["fragments"] == 0, told
    entered: list[dict[str, Any]] = told["moves"]
    return entered


def collected(tiers: Tiers, stream: Stream) -> bool:
    """Whether nothing of a stream is stored that is not named, after a collection of garbage."""
    asked = {"dry_run": False, "minimum_age": "1s", "stream": stream.name}
    done(stream.client, "/v1/admin/gc", asked)
    return tiers.objects(id_of(stream)) == set(tiers.listed(stream))


class Reading(threading.Thread):
    """Reads a stream from its beginning to its end, again and again."""

    def __init__(self, server: AllInOne, stream: Stream, wanted: list[dict[str, Any]]) -> None:
        super().__init__()
        self._server = server
        self._name = stream.name
        self._wanted = wanted
        self._ends = threading.Event()
        self.count = 0
        self.faults: list[str] = []

    def run(self) -> None:
        with self._server.client() as client:
            stream = Stream(client, self._name)
            # A little apart, so that the server does something else too.
            while not (self._ends.wait(PAUSE_SECONDS) or self.faults):
                answer = stream.get()
                # A busy machine lets leases lapse, which is a 503 that says so and no missing data.
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    records = answer.json().get("records")
                    if records != self._wanted:
                        self.faults.append(answer.text)
                    self.count += 1

    def end(self) -> None:
        self._ends.set()
        self.join()

    def wait_whole(self) -> None:
        """Wait until a read has ended that began after this call, and was right."""
        after = self.count + 2
        until(lambda: self.faults or self.count >= after, what="reads")
        assert self.faults == []


@contextmanager
def reading(server: AllInOne, stream: Stream, wanted: list[dict[str, Any]]) -> Iterator[Reading]:
    thread = Reading(server, stream, wanted)
    thread.start()
    try:
        yield thread
    finally:
        thread.end()


def test_a_tiered_stream_lives_through_a_death_in_a_move_and_adds_up(
    tiers: Tiers, tmp_path: Path
) -> None:
    """TI1 with its preview, TI2, and TI5 without a rebuild."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 6)
        stream_id, before = id_of(stream), everything(stream)
        give(stream, tiers=by_bytes(stream))
        preview = ask(client, "POST", f"{stream.path}/tiers/preview").json()
        assert sum(one["fragments"] for one in preview["waiting"]) == 4
        tiers.server.arm("uploader.move.after-copies")
        # The process may be dead before it has answered.
        with suppress(httpx.TransportError):
            ask(client, "POST", f"{stream.path}/tiers/evaluate")
    tiers.server.wait_dead_at_fault_point()
    tiers.let_sessions_lapse(stream_id)
    tiers.server.start()
    with tiers.server.client() as client:
        stream = Stream(client, stream.name)
        tiers.wait_where(stream, "cold", "cold", "shelf", "shelf", "default", "default")
        tiers.wait_tidy(stream)
        assert everything(stream) == before

        cli = CommandLine(tiers.server.url, tmp_path)
        report = cli.json("manifest", "verify", stream.name, "--checksums")["result"]
        assert (report["sound"], report["fragments"]) == (True, 6)
        shown = cli.json("tiers", "show", stream.name)["drives"]
        assert {one["drive"]: one["bytes"] for one in shown} == sizes(tiers, stream_id)

        ask(client, "POST", f"{stream.path}/trim", {"before_offset": EACH})
        tiers.wait_where(stream, "cold", "shelf", "shelf", "default", "default")
        tiers.wait_tidy(stream)
        stray = orphan(tiers, stream)
        until(lambda: collected(tiers, stream) and not stray.exists(), what="garbage collected")
        assert everything(stream) == before[EACH:]
        ask(client, "DELETE", stream.path)
        until(lambda: not tiers.objects(stream_id), what="nothing left of the stream")


def sizes(tiers: Tiers, stream_id: str) -> dict[str, int]:
    """The bytes of a stream's fragments in each store that has any."""
    found: dict[str, int] = {}
    for drive, key in tiers.objects(stream_id):
        found[drive] = found.get(drive, 0) + tiers.stored[drive].sizes()[key]
    return found


def test_readers_urls_and_jobs_of_a_tiered_stream_do_not_notice_its_moves(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TI3."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with tiers.server.client() as client:
        stream, other = tiers.filled(client, 3), tiers.filled(client, 1)
        before = everything(stream)
        query = "locations=true&urls=presigned"
        planned = ask(client, "GET", f"{stream.path}/fragments?{query}").json()["fragments"]
        lease = ask(client, "POST", f"{stream.path}/leases", {"first_offset": 0}).json()
        with reading(tiers.server, stream, before) as reads:
            reads.wait_whole()
            move(stream, 0, 9, "shelf")
            tiers.wait_where(stream, *["shelf"] * 3)
            reads.wait_whole()
            # What another stream moved from comes later in the queue of the deleter, and has no lease.
            move(other, 0, 3, "shelf")
            tiers.wait_where(other, "shelf")
            tiers.wait_tidy(other)
            for item in planned:
                assert crc_of(httpx.get(item["url"]).raise_for_status().content) == item["crc32c"]
                assert crc_of(as_a_worker(item)) == item["crc32c"]
                data = ask(client, "GET", item["href"]).content
                assert crc_of(data) == item["crc32c"]

            ask(client, "DELETE", f"{stream.path}/leases/{lease['lease_id']}")
            tiers.wait_tidy(stream)
            reads.wait_whole()
            move(stream, 0, 9, "cold")
            tiers.wait_where(stream, *["cold"] * 3)
            tiers.wait_tidy(stream)
            reads.wait_whole()


def crc_of(data: bytes) -> str:
    return f"{crc32c(data):08x}"


def as_a_worker(item: dict[str, Any]) -> bytes:
    """The object of a fragment as a worker of Spark reads it, by what its job was told."""
    place = place_of(item["store"], parse_options({"url": "http://x", "stream": "x"}).s3)
    assert place is not None
    size = item["size_bytes"]
    stored = Stored(item["id"], item["object_key"], 0, 1, size, item["index_position"])
    return bytes(open_objects(place, Counts()).read(stored, 0, size))


def test_a_mount_of_a_tiered_stream_that_goes_is_503_by_its_name_and_all_else_goes_on(
    tiers: Tiers,
) -> None:
    """TI4."""
    with tiers.server.client() as client:
        stream, other = tiers.filled(client, 3), tiers.filled(client, 1)
        before = everything(stream)
        move(stream, 3, 6, "shelf")
        tiers.wait_where(stream, "default", "shelf", "default")
        tiers.wait_tidy(stream)
        tiers.unmount()
        try:
            until(lambda: is_away(stream), what="503 of what lies on the shelf")
            assert all(is_away(stream) for _ in range(3)), "it is never missing"
            assert stream.page(6)["records"] == before[6:]
            fill(stream, 1)
            fill(other, 1)
            drives = ask(client, "GET", "/v1/drives").json()["items"]
            away = {one["name"] for one in drives if one["state"] == "away"}
            assert away == {"shelf"}
            assert list(tiers.shelf.iterdir()) == [], "nothing is written below the mount"
        finally:
            tiers.mount()
        assert everything(stream)[:9] == before
        tiers.wait_where(stream, "default", "shelf", "default", "default")


def is_away(stream: Stream) -> bool:
    """Whether what lies on the shelf is refused, as what is away."""

    def told() -> str | None:
        answer = stream.get(EACH)
        if answer.status_code == httpx.codes.OK:
            return "read"
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
        problem = answer.json()
        # A node whose lease lapsed for a moment is another 503, which says nothing of the drive.
        if problem["code"] != "object-store-unavailable":
            return None
        assert "shelf" in problem["detail"], problem
        return "away"

    return until(told, what="a read, or word of the drive") == "away"


def test_a_tiered_stream_is_moved_by_hand_promoted_by_reads_and_leaves_a_drive(
    tiers: Tiers,
) -> None:
    """TI6."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 3)
        before = everything(stream)
        tiers.unmount()
        try:
            (entered,) = move(stream, 0, 3, "shelf")
            ask(client, "DELETE", f"{stream.path}/moves/{entered['move']}")
        finally:
            tiers.mount()
        tiers.wait_where(stream, *["default"] * 3)

        move(stream, 0, 9, "attic")
        tiers.wait_where(stream, *["attic"] * 3)
        reads = {"drive": "attic", "promote_after_reads": 2}
        give(stream, tiers=[{"drive": "default", "max_age": "1s"}, reads])
        ask(client, "POST", f"{stream.path}/tiers/evaluate")
        assert retired(client)["state"] == "failed", "it is in use"

        def promoted() -> bool:
            assert everything(stream) == before
            return tiers.where(stream) == ["default"] * 3

        until(promoted, what="fragments promoted for they are read")
        told = ask(client, "GET", f"{stream.path}/tiers").json()["promoted"]
        ends = [(one["from_offset"], one["to_offset"]) for one in told]
        assert (min(ends)[0], max(ends)[1]) == (0, 9)
        assert ask(client, "POST", f"{stream.path}/tiers/evaluate").json()["moves"] == []

        give(stream, tiers=None)
        tiers.wait_tidy(stream)
        until(lambda: retired(client)["state"] == "succeeded", what="a drive that is retired")
        drives = ask(client, "GET", "/v1/drives").json()["items"]
        assert {one["state"] for one in drives if one["name"] == "attic"} == {"retired"}
        assert everything(stream) == before


def retired(client: httpx.Client) -> dict[str, Any]:
    """What came of a retirement of the attic."""
    operation = ask(client, "DELETE", "/v1/admin/drives/attic").json()["operation_id"]

    def ended() -> dict[str, Any] | None:
        told: dict[str, Any] = ask(client, "GET", f"/v1/operations/{operation}").json()
        return told if told["state"] in ("succeeded", "failed") else None

    return until(ended, what="the end of the retirement")


def test_a_tiered_stream_moved_away_and_back_survives_what_lands_late_of_the_first_time(
    tiers: Tiers,
) -> None:
    """TI7."""
    with tiers.server.client() as client:
        stream = tiers.filled(client, 2)
        before = everything(stream)
        first = [(*at, tiers.stored[at[0]].read(at[1])) for at in tiers.listed(stream)]
        move(stream, 0, 6, "shelf")
        tiers.wait_where(stream, "shelf", "shelf")
        first += [(*at, tiers.stored[at[0]].read(at[1])) for at in tiers.listed(stream)]
        tiers.wait_tidy(stream)
        move(stream, 0, 6, "default")
        tiers.wait_where(stream, "default", "default")
        tiers.wait_tidy(stream)

        for drive, key, _ in first:
            tiers.stored[drive].delete(key)
        assert everything(stream) == before
        for drive, key, data in first:
            tiers.stored[drive].write(key, data)
        assert everything(stream) == before
        verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
        assert (verified["sound"], verified["fragments"]) == (True, 2), verified
        until(lambda: collected(tiers, stream), what="garbage collected")
        assert everything(stream) == before
