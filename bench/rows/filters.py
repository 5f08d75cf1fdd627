"""Reads with a filter beside reads of everything, from object storage, and what an index costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow as pa

from bench.figures import Figure, Goal, Sides, at_most
from bench.pump import SETTLE_SECONDS, HttpLoad, Request
from bench.rows.objects import NOTHING_LOCAL, PAGE_BYTES, read_all, wait_freed
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import http
from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.model.record import Columns

STREAM: Final = "filtered"
LARGE_CONNECTIONS: Final = 4
SMALL_RECORDS: Final = 640
"""Of 100 bytes: a chunk of 64 KiB and more, which is a fragment of its own."""
LARGE_RECORDS: Final = 10_000
ALL: Final = "all records"
ONE: Final = "one value"
KEY: Final = "one key"
STREAM_BYTES: Final = "bytes of the stream"
STORED: Final = "stored bytes read"
GETS: Final = "GETs of fragments"
ALLOWED: Final = "GETs that may be needed"
SKIPPED: Final = "fragments left unread"
RECORDS: Final = "records found"


def body(
    count: int, values: Sequence[str | None] | None, keys: Sequence[bytes] | None = None
) -> pa.RecordBatch:
    """So many records of 100 bytes with filter values, keys, or both."""
    arrays: list[Any] = [pa.array(http.values(count), pa.binary())]
    columns = Columns.VALUE
    if keys is not None:
        arrays.append(pa.array(keys, pa.binary()))
        columns |= Columns.KEY
    if values is not None:
        arrays.append(pa.array(values, pa.utf8()))
        columns |= Columns.FILTER_VALUE
    return pa.record_batch(arrays, schema=schema_of(columns))


def append(stream: str, batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> Request:
    content = http.append(stream, http.FRAMES, bytes(encode_frame(batch, codec)))
    return Request(content, batch.num_rows)


class Filled:
    """A stream in object storage, a directory, of which pages are read by one server after the other."""

    def __init__(
        self, directory: Path, config: Mapping[str, Any], requests: Sequence[Request]
    ) -> None:
        self.directory = directory
        self.fragments: list[Mapping[str, Any]] = []
        with running_ours(directory, NOTHING_LOCAL) as ours:
            ours.create(STREAM, config)
            # One after the other: each is to be where it is meant to be.
            HttpLoad(ours.port, ours.tree, requests, 1, again=False)(0)
            ours.wait_uploaded(STREAM)
            self.end = wait_freed(ours)
        self.group_count = len(list(directory.glob("objects/**/*.g[0-9]*")))

    def listed(self, query: str = "") -> tuple[int, int]:
        """How many fragments a read looks into, and how many it leaves out, as the list says."""
        read = left_out = 0
        token = ""
        with running_ours(self.directory, NOTHING_LOCAL) as ours:
            while True:
                path = f"/v1/streams/{STREAM}/fragments?to_offset={self.end}{query}{token}"
                page = httpx.get(ours.url + path, timeout=60).raise_for_status().json()
                read += sum(1 for one in page["fragments"] if one.get("id"))
                left_out += sum(one.get("fragments", 0) for one in page["fragments"])
                if not page.get("next_page_token"):
                    return read, left_out
                token = f"&page_token={page['next_page_token']}"

    def reader(self, query: str, extra: Mapping[str, float] | None = None) -> Runner:
        """All pages under a query, each time by a server that has just been started."""
        requests, facts = self._pages(query)

        def run(_: float) -> Figure:
            with running_ours(self.directory, NOTHING_LOCAL) as ours:
                figure = read_all(ours, requests, 1)
                # The reader's own: others of the same process ask the store for their things.
                gets = ours.counters().total("bottomless_reader_block_fetches_total")
            more = {**facts, **(extra or {}), GETS: gets}
            return replace(figure, extra={**figure.extra, **more})

        return run

    def _pages(self, query: str) -> tuple[list[Request], dict[str, float]]:
        found: list[Request] = []
        facts = {RECORDS: 0.0, SKIPPED: 0.0}
        offset = 0
        more = f"&until_offset={self.end}{query}"
        accept = {"Accept": http.ARROW, "Accept-Encoding": "identity"}
        with (
            running_ours(self.directory, NOTHING_LOCAL) as ours,
            httpx.Client(base_url=ours.url, timeout=60, headers=accept) as client,
        ):
            while offset < self.end:
                path = f"/v1/streams/{STREAM}/records?offset={offset}&max_bytes={PAGE_BYTES}{more}"
                answer = client.get(path).raise_for_status()
                after = int(answer.headers["Page-Next-Offset"])
                content = http.page(STREAM, offset, http.ARROW, PAGE_BYTES, more)
                found.append(Request(content, after - offset))
                facts[SKIPPED] += float(answer.headers.get("Page-Skipped-Fragments", 0))
                facts[RECORDS] += pa.ipc.open_stream(answer.content).read_all().num_rows
                offset = after
        return found, facts


def _count(stage: Stage, per_second: int, most: int) -> int:
    return max(20, min(int(stage.seconds * per_second), most))


# One of 100 values, in runs.

CLUSTERED_MAX: Final = 2_000
VALUES: Final = 100


def _clustered(stage: Stage) -> None:
    count = _count(stage, CLUSTERED_MAX, CLUSTERED_MAX)
    run = max(1, count // VALUES)
    requests = [
        append(STREAM, body(SMALL_RECORDS, [f"v{number // run}"] * SMALL_RECORDS))
        for number in range(count)
    ]
    config = {"filter": {"index": "values"}, "fragment": _SMALL}
    filled = Filled(stage.directory / "ours", config, requests)
    value = f"&filter=v{count // run // 2}"
    matching, _ = filled.listed(value)
    allowed = {ALLOWED: float(matching)}
    stage.runners[ALL] = filled.reader("")
    stage.runners[ONE] = filled.reader(value, allowed)
    stage.notes.append(
        f"{count:,} fragments of {SMALL_RECORDS} records, in runs of {run} with one value. Each read is by "
        "a server that was just started. GETs that may be needed: one of each fragment that the list names, "
        f"beside the root and {filled.group_count:,} groups."
    )


_SMALL: Final = {"target_bytes": 1 << 16, "max_age_ms": 5_000}


def _beside_all(
    side: str, value: Callable[[Figure], float]
) -> Callable[[Sides], list[float] | None]:
    def read(sides: Sides) -> list[float] | None:
        pairs = zip(sides.get(side, ()), sides.get(ALL, ()), strict=False)
        return [value(one) / value(whole) for one, whole in pairs] or None

    return read


# A value that is in every chunk.

SPREAD_MAX: Final = 150
RARE: Final = 100


def _spread(stage: Stage) -> None:
    count = _count(stage, SPREAD_MAX, SPREAD_MAX)
    values = [
        "rare" if number % RARE == 0 else f"v{number % 20}" for number in range(LARGE_RECORDS)
    ]
    requests = [append(STREAM, body(LARGE_RECORDS, values))] * count
    config = {"filter": {"index": "values"}, "fragment": {"max_age_ms": 1_000}}
    filled = Filled(stage.directory / "ours", config, requests)
    stage.runners[ALL] = filled.reader("")
    stage.runners[ONE] = filled.reader("&filter=rare")
    stage.notes.append(
        f"{count:,} chunks of {LARGE_RECORDS:,} records, of each of which one in {RARE} has the value: "
        "nothing can be left unread."
    )


# A key that is in one fragment.

LOOKED_UP_MAX: Final = 1_000
CHUNKS_EACH: Final = 8
CUSTOMERS: Final = 1_000


def _look_up(stage: Stage) -> None:
    count = _count(stage, LOOKED_UP_MAX, LOOKED_UP_MAX)
    requests = []
    for number in range(count * CHUNKS_EACH):
        keys = [b"cust-%06d" % (n % CUSTOMERS) for n in range(SMALL_RECORDS)]
        if number == count * CHUNKS_EACH // 2:
            keys[7] = b"only-here"
        requests.append(append(STREAM, body(SMALL_RECORDS, None, keys)))
    fragment = {"target_bytes": CHUNKS_EACH << 16, "max_age_ms": 5_000}
    config = {"filter": {"index": "values-and-keys"}, "fragment": fragment}
    filled = Filled(stage.directory / "ours", config, requests)
    fragments, _ = filled.listed()
    stored = sum(
        path.stat().st_size for path in (stage.directory / "ours").glob("objects/**/*.fragment")
    )
    facts = {"fragments": float(fragments), STREAM_BYTES: float(stored)}
    stage.runners[KEY] = filled.reader("&key=only-here", facts)
    stage.notes.append(
        f"{fragments:,} fragments of {CHUNKS_EACH} chunks, {CUSTOMERS:,} keys in each, and one more key in "
        "one chunk of one of them. Of keys the manifest says nothing, so each fragment is asked."
    )


# False positives, of filters as they are made; no server.

FALSE_VALUES: Final = (16, 100, 200, 300, 1_000, 10_000)
JUDGED_MAX: Final = 200
"""Up to so many values the goal counts."""


def _false(stage: Stage) -> None:
    from bench.filter_false import measure  # noqa: PLC0415

    asked = max(200, min(int(stage.seconds * 2_000), 5_000))
    for count in FALSE_VALUES:
        found = measure(count, asked)
        figure = Figure(units=asked, seconds=found.seconds, extra=found.extra)
        stage.runners[f"{count:,} values a fragment"] = lambda _, figure=figure: figure  # type: ignore[misc]
    stage.notes.append(
        f"{asked:,} values that are nowhere are asked for, of a fragment of 16 chunks of 1,000 records with "
        "filters of 256 bytes a chunk. Skipped is the share of a stream of such fragments that stays "
        "unread."
    )


# What an index costs who writes.

COST_MIB_PER_SECOND: Final = 64
COST_MIB_MAX: Final = 256
NEVER: Final = {"target_bytes": 1 << 30, "max_age_ms": 86_400_000}
CODECS: Final = {"plain": Codec.NONE, "zstd": Codec.ZSTD}
UPLOAD: Final = "CPU s per GB uploaded and published"
APPEND_P99: Final = "append p99 ms"


def _cost_side(ours: Ours, name: str, index: str, request: Request, count: int) -> Runner:
    numbers = iter(range(1_000_000))

    def run(_: float) -> Figure:
        stream = f"{name}-{index}-{next(numbers)}"
        ours.create(stream, {"filter": {"index": index}, "fragment": NEVER})
        sent = Request(request.content.replace(STREAM.encode(), stream.encode(), 1), request.units)
        appended = HttpLoad(ours.port, ours.tree, [sent] * count, LARGE_CONNECTIONS, again=False)(0)
        ours.tree.settle(SETTLE_SECONDS)
        spent, begun = ours.tree.cpu_seconds(), time.perf_counter()
        _cut_now(ours, stream)
        ours.wait_uploaded(stream)
        took = time.perf_counter() - begun
        ours.tree.settle(SETTLE_SECONDS)
        cpu = ours.tree.cpu_seconds() - spent
        ours.delete(stream)
        units = request.units * count
        per_gb = cpu / (units * http.VALUE_SIZE) * 1e9
        extra = {UPLOAD: per_gb, APPEND_P99: appended.p99_ms}
        return Figure(units=units, seconds=took, cpu_seconds=cpu, units_all=units, extra=extra)

    return run


def _cut_now(ours: Ours, stream: str) -> None:
    """Have all of a stream made into a fragment."""
    path = f"{ours.url}/v1/streams/{stream}"
    headers = {"If-Match": httpx.get(path, timeout=60).raise_for_status().headers["etag"]}
    change = {"fragment": {"max_age_ms": 1_000}}
    httpx.patch(path, json=change, headers=headers, timeout=60).raise_for_status()


def _cost(stage: Stage) -> None:
    from bench.filter_false import root_sizes  # noqa: PLC0415

    count = max(4, min(int(stage.seconds * COST_MIB_PER_SECOND), COST_MIB_MAX))
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    values = [f"v{number % VALUES}" for number in range(LARGE_RECORDS)]
    for name, codec in CODECS.items():
        request = append(STREAM, body(LARGE_RECORDS, values), codec)
        for index in ("none", "values"):
            side = f"{name}, index {index}"
            stage.runners[side] = _cost_side(ours, name, index, request, count)
    for fragments, size in root_sizes(large=1_000_000 if stage.seconds >= 1 else 10_000).items():
        figure = Figure(units=1, seconds=1, extra={_ROOT: size / 1e6})
        stage.runners[f"root of {fragments:,} fragments"] = lambda _, figure=figure: figure  # type: ignore[misc]
    stage.notes += [
        (
            f"{count:,} appends of 1 MiB with {VALUES} values, then all of it is made into one fragment; "
            "the CPU is that of all services from then on."
        ),
        "Roots are made by the product's own functions, of fragments with filters of the largest size.",
    ]


_ROOT: Final = "MB"


def _with_index(
    name: str, value: Callable[[Figure], float]
) -> Callable[[Sides], list[float] | None]:
    def read(sides: Sides) -> list[float] | None:
        on, off = sides.get(f"{name}, index values"), sides.get(f"{name}, index none")
        if not on or not off:
            return None
        return [value(one) / value(other) for one, other in zip(on, off, strict=False)]

    return read


def _roots(sides: Sides) -> list[float] | None:
    found = [
        one.extra[_ROOT] for side, all_ in sides.items() if side.startswith("root") for one in all_
    ]
    return [max(found)] if found else None


ROWS: Final = (
    Row(
        "filter-clustered",
        "One of 100 values, in runs, beside all records",
        "records passed",
        (
            Goal(
                "bytes read ≤ 0.03 x all", _beside_all(ONE, lambda f: f.extra[STORED]), at_most=0.03
            ),
            Goal("time ≤ 0.1 x all", _beside_all(ONE, lambda f: f.seconds), at_most=0.1),
            at_most(
                "GETs of fragments ≤ what matches, besides the root and groups",
                ONE,
                lambda figure: figure.extra[GETS] / figure.extra[ALLOWED],
                1,
                "x",
            ),
        ),
        _clustered,
        warms_up=False,
        rounds_max=3,
    ),
    Row(
        "filter-spread",
        "A value that is in every chunk, 1 record of 100, beside all records",
        "records passed",
        (
            Goal("server time ≤ 1.2 x all", _beside_all(ONE, lambda f: f.cpu_seconds), at_most=1.2),
            Goal(
                "bytes to the client ≤ 0.02 x all",
                _beside_all(ONE, lambda f: f.extra["received"]),
                at_most=0.02,
            ),
        ),
        _spread,
        warms_up=False,
        rounds_max=3,
    ),
    Row(
        "filter-false",
        "What filters let pass for nothing, by values a fragment",
        "questions",
        tuple(
            Goal(
                f"{count:,} values a fragment: false {what}" + (" ≤ 3 %" if judged else ""),
                lambda sides, count=count, what=what: [  # type: ignore[misc]
                    one.extra[f"false {what}, %"]
                    for one in sides.get(f"{count:,} values a fragment", ())
                ],
                at_most=3 if judged else None,
                unit="%",
            )
            for count in FALSE_VALUES
            for what in ("fragments", "chunks")
            for judged in (count <= JUDGED_MAX,)
        ),
        _false,
        warms_up=False,
        rounds_max=1,
        guess_seconds=30,
    ),
    Row(
        "filter-cost",
        "Upload and publish with an index, beside none",
        "records",
        (
            Goal(
                "CPU, plain frames: ≤ 1.1 x none",
                _with_index("plain", lambda f: f.extra[UPLOAD]),
                at_most=1.1,
            ),
            Goal(
                "CPU, zstd frames: ≤ 1.6 x none",
                _with_index("zstd", lambda f: f.extra[UPLOAD]),
                at_most=1.6,
            ),
            Goal(
                "append p99, plain: ≤ 1.1 x none",
                _with_index("plain", lambda f: f.extra[APPEND_P99]),
                at_most=1.1,
            ),
            Goal("the largest root ≤ 2.4 MB", _roots, at_most=2.4, unit="MB"),
        ),
        _cost,
        warms_up=False,
        rounds_max=5,
    ),
    Row(
        "key-lookup",
        "One key in 1,000 fragments",
        "records passed",
        (
            at_most(
                "≤ 2 GETs a fragment",
                KEY,
                lambda figure: figure.extra[GETS] / figure.extra["fragments"],
                2,
                "GETs",
            ),
            at_most(
                "bytes read ≤ 0.01 of the stream",
                KEY,
                lambda figure: figure.extra[STORED] / figure.extra[STREAM_BYTES],
                0.01,
                "x",
            ),
        ),
        _look_up,
        warms_up=False,
        rounds_max=3,
    ),
)
