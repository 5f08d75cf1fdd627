"""What other nodes have to do with reads: one that was away gets what it missed, and followers answer readers."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import httpx

from bench.figures import Figure, Goal, Sides
from bench.pump import HttpLoad, Request
from bench.rows.append import RECORDS_1M
from bench.rows.replay import LOCAL_ONLY, PAGE_BYTES
from bench.rows.replicas import SHARED, cpu_ratios, opened, sized
from bench.rows.steady import Steady
from bench.servers.nodes import FIRST, NODES, Nodes, running_nodes
from bench.tree import Tree
from bench.turns import Row, Runner, Stage
from bench.wire import http

MISSED: Final = 1_024
"""Appends of 1 MiB that a node misses."""
BACKLOG: Final = 100
"""Appends of 1 MiB that each reader reads."""
READERS: Final = 20
ALONE_SECONDS: Final = 6.0
PAUSE_SECONDS: Final = 0.02
"""Between two records of the producer beside it."""
QUICK: Final = {"BOTTOMLESS_INGEST_REPLICA_JOIN_MS": "100"}
"""A node counts as soon as it has everything; otherwise a wait were measured."""
REPLAY, CATCH_UP, ALONE = "local replay", "catch-up", "appends alone"
ON, OFF = "followers answer", "the owner alone answers"


def fill(nodes: Nodes, request: Request, count: int) -> None:
    """Send it so many times to the first node."""
    HttpLoad(nodes.port(FIRST), nodes.tree, [request] * count, 4, again=False)(0)


def pages(nodes: Nodes, reader: str, stream: str) -> list[Request]:
    """The requests that read a stream as chunks, found by reading it once."""
    found: list[Request] = []
    with httpx.Client(base_url=nodes.deployment[reader].url, timeout=60) as client:
        while True:
            offset = sum(one.units for one in found)
            answer = client.get(
                f"/v1/streams/{stream}/records",
                params={"offset": offset, "max_bytes": PAGE_BYTES},
                headers={"Accept": http.CHUNKS, "Accept-Encoding": "identity"},
            ).raise_for_status()
            after = int(answer.headers["Page-Next-Offset"])
            if after == offset:
                return found
            request = http.page(stream, offset, http.CHUNKS, PAGE_BYTES)
            found.append(Request(request, after - offset))


def _catch_up(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes", QUICK))
    count, away = sized(MISSED, stage.seconds), NODES[-1]
    (request,) = opened(nodes, ["missed"], 3, http.arrow_body(RECORDS_1M), RECORDS_1M, LOCAL_ONLY)
    opened(nodes, ["beside"], 3, http.arrow_body(1), 1)
    nodes.deployment.kill(away)
    fill(nodes, request, count)
    read = pages(nodes, "reader", "missed")

    def replay(_: float) -> Figure:
        figure = HttpLoad(nodes.port("reader"), nodes.tree, read, 1, again=False)(0)
        return replace(figure, units=count, units_all=count, p50_ms=0.0, p99_ms=0.0, p999_ms=0.0)

    def alone(_: float) -> Figure:
        return _beside(nodes, lambda: _wait(ALONE_SECONDS))

    def caught_up(_: float) -> Figure:
        def work() -> float:
            nodes.deployment[away].start()
            began = time.monotonic()
            nodes.await_in_sync(["missed"])
            return time.monotonic() - began

        return replace(_beside(nodes, work), units=count)

    stage.runners |= {REPLAY: replay, ALONE: alone, CATCH_UP: caught_up}
    stage.notes.append(SHARED)
    stage.notes.append(
        f"A node is away while {count} appends of 1 MiB are taken; it catches up from when it is ready "
        "until it counts as in sync. Latencies are those of a producer of another stream on the same "
        f"nodes, with {1 / PAUSE_SECONDS:g} records of 100 bytes a second. The replay is one reader of chunks."
    )


def _wait(seconds: float) -> float:
    # The time itself is what is measured: what appends take while nothing else goes on.
    time.sleep(seconds)
    return seconds


def _beside(nodes: Nodes, work: Callable[[], float]) -> Figure:
    """Do something, which says how long it took, while a producer sends to another stream."""
    before = nodes.tree.cpu_seconds()
    with Steady(nodes.deployment[FIRST].url, "beside", PAUSE_SECONDS) as producer:
        producer.await_answer()
        began = time.monotonic()
        seconds = work()
        producer.await_answer()
        return Figure(
            units=1,
            seconds=seconds,
            cpu_seconds=max(nodes.tree.cpu_seconds() - before, 0.0),
            rss_mib=nodes.tree.rss_mib(),
            p50_ms=producer.p50_since(began) * 1000,
            p99_ms=producer.p99_since(began) * 1000,
        )


def _over(
    value: Callable[[Figure], float], side: str, beside: str
) -> Callable[[Sides], list[float] | None]:
    def read(sides: Sides) -> list[float] | None:
        pairs = zip(sides.get(side, ()), sides.get(beside, ()), strict=False)
        return [value(one) / value(other) for one, other in pairs] or None

    return read


def _readers(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    (request,) = opened(nodes, ["backlog"], 3, http.arrow_body(RECORDS_1M), RECORDS_1M, LOCAL_ONLY)
    fill(nodes, request, sized(BACKLOG, stage.seconds))
    nodes.await_in_sync(["backlog"])
    for number, (side, followers) in enumerate(((ON, "true"), (OFF, "false")), 2):
        settings = {"BOTTOMLESS_READER_FOLLOWERS": followers}
        name = f"reader-{number}"
        nodes.deployment.services[name] = nodes.deployment.another("reader", number, settings)
        nodes.deployment[name].start()
        read = pages(nodes, name, "backlog")
        stage.runners[side] = _of_the_owner(nodes, name, read)
    stage.notes.append(
        f"{READERS} readers of the same stream, as chunks, of which nothing is in object storage. CPU "
        "seconds are those of the node that owns it."
    )


def _of_the_owner(nodes: Nodes, reader: str, read: list[Request]) -> Runner:
    """Readers that each read all pages; the figures are those of the owner, the others' stand beside."""
    each = [page for page in read for _ in range(READERS)]
    others = Tree(*(nodes.deployment[name].pid for name in NODES if name != FIRST))

    def run(_: float) -> Figure:
        before = others.cpu_seconds()
        load = HttpLoad(nodes.port(reader), nodes.tree_of(FIRST), each, READERS, again=False)
        figure = load(0)
        spent = others.cpu_seconds() - before
        return replace(
            figure, extra={**figure.extra, "CPU s of followers": spent, "CPU s": figure.cpu_seconds}
        )

    return run


ROWS: Final = (
    Row(
        "replicas-catch-up",
        "A node that was away gets 1 GiB of a stream with 3 replicas",
        "MiB",
        (
            Goal(
                "≥ 0.5 x local replay",
                _over(lambda figure: figure.rate, CATCH_UP, REPLAY),
                at_least=0.5,
            ),
            Goal(
                "append p99 ≤ 1.5 x meanwhile",
                _over(lambda figure: figure.p99_ms, CATCH_UP, ALONE),
                at_most=1.5,
            ),
        ),
        _catch_up,
        warms_up=False,
        rounds_max=1,
        guess_seconds=120,
    ),
    Row(
        "replicas-readers",
        f"A backlog that {READERS} readers read, with followers that answer beside without",
        "records",
        (Goal("owner's CPU ≤ 0.5 x", cpu_ratios(ON, OFF), at_most=0.5),),
        _readers,
        warms_up=False,
        rounds_max=3,
        guess_seconds=100,
    ),
)
