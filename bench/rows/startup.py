"""From the start of a program to ready, and what a server holds when nobody asks anything."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from bench.figures import Figure, at_most
from bench.pump import HttpLoad, Request
from bench.rows.streams import LATER, OPENING, create
from bench.servers.nats import running_nats
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.tree import Tree
from bench.turns import Row, Runner, Stage
from bench.wire import http

STREAMS: Final = 2_000
SETTLE_SECONDS: Final = 10
EMPTY: Final = "a new directory"
FULL: Final = f"{STREAMS:,} streams"


class Server(Protocol):
    @property
    def tree(self) -> Tree: ...


PEERS: Final[dict[str, Callable[[Path], AbstractContextManager[Server]]]] = {
    "RabbitMQ, a new directory": running_rabbitmq,
    "NATS JetStream, a new directory": running_nats,
}


def _start(
    running: Callable[[Path], AbstractContextManager[Server]], data_dir: Path, *, fresh: bool
) -> Runner:
    """A start on a directory, which is another one each time if it is to be `fresh`."""
    number = 0

    def run(_: float) -> Figure:
        nonlocal number
        number += 1
        directory = data_dir / str(number) if fresh else data_dir
        started = time.perf_counter()
        with running(directory) as server:
            seconds = time.perf_counter() - started
            spent = server.tree.cpu_seconds()
            server.tree.settle(SETTLE_SECONDS)
            return Figure(
                units=1,
                seconds=seconds,
                cpu_seconds=spent,
                rss_mib=server.tree.rss_mib(),
                extra={
                    "s to ready": seconds,
                    "CPU s": spent,
                    "MiB of its first process": server.tree.rss_mib(own=True),
                },
            )

    return run


def _set_up(stage: Stage) -> None:
    full = stage.directory / "full"
    with running_ours(full) as ours:
        names = create(ours, STREAMS, "start", LATER)
        requests = [Request(http.append(name, http.ARROW, http.arrow_body(1)), 1) for name in names]
        HttpLoad(ours.port, ours.tree, requests, OPENING, again=False)(0)
    stage.notes.append(
        "Each server was killed before, so that every stream is recovered. Ready is what our "
        "program says; of the others it is that their port answers, which is polled every 50 ms."
    )
    stage.runners[EMPTY] = _start(running_ours, stage.directory / "empty", fresh=True)
    stage.runners[FULL] = _start(running_ours, full, fresh=False)
    for peer, running in PEERS.items():
        with stage.side(peer):
            with running(stage.directory / "tried"):
                pass
            stage.runners[peer] = _start(running, stage.directory / peer, fresh=True)


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
