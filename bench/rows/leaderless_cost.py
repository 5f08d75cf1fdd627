"""What leaderless streams cost: requests to object storage, dollars, and memory of coordination."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from support.valkey import another_client, running_valkey

from bench.figures import GIB, Figure, Goal, Sides, at_most
from bench.pump import HttpLoad
from bench.rows.leaderless import LEADERLESS, RECORDS, appends, compact, numbers, started
from bench.rows.streams import create
from bench.servers.ours import Ours
from bench.turns import Row, Runner, Stage
from bench.wire import http

LOCAL: Final = {"fragment": {"max_age_ms": 5_000}}
LINGER_SECONDS: Final = 0.25
"""The default."""
COST_RATE: Final = 500.0
"""Appends a second, over all streams together."""
COST_CONNECTIONS: Final = 256
"""Each append waits for a linger and a put, so that many are under way."""
COST_SECONDS_MIN: Final = 10.0
COST_STREAMS: Final = (1, 100, 1_000)
EACH: Final = "1,000 streams, an object for each stream"
BESIDE: Final = "local, 1,000 streams"
NOTHING: Final = "nothing is appended"
WAL_PUTS: Final = "WAL puts per linger"
WAL_PUTS_EACH: Final = "WAL puts per append"
DOLLARS_GIB: Final = "dollars per GiB"
REQUESTS: Final = "requests"


@dataclass
class Spent:
    """What was asked of the object store by a moment."""

    requests: dict[str, float]
    dollars: float
    wal_puts: float

    @classmethod
    def by(cls, ours: Ours) -> "Spent":
        counted = ours.counters()
        requests = counted.by("bottomless_object_store_requests_total", "operation")
        flushes = counted.total("bottomless_ingest_wal_flushes_total")
        notes = counted.total("bottomless_ingest_wal_note_objects_total")
        dollars = counted.total("bottomless_object_store_dollars_total")
        return cls(requests, dollars, flushes + notes)

    def since(self, before: "Spent") -> "Spent":
        names = self.requests.keys() | before.requests.keys()
        requests = {
            name: self.requests.get(name, 0) - before.requests.get(name, 0) for name in names
        }
        return Spent(requests, self.dollars - before.dollars, self.wal_puts - before.wal_puts)


REST_SECONDS: Final = 11.0
REST_COUNT_MAX: Final = 6


def _cost(stage: Stage, streams: int, settings: Mapping[str, str], *, leaderless: bool) -> Runner:
    def run(seconds: float) -> Figure:
        seconds = max(seconds, COST_SECONDS_MIN)
        directory = stage.directory / f"cost-{next(numbers)}"
        with started(directory, settings) as ours:
            names = create(ours, streams, "cost", LEADERLESS if leaderless else LOCAL)
            requests = appends(names, RECORDS)
            HttpLoad(ours.port, ours.tree, requests, COST_CONNECTIONS, again=False)(0)
            start = Spent.by(ours)
            load = HttpLoad(ours.port, ours.tree, requests, COST_CONNECTIONS, rate=COST_RATE)
            figure = load(seconds)
            written = Spent.by(ours)
            if leaderless:
                compact(ours)
            for name in names[:: max(len(names) // 10, 1)]:
                ours.wait_uploaded(name)
            moved = Spent.by(ours)
            stored = figure.units_all * http.VALUE_SIZE / GIB
            wal, later = written.since(start), moved.since(written)
            count = figure.units_all / RECORDS
            extra = {
                **figure.extra,
                WAL_PUTS: wal.wal_puts / (seconds / LINGER_SECONDS),
                WAL_PUTS_EACH: wal.wal_puts / count,
                "dollars an hour while it is written": wal.dollars / seconds * 3_600,
                DOLLARS_GIB: moved.since(start).dollars / stored,
                "puts afterwards": later.requests.get("put", 0),
                "GETs afterwards": later.requests.get("get", 0),
            }
            return replace(figure, extra=extra)

    return run


def _at_rest(ours: Ours) -> None:
    """Return when what was appended before is compacted, and its objects are deleted; a server that
    never comes to rest is measured as it is."""
    before = Spent.by(ours).requests
    for _ in range(REST_COUNT_MAX):
        # Longer than a round of the vacuum: silence for so long says that it has nothing to do.
        time.sleep(REST_SECONDS)
        after = Spent.by(ours).requests
        if after == before:
            return
        before = after


def _nothing(stage: Stage) -> Runner:
    def run(seconds: float) -> Figure:
        seconds = max(seconds, COST_SECONDS_MIN)
        directory = stage.directory / f"cost-{next(numbers)}"
        with started(directory, {"BOTTOMLESS_MANIFEST_GC_INTERVAL_MS": "0"}) as ours:
            create(ours, COST_STREAMS[-1], "cost", LEADERLESS)
            compact(ours)
            _at_rest(ours)
            before, spent = Spent.by(ours), ours.tree.cpu_seconds()
            # The time itself is what is measured.
            time.sleep(seconds)
            asked = Spent.by(ours).since(before)
            return Figure(
                units=1,
                seconds=seconds,
                cpu_seconds=ours.tree.cpu_seconds() - spent,
                rss_mib=ours.tree.rss_mib(),
                extra={REQUESTS: sum(asked.requests.values())},
            )

    return run


def _set_up_cost(stage: Stage) -> None:
    for count in COST_STREAMS:
        stage.runners[_streams(count)] = _cost(stage, count, {}, leaderless=True)
    each = {"BOTTOMLESS_INGEST_WAL_STREAMS": "1"}
    stage.runners[EACH] = _cost(stage, COST_STREAMS[-1], each, leaderless=True)
    stage.runners[BESIDE] = _cost(stage, COST_STREAMS[-1], {}, leaderless=False)
    stage.runners[NOTHING] = _nothing(stage)
    stage.notes.append(
        f"{COST_RATE:,.0f} appends of 1 KB a second, over all streams together, on a directory that "
        "counts what S3 would be sent; then compaction, or uploads. Dollars are those of S3 Standard, "
        "without what is kept. Streams of 1 KB every two seconds are small: most of what they cost are "
        "the two puts of their fragments, which a longer `fragment.max_age_ms` makes fewer."
    )


def _streams(count: int) -> str:
    return f"{count:,} streams" if count > 1 else "1 stream"


def _puts_beside_each(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(_streams(COST_STREAMS[-1]), ()), sides.get(EACH, ()), strict=False)
    return [one.extra[WAL_PUTS_EACH] / each.extra[WAL_PUTS_EACH] for one, each in pairs] or None


def _dollars_beside_local(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(_streams(COST_STREAMS[-1]), ()), sides.get(BESIDE, ()), strict=False)
    return [one.extra[DOLLARS_GIB] / local.extra[DOLLARS_GIB] for one, local in pairs] or None


MEMORY_STREAMS: Final = (20, 200)
"""Valkey keeps an index of more than 128 entries in another way than a smaller one."""
MEMORY_ENTRIES_PER_SECOND: Final = 10_000
"""For each second that a side shall run, at most 30,000: each is an append."""
MEMORY_ENTRIES_MAX: Final = 30_000
BYTES_EACH: Final = "bytes of Valkey per entry"


def _memory(stage: Stage, streams: int) -> Runner:
    def run(seconds: float) -> Figure:
        wanted = int(min(seconds * MEMORY_ENTRIES_PER_SECOND, MEMORY_ENTRIES_MAX))
        home = stage.directory / f"memory-{next(numbers)}"
        with running_valkey(home / "valkey") as valkey:
            settings = {
                "BOTTOMLESS_COORDINATION_URL": valkey.url,
                "BOTTOMLESS_UPLOADER_WAL": "off",
                "BOTTOMLESS_INGEST_WAL_LINGER_MS": "20",
            }
            with started(home / "ours", settings) as ours, another_client(valkey.url) as client:
                names = create(ours, streams, "memory", LEADERLESS)
                HttpLoad(ours.port, ours.tree, appends(names, 1), 8, again=False)(0)
                before, entries = _used(client), _entries(client)
                load = HttpLoad(ours.port, ours.tree, appends(names, 1, wanted), 64, again=False)
                figure = load(0)
                more = _entries(client) - entries
                used = _used(client) - before
                extra = {
                    **figure.extra,
                    BYTES_EACH: used / more,
                    "entries": more,
                    "MiB of Valkey": used / (1 << 20),
                }
                return replace(figure, extra=extra)

    return run


def _entries_of(streams: int) -> str:
    return f"entries of {streams} streams"


def _set_up_memory(stage: Stage) -> None:
    for count in MEMORY_STREAMS:
        stage.runners[_entries_of(count)] = _memory(stage, count)
    stage.notes.append(
        "Appends of one record to streams in turn, of which nothing is compacted, on 64 connections; "
        "neighbours of one stream in one object are one entry. What holds the objects, and what is "
        "known of them, is in the bytes. Memory is that of all services."
    )


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def _entries(client: Any) -> int:
    keys = client.scan_iter("bottomless:tail-index:*", count=1_000)
    return sum(client.zcard(key) for key in keys)


ROWS: Final = (
    Row(
        "leaderless-cost",
        "What leaderless streams cost: 500 appends of 1 KB a second, over 1 to 1,000 streams",
        "records",
        (
            *(
                at_most(
                    f"{_streams(count)}: ≤ 1.1 WAL puts per linger",
                    _streams(count),
                    lambda figure: figure.extra[WAL_PUTS],
                    1.1,
                    "puts",
                )
                for count in COST_STREAMS
            ),
            Goal(
                "1,000 streams: WAL puts per append ≤ 0.01 x an object for each stream",
                _puts_beside_each,
                at_most=0.01,
            ),
            at_most(
                "no appends: no requests",
                NOTHING,
                lambda figure: figure.extra[REQUESTS],
                0,
                "requests",
            ),
            Goal("1,000 streams: dollars per GiB beside local", _dollars_beside_local),
        ),
        _set_up_cost,
        warms_up=False,
        rounds_max=3,
        guess_seconds=450,
    ),
    Row(
        "leaderless-memory",
        "Memory of coordination for what is not in fragments",
        "records",
        (
            *(
                at_most(
                    f"{_entries_of(count)}: ≤ 200 bytes of Valkey each",
                    _entries_of(count),
                    lambda figure: figure.extra[BYTES_EACH],
                    200,
                    "bytes",
                )
                for count in MEMORY_STREAMS
            ),
        ),
        _set_up_memory,
        warms_up=False,
        rounds_max=3,
    ),
)
