"""A queue of a million messages is deleted: how long that takes, what others feel, and the space."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.figures import Figure, Goal, Sides, at_most
from bench.pump import HttpLoad, Request
from bench.rows.queue_sides import SINGLES, OurSide
from bench.rows.queue_waiting import fill, many
from bench.servers.ours import running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import queues

ALONE: Final = "others, nothing is deleted"
BESIDE: Final = "others, a queue is deleted"
OTHER: Final = "other"
DOOMED: Final = "doomed"
RATE: Final = 100.0
"""Publishes a second of the others."""
CONNECTIONS: Final = 4
SECONDS_MIN: Final = 10.0
"""Long enough that what is swept after a deletion lies within, and 1 % are some publishes."""
DELETE_AFTER_SECONDS: Final = 2.0
SPACE_SECONDS_MAX: Final = 120.0
LEFT_BYTES: Final = 3 * 16 << 20
"""What may be left: the open file, and two that others have written to meanwhile."""
DELETE_MS: Final = "ms of the deletion"
SPACE_SECONDS: Final = "s until the space is back"


def _bytes_in(directory: Path) -> int:
    total = 0
    for each in directory.glob("*"):
        with suppress(FileNotFoundError):
            total += each.stat().st_size
    return total


def _others(side: OurSide) -> Callable[[float], Figure]:
    request = Request(queues.publish(OTHER, SINGLES.values()), 1)
    load = HttpLoad(side.server.port, side.tree, [request], CONNECTIONS, rate=RATE)
    return lambda seconds: load(max(seconds, SECONDS_MIN))


def _deleted(side: OurSide, messages: Path) -> dict[str, float]:
    """Delete the queue, and wait for its space."""
    begun = time.perf_counter()
    side.delete(DOOMED)
    ended = time.perf_counter()
    while _bytes_in(messages) > LEFT_BYTES and time.perf_counter() - ended < SPACE_SECONDS_MAX:
        # No answer of the API waits for it.
        time.sleep(0.1)
    return {DELETE_MS: (ended - begun) * 1000, SPACE_SECONDS: time.perf_counter() - ended}


def _deleting(side: OurSide, count: int) -> Runner:
    messages = side.server.data_dir / "queues" / "messages"
    others = _others(side)

    def run(seconds: float) -> Figure:
        side.create(DOOMED)
        fill(side, DOOMED, count)
        side.tree.settle(60)
        told: dict[str, float] = {}
        # Once the load's own wait for quiet is over.
        timer = threading.Timer(DELETE_AFTER_SECONDS, lambda: told.update(_deleted(side, messages)))
        timer.start()
        figure = others(seconds)
        timer.join()
        if not told:
            raise RuntimeError("the queue could not be deleted")
        return replace(figure, extra={**figure.extra, **told})

    return run


def _set_up(stage: Stage) -> None:
    count = many(stage.seconds)
    side = OurSide(stage.stack.enter_context(running_ours(stage.directory / "ours")))
    side.create(OTHER)
    stage.runners[ALONE] = _others(side)
    stage.runners[BESIDE] = _deleting(side, count)
    stage.notes.append(
        f"{count:,} messages of 1 KiB are deleted while others publish {RATE:g} a second, one by one, "
        "to another queue (an open loop). The space is that of the message files."
    )


def _p99(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(BESIDE, ()), sides.get(ALONE, ()), strict=False)
    return [beside.p99_ms / alone.p99_ms for beside, alone in pairs] or None


ROWS: Final = (
    Row(
        "queues-delete",
        "Queues: a queue of a million messages is deleted while others publish",
        "messages",
        (
            at_most("deleted within 50 ms", BESIDE, lambda one: one.extra[DELETE_MS], 50, "ms"),
            Goal("p99 of others ≤ 3 x", _p99, at_most=3),
            at_most(
                "the space is back within 60 s",
                BESIDE,
                lambda one: one.extra[SPACE_SECONDS],
                60,
                "s",
            ),
        ),
        _set_up,
        warms_up=False,
        rounds_max=2,
        guess_seconds=500,
        touched_bytes=4 << 30,
    ),
)
