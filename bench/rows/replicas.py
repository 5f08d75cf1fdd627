"""Appends to streams that three nodes hold, beside streams that one of them holds alone."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import orjson

from bench.figures import Figure, Goal, Sides, at_most, times
from bench.pump import HttpLoad, Load, Request
from bench.rows.append import (
    LARGE_CONNECTIONS,
    RABBIT_KEEPS,
    RECORDS_1M,
    RECORDS_64K,
    SMALL_CONNECTIONS,
    TOUCHED_BYTES,
)
from bench.rows.many import STREAMS, UNDER_WAY
from bench.rows.streams import BATCH, LATER, OPENING
from bench.servers.nodes import FIRST, Nodes, running_nodes
from bench.servers.rabbitmq import running_rabbitmq_nodes
from bench.turns import Row, Runner, Stage
from bench.wire import http, rabbit

LARGE, LARGE_ONE = "1 MiB, 3 replicas", "1 MiB, 1 replica"
SMALL, SMALL_ONE = "64 KiB, 3 replicas", "64 KiB, 1 replica"
RECORD, RECORD_ONE = "3 replicas", "1 replica"
MANY, MANY_ONE = f"{STREAMS:,} streams, 3 replicas", f"{STREAMS:,} streams, 1 replica"
OURS: Final = "ours, 3 nodes, synced on each"
RABBIT: Final = "RabbitMQ plain, 3 nodes, no sync"
BETWEEN: Final = "requests between nodes an append"
OPENING_TRIES: Final = 5
DEFAULT_SECONDS: Final = 3.0
"""What `./dev bench` gives a side of a round."""
SHARED: Final = (
    "Three nodes and all that they need share the cores and the disk of one machine, so CPU seconds, "
    "which are those of all processes, say more than rates."
)


def sized(whole: int, seconds: float) -> int:
    """So many as there are to be; fewer in a run that shall be shorter than the default."""
    return max(1, min(whole, int(whole * seconds / DEFAULT_SECONDS)))


def opened(
    nodes: Nodes,
    streams: list[str],
    replicas: int,
    body: bytes,
    records: int,
    config: Mapping[str, Any] | None = None,
) -> list[Request]:
    """Make streams, have the first node own them, and return an append to each.

    Returns when as many nodes as there are to be are in sync.
    """
    nodes.create(streams, replicas, **(config or {}))
    appends = [Request(http.append(one, http.ARROW, body), records) for one in streams]
    first = HttpLoad(nodes.port(FIRST), nodes.tree, appends, OPENING, again=False)
    for _ in range(OPENING_TRIES):
        # An append that comes while too few nodes follow yet is refused, and to be sent again.
        with suppress(RuntimeError):
            if not first(0).extra["refusals"]:
                break
    if replicas > 1:
        nodes.await_in_sync(streams, replicas)
    return appends


def _append(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    for side, replicas, records, connections in (
        (LARGE, 3, RECORDS_1M, LARGE_CONNECTIONS),
        (LARGE_ONE, 1, RECORDS_1M, LARGE_CONNECTIONS),
        (SMALL, 3, RECORDS_64K, SMALL_CONNECTIONS),
        (SMALL_ONE, 1, RECORDS_64K, SMALL_CONNECTIONS),
    ):
        stream = f"append-{records}-{replicas}"
        requests = opened(nodes, [stream], replicas, http.arrow_body(records), records)
        load = HttpLoad(nodes.port(FIRST), nodes.tree, requests, connections)
        stage.runners[side] = _counted(nodes, load, records)
    stage.notes.append(SHARED)


def _one_record(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    (value,) = http.values(1)
    body = orjson.dumps({"records": [{"value": value.decode()}]})
    for side, replicas in ((RECORD, 3), (RECORD_ONE, 1)):
        stream = f"record-{replicas}"
        opened(nodes, [stream], replicas, http.arrow_body(1), 1)
        request = Request(http.append(stream, http.JSON, body), 1)
        stage.runners[side] = HttpLoad(nodes.port(FIRST), nodes.tree, [request], 1)
    stage.notes.append(SHARED)


def _streams(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    body = http.arrow_body(BATCH)
    for side, replicas in ((MANY, 3), (MANY_ONE, 1)):
        names = [f"many-{replicas}-{number:05d}" for number in range(sized(STREAMS, stage.seconds))]
        requests = opened(nodes, names, replicas, body, BATCH, LATER)
        load = HttpLoad(nodes.port(FIRST), nodes.tree, requests, UNDER_WAY)
        stage.runners[side] = _counted(nodes, load, BATCH)
    stage.notes.append(SHARED)


def _rabbitmq(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    requests = opened(nodes, ["beside"], 3, http.arrow_body(RECORDS_1M), RECORDS_1M)
    stage.runners[OURS] = HttpLoad(nodes.port(FIRST), nodes.tree, requests, LARGE_CONNECTIONS)
    with stage.side(RABBIT):
        servers = stage.stack.enter_context(running_rabbitmq_nodes(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = servers.version
        # Each stream has its leader and all its publishers on the node where it was made.
        connections = [servers.connection() for _ in range(2)]
        connections[0].create("beside", RABBIT_KEEPS)
        for one in connections:
            one.declare_publisher("beside")
        stage.runners[RABBIT] = Load(
            "rabbit",
            [rabbit.plain_request(http.values(2_000))],
            [one.socket for one in connections],
            20_000,
            tree=servers.tree,
        ).run
    stage.notes.append(SHARED)
    stage.notes.append(
        "RabbitMQ answers when a majority of its nodes has written, and none of them syncs."
    )


def _counted(nodes: Nodes, load: HttpLoad, records: int) -> Runner:
    """A load, with the requests between nodes that each append of so many records took."""

    def run(seconds: float) -> Figure:
        before = nodes.requests_between()
        figure = load(seconds)
        appends = (figure.units_all or figure.units) / records
        told = {BETWEEN: (nodes.requests_between() - before) / appends}
        return replace(figure, extra={**figure.extra, **told})

    return run


def cpu_ratios(side: str, beside: str) -> Callable[[Sides], list[float] | None]:
    """The CPU seconds of one side over those of another for the same records, round by round."""

    def read(sides: Sides) -> list[float] | None:
        pairs = zip(sides.get(side, ()), sides.get(beside, ()), strict=False)
        return [one.cpu_per_million / other.cpu_per_million for one, other in pairs] or None

    return read


ROWS: Final = (
    Row(
        "replicas-append",
        "Append Arrow batches to a stream with 3 replicas, `fsync` on three nodes of one machine",
        "records",
        (
            times("1 MiB: ≥ 0.35 x 1 replica", LARGE, LARGE_ONE, 0.35),
            Goal("1 MiB: CPU ≤ 3.2 x 1 replica", cpu_ratios(LARGE, LARGE_ONE), at_most=3.2),
            times("64 KiB: ≥ 0.35 x 1 replica", SMALL, SMALL_ONE, 0.35),
            Goal("64 KiB: CPU beside 1 replica", cpu_ratios(SMALL, SMALL_ONE)),
        ),
        _append,
        rounds_max=4,
        guess_seconds=170,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "replicas-rabbitmq",
        "The same with batches of 1 MiB beside RabbitMQ with 3 nodes",
        "records",
        (times("≥ 1.5 x RabbitMQ plain batches", OURS, RABBIT, 1.5),),
        _rabbitmq,
        guess_seconds=120,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "replicas-one-record",
        "One JSON record of 100 bytes, one connection, 3 replicas",
        "records",
        (
            at_most("p50 ≤ 2.5 ms", RECORD, lambda figure: figure.p50_ms, 2.5, "ms"),
            at_most("p99 ≤ 12 ms", RECORD, lambda figure: figure.p99_ms, 12, "ms"),
        ),
        _one_record,
        guess_seconds=80,
    ),
    Row(
        "replicas-streams",
        "1,000 streams with 3 replicas appended at once, batches of 10 KB",
        "records",
        (
            times("≥ 0.3 x 1 replica", MANY, MANY_ONE, 0.3),
            Goal("CPU beside 1 replica", cpu_ratios(MANY, MANY_ONE)),
            at_most(
                "≤ 0.1 requests between nodes an append",
                MANY,
                lambda figure: figure.extra[BETWEEN],
                0.1,
                "",
            ),
        ),
        _streams,
        rounds_max=4,
        guess_seconds=150,
    ),
)
