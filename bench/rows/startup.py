"""From `bottomless serve` to ready, and what a server holds when nobody asks anything."""

import time
from pathlib import Path
from typing import Final

from bench.figures import Figure, at_most
from bench.pump import HttpLoad, Request
from bench.rows.streams import LATER, OPENING, create
from bench.servers.ours import running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import http

STREAMS: Final = 2_000
SETTLE_SECONDS: Final = 10
EMPTY: Final = "a new directory"
FULL: Final = f"{STREAMS:,} streams"


def _start(data_dir: Path, *, fresh: bool) -> Runner:
    """A start on a directory, which is another one each time if it is to be `fresh`."""
    number = 0

    def run(_: float) -> Figure:
        nonlocal number
        number += 1
        directory = data_dir / str(number) if fresh else data_dir
        started = time.perf_counter()
        with running_ours(directory) as ours:
            seconds = time.perf_counter() - started
            spent = ours.tree.cpu_seconds()
            ours.tree.settle(SETTLE_SECONDS)
            return Figure(
                units=1,
                seconds=seconds,
                cpu_seconds=spent,
                rss_mib=ours.tree.rss_mib(),
            )

    return run


def _set_up(stage: Stage) -> None:
    full = stage.directory / "full"
    with running_ours(full) as ours:
        names = create(ours, STREAMS, "start", LATER)
        requests = [Request(http.append(name, http.ARROW, http.arrow_body(1)), 1) for name in names]
        HttpLoad(ours.port, ours.tree, requests, OPENING, again=False)(0)
    stage.notes.append("each server was killed before, so that every stream is recovered")
    stage.runners[EMPTY] = _start(stage.directory / "empty", fresh=True)
    stage.runners[FULL] = _start(full, fresh=False)


ROWS: Final = (
    Row(
        "start-up",
        "From `bottomless serve` to ready; memory at rest, Valkey included",
        "starts",
        (
            at_most("new directory: ≤ 1.5 s", EMPTY, lambda figure: figure.seconds, 1.5, "s"),
            at_most("new directory: ≤ 150 MiB", EMPTY, lambda figure: figure.rss_mib, 150, "MiB"),
            at_most("2,000 streams: ≤ 5 s", FULL, lambda figure: figure.seconds, 5, "s"),
        ),
        _set_up,
        warms_up=False,
        rounds_max=5,
    ),
)
