"""Latency under load: appends at a quarter, a half and three quarters of the most that a side takes.

An open loop: each append has its time, evenly spread, and its latency counts from there. In each
round a closed loop finds a side's peak rate first, and the shares are of that; so every side is
asked for what it can do at that moment, and a machine with other work lowers both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bench.figures import Figure, Goal, Sides
from bench.pump import HttpLoad, Load, Request
from bench.rows.append import RABBIT_KEEPS, STREAM
from bench.rows.streams import BATCH
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.servers.reference import running_reference
from bench.tree import Tree
from bench.turns import Row, Stage
from bench.wire import http, rabbit

CONNECTIONS: Final = 64
"""Each with one append under way, as clients without pipelining have."""
RABBIT_CONNECTIONS: Final = 8
SHARES: Final = (0.25, 0.5, 0.75)
SECONDS_MIN: Final = 4.0
"""Of a share: 99.9 % of a few hundred appends would be the slowest of them."""
WARM_SECONDS: Final = 1.0
OURS: Final = "ours, fsync"
REFERENCE: Final = "C reference, fsync"
RABBIT: Final = "RabbitMQ, no sync"


@dataclass
class Side:
    """A side whose peak is found before its shares are asked for."""

    stage: Stage
    name: str
    load: Callable[[float], Callable[[float], Figure]]
    """Of so many appends a second; 0: as many as it takes."""
    peak: float = 0.0
    """Appends a second, of this round."""

    def add(self) -> None:
        self.load(0)(WARM_SECONDS)
        self.stage.runners[f"{self.name}: peak"] = self._find_peak
        for share in SHARES:
            self.stage.runners[self.at(self.name, share)] = self._runner(share)

    @staticmethod
    def at(name: str, share: float) -> str:
        return f"{name}: {share:.0%} of it"

    def _find_peak(self, seconds: float) -> Figure:
        figure = self.load(0)(seconds)
        self.peak = figure.rate / BATCH
        return figure

    def _runner(self, share: float) -> Callable[[float], Figure]:
        def run(seconds: float) -> Figure:
            figure = self.load(share * self.peak)(max(seconds, SECONDS_MIN))
            asked = {"appends a second": share * self.peak, "appends": figure.extra["requests"]}
            return replace(figure, extra={**figure.extra, **asked})

        return run


def _http(stage: Stage, name: str, port: int, tree: Tree) -> None:
    request = Request(http.append(STREAM, http.ARROW, http.arrow_body(BATCH)), BATCH)
    Side(stage, name, lambda rate: HttpLoad(port, tree, [request], CONNECTIONS, rate=rate)).add()


def _rabbitmq(stage: Stage) -> None:
    with stage.side(RABBIT):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        connections = [server.connection() for _ in range(RABBIT_CONNECTIONS)]
        connections[0].create(STREAM, RABBIT_KEEPS)
        for connection in connections:
            connection.declare_publisher(STREAM)
        sockets = [connection.socket for connection in connections]
        request = rabbit.plain_request(http.values(BATCH))
        window = CONNECTIONS // RABBIT_CONNECTIONS * BATCH

        def load(rate: float) -> Callable[[float], Figure]:
            made = Load("rabbit", [request], sockets, window, tree=server.tree, rate=rate)
            return made.run

        Side(stage, RABBIT, load).add()


def _set_up(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create(STREAM)
    _http(stage, OURS, ours.port, ours.tree)
    reference = stage.stack.enter_context(running_reference(stage.directory / "c", "fsync"))
    _http(stage, REFERENCE, reference.port, reference.tree)
    _rabbitmq(stage)
    stage.notes.append(
        "Batches of 10 KB to one stream, at most 64 under way; what finds none free waits, and its "
        "latency goes on counting. Evenly spread over the time, all waited for. RabbitMQ confirms "
        "before it syncs."
    )


def _known(share: float, what: str, name: str) -> Goal:
    side = Side.at(OURS, share)

    def read(sides: Sides) -> list[float]:
        return [getattr(figure, name) for figure in sides.get(side, ())]

    return Goal(f"{share:.0%} of the peak rate: {what}", read, unit="ms")


ROWS: Final = (
    Row(
        "under-load",
        "Latency of appends of 10 KB, `fsync`, at shares of the peak rate (open loop)",
        "records",
        tuple(
            _known(share, what, name)
            for share in SHARES
            for what, name in (("p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms"))
        ),
        _set_up,
        warms_up=False,
        rounds_max=3,
    ),
)
