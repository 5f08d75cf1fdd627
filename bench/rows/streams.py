"""Many streams on one node: appended to seldom, and lying there idle."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from bench.figures import Figure, Goal, Sides
from bench.pace import PacedLoad
from bench.pump import HttpLoad, Request
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Stage
from bench.wire import http

IDLE_STREAMS: Final = 10_000
OPENED: Final = 1_000
"""Of them that are appended to: each is recovered and claimed, 15 ms of CPU, so that all of them
would take longer than all other rows."""
BATCH: Final = 100
"""Records of an append: some 10 KB."""
OPENING: Final = 8
"""Streams that are appended to for the first time at once: each is claimed then."""
CREATING: Final = 32
"""Streams that are made at once."""
SLOW_STREAMS: Final = 10_000
SLOW_SECONDS: Final = 30.0
"""Between two appends to one of them."""
BUSY_SECONDS: Final = 3.0
"""The same, for streams that are in use all the time."""
LATER: Final = {"fragment": {"max_age_ms": 86_400_000}}
"""Nothing is uploaded while it is measured: that costs by the minute, and not by the append."""
SLOW_SIDE: Final = f"{SLOW_STREAMS:,} streams, each every {SLOW_SECONDS:g} s"
BUSY_SIDE: Final = f"{SLOW_STREAMS / 10:,g} streams, each every {BUSY_SECONDS:g} s"


async def _create(ours: Ours, names: list[str], config: Mapping[str, Any]) -> None:
    waiting = iter(names)

    async def work(session: aiohttp.ClientSession) -> None:
        for name in waiting:
            async with session.put(f"{ours.url}/v1/streams/{name}", json=config) as answer:
                answer.raise_for_status()

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CREATING):
            group.create_task(work(session))


def create(
    ours: Ours, count: int, prefix: str, config: Mapping[str, Any] | None = None
) -> list[str]:
    """So many streams; returns their names."""
    names = [f"{prefix}-{number:05d}" for number in range(count)]
    asyncio.run(_create(ours, names, config or {}))
    return names


def _idle(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    handles = ours.tree.handles()
    settled = [ours.tree.rss_mib()]
    """Memory before the streams that a side adds."""

    def created(_: float) -> Figure:
        started = time.perf_counter()
        spent = ours.tree.cpu_seconds()
        create(ours, IDLE_STREAMS, "idle")
        return _figure(IDLE_STREAMS, time.perf_counter() - started, spent)

    def appended(_: float) -> Figure:
        spent = ours.tree.cpu_seconds()
        requests = [
            Request(http.append(f"idle-{number:05d}", http.ARROW, http.arrow_body(1)), 1)
            for number in range(OPENED)
        ]
        settled[0] = ours.tree.rss_mib()
        run = HttpLoad(ours.port, ours.tree, requests, OPENING, again=False)(0)
        return _figure(OPENED, run.seconds, spent, run.extra)

    def _figure(
        count: int, seconds: float, spent: float, more: Mapping[str, float] | None = None
    ) -> Figure:
        ours.tree.settle(10)
        rss = ours.tree.rss_mib()
        return Figure(
            units=count,
            seconds=seconds,
            cpu_seconds=ours.tree.cpu_seconds() - spent,
            rss_mib=rss,
            extra={
                **(more or {}),
                "KiB a stream": (rss - settled[0]) * 1024 / count,
                "file handles": ours.tree.handles(),
                "file handles before": handles,
            },
        )

    def idle(seconds: float) -> Figure:
        spent = ours.tree.cpu_seconds()
        waited = max(10.0, seconds)
        # The time itself is what is measured: what streams cost of which nobody wants anything.
        time.sleep(waited)
        return _figure(OPENED, waited, spent)

    stage.runners["create"] = created
    stage.runners[f"first append to {OPENED:,}"] = appended
    stage.runners["then nothing, for 10 s"] = idle


def _slow(stage: Stage) -> None:
    """Both sides have the same number of appends in the same time, so only the names differ."""
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    names = create(ours, SLOW_STREAMS, "slow", LATER)
    body = http.arrow_body(BATCH)
    requests = [Request(http.append(name, http.ARROW, body), BATCH) for name in names]
    HttpLoad(ours.port, ours.tree, requests, OPENING, again=False)(0)
    times_each = int(SLOW_SECONDS / BUSY_SECONDS)
    busy = requests[: SLOW_STREAMS // times_each] * times_each
    stage.runners[SLOW_SIDE] = PacedLoad(ours.port, ours.tree, requests, SLOW_SECONDS)
    stage.runners[BUSY_SIDE] = PacedLoad(ours.port, ours.tree, busy, SLOW_SECONDS)


def _cpu_ratios(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(SLOW_SIDE, ()), sides.get(BUSY_SIDE, ()), strict=False)
    return [slow.cpu_per_million / busy.cpu_per_million for slow, busy in pairs]


ROWS: Final = (
    Row(
        "slow-streams",
        f"{SLOW_STREAMS:,} streams, each appended to every 30 s, batches of 10 KB, `fsync`",
        "records",
        (Goal("CPU of an append ≤ 1.3 x that of busy streams", _cpu_ratios, at_most=1.3),),
        _slow,
        warms_up=False,
        rounds_max=2,
        guess_seconds=360,
    ),
    Row(
        "idle-streams",
        "10,000 streams on one node, 1,000 of them open: memory and file handles",
        "streams",
        (),
        _idle,
        warms_up=False,
        rounds_max=1,
    ),
)
