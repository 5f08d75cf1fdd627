"""How long appends to leaderless streams take, and how many of them are taken."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from s3_server import Account, running_s3
from support.fault_proxy import running_fault_proxy
from support.latencies import STORES

from bench.figures import Figure, Goal, Sides, at_most, times
from bench.pump import HttpLoad
from bench.rows.append import RECORDS_1M
from bench.rows.leaderless import (
    LEADERLESS,
    RECORDS,
    appends,
    numbers,
    started,
)
from bench.rows.streams import create
from bench.servers.ours import Ours
from bench.turns import Row, Runner, Stage

LATENCY_LINGERS: Final = (5, 50, 250)
LATENCY_STORES: Final = ("standard", "express")
LATENCY_RATE: Final = 20.0
"""Appends a second: few enough that with 5 ms each has an object of its own."""
LATENCY_CONNECTIONS: Final = 64
LATENCY_SECONDS_MIN: Final = 10.0
LATENCY_STREAMS: Final = 100
MANY: Final = "standard, 250 ms, 1,000 streams"
READERS: Final = "standard, 250 ms, beside 1,000 long polls"
LONG_POLLS: Final = 1_000
POLLS_SETTLE_SECONDS: Final = 20.0


@dataclass(frozen=True)
class SlowStore:
    """An S3 server that takes as long as another store, behind a proxy."""

    account: Account
    endpoint: str

    def settings(self, linger_ms: int) -> dict[str, str]:
        return {
            "BOTTOMLESS_STORE_URL": self.account.store_url(self.endpoint, f"l-{next(numbers)}"),
            "BOTTOMLESS_INGEST_WAL_LINGER_MS": str(linger_ms),
            **self.account.environment(),
        }


def _latency(
    stage: Stage, store: SlowStore, linger_ms: int, streams: int, long_polls: int = 0
) -> Runner:
    def run(seconds: float) -> Figure:
        seconds = max(seconds, LATENCY_SECONDS_MIN)
        directory = stage.directory / f"latency-{next(numbers)}"
        with started(directory, store.settings(linger_ms)) as ours:
            names = create(ours, streams, "latency", LEADERLESS)
            requests = appends(names, RECORDS)
            # The first append to a stream asks what its name means; that is another cost.
            HttpLoad(ours.port, ours.tree, requests, streams, again=False)(0)
            load = HttpLoad(ours.port, ours.tree, requests, LATENCY_CONNECTIONS, rate=LATENCY_RATE)
            if not long_polls:
                return load(seconds)
            return asyncio.run(_beside_polls(ours, names, long_polls, lambda: load(seconds)))

    return run


async def _beside_polls(
    ours: Ours, names: Sequence[str], count: int, work: Callable[[], Figure]
) -> Figure:
    """Do it while so many requests wait at the ends of streams, each of which comes again."""
    limits = httpx.Limits(max_connections=None)

    async def poll(client: httpx.AsyncClient, name: str) -> None:
        asked: dict[str, str | int] = {"offset": "next", "max_wait_ms": 30_000}
        while True:
            await client.get(f"/v1/streams/{name}/records", params=asked)

    async with httpx.AsyncClient(base_url=ours.url, timeout=60, limits=limits) as client:
        polls = [asyncio.create_task(poll(client, names[n % len(names)])) for n in range(count)]
        try:
            # A thousand connections at once take a second of CPU, which is not what is measured.
            await asyncio.to_thread(ours.tree.settle, POLLS_SETTLE_SECONDS)
            return await asyncio.to_thread(work)
        finally:
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)


def _set_up_latency(stage: Stage) -> None:
    account = Account("bench", "bench", "bench-secret")
    server = stage.stack.enter_context(running_s3(stage.directory / "s3", account))
    for name in LATENCY_STORES:
        proxy = stage.stack.enter_context(running_fault_proxy(server, latency=STORES[name]))
        store = SlowStore(account, proxy.endpoint)
        for linger_ms in LATENCY_LINGERS:
            side = f"{name}, {linger_ms} ms"
            stage.runners[side] = _latency(stage, store, linger_ms, LATENCY_STREAMS)
        if name == LATENCY_STORES[0]:
            stage.runners[MANY] = _latency(stage, store, LATENCY_LINGERS[-1], 1_000)
            stage.runners[READERS] = _latency(
                stage, store, LATENCY_LINGERS[-1], LATENCY_STREAMS, LONG_POLLS
            )
    stage.notes.append(
        f"{LATENCY_RATE:.0f} appends of 1 KB a second over {LATENCY_STREAMS} streams, evenly spaced, on "
        "an S3 server behind a proxy that takes as long as S3 Standard (PUT: p50 100 ms, p99 195 ms) or "
        "S3 Express One Zone (6 and 20 ms). Latencies count from the time at which an append was due. "
        "An append comes each 50 ms, so one that opens a round waits for the whole linger: with 50 ms "
        "every append does, with 250 ms half of them wait 150 ms or more. "
        "Server, proxy, S3 server and clients share two cores."
    )


def _latency_goals() -> Iterator[Goal]:
    for name in LATENCY_STORES:
        put = STORES[name]["PUT"]
        for linger_ms in LATENCY_LINGERS:
            side = f"{name}, {linger_ms} ms"
            half = linger_ms / 2 + put.p50_ms + 25
            most = linger_ms + put.p99_ms + 60
            yield at_most(f"{side}: p50 ≤ {half:g} ms", side, lambda one: one.p50_ms, half, "ms")
            yield at_most(f"{side}: p99 ≤ {most:g} ms", side, lambda one: one.p99_ms, most, "ms")
    beside = f"standard, {LATENCY_LINGERS[-1]} ms"
    yield _within("1,000 streams: p50 ≤ 1.3 x", MANY, beside, lambda one: one.p50_ms, 1.3)
    yield _within("1,000 streams: p99 ≤ 1.3 x", MANY, beside, lambda one: one.p99_ms, 1.3)
    yield _within("beside 1,000 long polls: p99 ≤ 2 x", READERS, beside, lambda one: one.p99_ms, 2)


def _within(
    text: str, side: str, beside: str, value: Callable[[Figure], float], limit: float
) -> Goal:
    """A number of one side is at most so many times that of another."""

    def read(sides: Sides) -> list[float] | None:
        pairs = zip(sides.get(side, ()), sides.get(beside, ()), strict=False)
        return [value(one) / value(other) for one, other in pairs] or None

    return Goal(text, read, at_most=limit)


THROUGHPUT_STREAMS: Final = 1_000
LARGE, LARGE_LOCAL = "1 MiB, leaderless", "1 MiB, local"
MANY_SMALL = "1,000 streams of 10 KB, leaderless"
MANY_SMALL_LOCAL = "1,000 streams of 10 KB, local"
THROUGHPUT_SIDES: Final[dict[str, tuple[str, Mapping[str, Any], int, int]]] = {
    LARGE: ("large", LEADERLESS, 1, RECORDS_1M),
    LARGE_LOCAL: ("large-local", {}, 1, RECORDS_1M),
    MANY_SMALL: ("many", LEADERLESS, THROUGHPUT_STREAMS, 100),
    MANY_SMALL_LOCAL: ("many-local", {}, THROUGHPUT_STREAMS, 100),
}
THROUGHPUT_CONNECTIONS: Final = 32
MANY_CONNECTIONS: Final = 1_000
"""One for each stream: who waits for a linger of 250 ms sends four appends a second."""
QUIET_SECONDS: Final = 120.0
TOUCHED_BYTES: Final = 4 << 30


def _when_quiet(ours: Ours, load: Runner) -> Runner:
    """A load whose connections are made when the rounds of the one before are over: the server closes
    what says nothing for so long."""

    def run(seconds: float) -> Figure:
        ours.tree.settle(QUIET_SECONDS)
        return load(seconds)

    return run


def _set_up_throughput(stage: Stage) -> None:
    ours = stage.stack.enter_context(started(stage.directory / "ours"))
    for side, (prefix, config, streams, records) in THROUGHPUT_SIDES.items():
        names = create(ours, streams, prefix, config)
        requests = appends(names, records)
        HttpLoad(ours.port, ours.tree, requests, 8, again=False)(0)
        connections = THROUGHPUT_CONNECTIONS if streams == 1 else MANY_CONNECTIONS
        load = HttpLoad(ours.port, ours.tree, requests, connections)
        stage.runners[side] = _when_quiet(ours, load)
    stage.notes.append(
        "Arrow to a directory store over 32 connections, or one for each of the 1,000 streams; each "
        "waits for its answer, a leaderless append for a linger of 250 ms too. What is appended to "
        "leaderless streams is compacted meanwhile whenever half of the cache is full."
    )


ROWS: Final = (
    Row(
        "leaderless-latency",
        "Appends of 1 KB to leaderless streams, by the latency of the store and the linger",
        "records",
        tuple(_latency_goals()),
        _set_up_latency,
        warms_up=False,
        rounds_max=3,
        guess_seconds=600,
    ),
    Row(
        "leaderless-throughput",
        "Appends to leaderless streams on a directory beside local ones",
        "records",
        (
            times("1 MiB: ≥ 0.7 x local", LARGE, LARGE_LOCAL, 0.7),
            times("1,000 streams of 10 KB: ≥ 1.5 x local", MANY_SMALL, MANY_SMALL_LOCAL, 1.5),
        ),
        _set_up_throughput,
        rounds_max=3,
        touched_bytes=TOUCHED_BYTES,
    ),
)
