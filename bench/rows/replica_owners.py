"""How long appends wait while streams with replicas change their owner: by death, by hand, by a drain."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Final

import aiohttp
import httpx

from bench.figures import Figure, at_most, quantile
from bench.rows.replicas import SHARED, opened, sized
from bench.rows.steady import Steady, once_done
from bench.rows.streams import LATER
from bench.servers.nodes import FIRST, NODES, Nodes, running_nodes
from bench.turns import Row, Runner, Stage
from bench.wire import http

STREAMS: Final = 1_000
LEASE_MS: Final = 3_000
LEASE: Final = {
    "BOTTOMLESS_INGEST_LEASE_MS": str(LEASE_MS),
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "500",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
}
AGAIN_SECONDS_MAX: Final = 1.0
"""How long a producer waits that was refused: what the answer says."""
AGAIN_SECONDS: Final = 0.05
"""The same of the only producer, so that what is measured is not its wait."""
AT_ONCE: Final = 64
MOVES: Final = 100
ONE_GONE, MANY_GONE = "owner of 1 stream dies", f"owner of {STREAMS:,} streams dies"
MOVE: Final = "1 stream moves"
DRAIN: Final = f"node with {STREAMS:,} streams drains"
_numbers: Final = itertools.count()


def _names(count: int) -> list[str]:
    return [f"moving-{number:05d}" for number in range(count)]


def _death(stage: Stage, count: int) -> Runner:
    def run(_: float) -> Figure:
        directory = stage.directory / f"nodes-{next(_numbers)}"
        with running_nodes(directory, LEASE) as nodes:
            names = _names(count)
            opened(nodes, names, 3, http.arrow_body(1), 1, LATER)
            others = [nodes.deployment[name].url for name in NODES if name != FIRST]
            died = time.monotonic()
            nodes.deployment.kill(FIRST)
            before = nodes.tree.cpu_seconds()
            answered = asyncio.run(_first_answers(others, names, died))
            return _figure(answered, nodes, before)

    return run


async def _first_answers(urls: Sequence[str], names: Sequence[str], since: float) -> list[float]:
    """The seconds after which each of these streams took an append again, at any of the nodes."""
    again = AGAIN_SECONDS if len(names) == 1 else AGAIN_SECONDS_MAX
    at_once = asyncio.Semaphore(AT_ONCE)
    body = {"records": [{"value": "after"}]}

    async def ask(session: aiohttp.ClientSession, name: str) -> float:
        for url in itertools.cycle(urls):
            async with at_once:
                try:
                    path = f"{url}/v1/streams/{name}/records"
                    async with session.post(path, json=body) as answer:
                        if answer.status == httpx.codes.OK:
                            return time.monotonic() - since
                except aiohttp.ClientError:
                    pass
            # A producer waits for so long when it is told to come again.
            await asyncio.sleep(again)
        raise AssertionError

    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return await asyncio.gather(*(ask(session, name) for name in names))


def _figure(waits: Sequence[float], nodes: Nodes, cpu_before: float) -> Figure:
    ordered = sorted(waits)
    return Figure(
        units=len(waits),
        seconds=ordered[-1],
        cpu_seconds=nodes.tree.cpu_seconds() - cpu_before,
        rss_mib=nodes.tree.rss_mib(),
        p50_ms=quantile(ordered, 0.5) * 1000,
        p99_ms=quantile(ordered, 0.99) * 1000,
        p999_ms=ordered[-1] * 1000,
        extra={"s until the first": ordered[0], "s until the last": ordered[-1]},
    )


def _failover(stage: Stage) -> None:
    stage.runners[ONE_GONE] = _death(stage, 1)
    stage.runners[MANY_GONE] = _death(stage, sized(STREAMS, stage.seconds))
    stage.notes.append(SHARED)
    stage.notes.append(
        f"A lease of {LEASE_MS / 1000:g} s. Seconds count from the SIGKILL of the owner to the answer of "
        f"another node; producers of {STREAMS:,} streams ask again after a second, as the answer "
        f"says, the only one each {AGAIN_SECONDS * 1000:g} ms."
    )


def _move(stage: Stage) -> None:
    nodes = stage.stack.enter_context(running_nodes(stage.directory / "nodes"))
    stage.runners[MOVE] = _moves(nodes)
    stage.notes.append(
        "A producer sends numbered records of 100 bytes one after the other to one of the nodes, and "
        "again what is refused. A pause is the longest that it waited for an answer while a move was "
        "under way."
    )


def _moves(nodes: Nodes) -> Runner:
    (stream,) = names = _names(1)

    def run(seconds: float) -> Figure:
        opened(nodes, names, 3, http.arrow_body(1), 1, LATER)
        tree = nodes.tree
        before, began = tree.cpu_seconds(), time.monotonic()
        with Steady(nodes.deployment[FIRST].url, stream) as producer:
            count = sized(MOVES, seconds)
            moves = [_moved(nodes, stream, producer) for _ in range(count)]
        pauses = sorted(pause for pause, _ in moves)
        told = sorted(told for _, told in moves)
        return Figure(
            units=count,
            seconds=time.monotonic() - began,
            cpu_seconds=tree.cpu_seconds() - before,
            rss_mib=tree.rss_mib(),
            p50_ms=quantile(pauses, 0.5) * 1000,
            p99_ms=quantile(pauses, 0.99) * 1000,
            p999_ms=pauses[-1] * 1000,
            extra={
                "refusals": float(producer.refusals),
                "ms p99 as `replicas move` says": quantile(told, 0.99),
            },
        )

    return run


def _moved(nodes: Nodes, stream: str, producer: Steady) -> tuple[float, float]:
    """Move a stream to another node.

    Returns the seconds for which its producer waited at most, and the milliseconds for which the
    stream took nothing, as the operation says.
    """
    owner = nodes.owner(stream)
    target = NODES[(NODES.index(owner) + 1) % len(NODES)]
    nodes.await_in_sync([stream])
    began = time.monotonic()
    path = f"{nodes.url}/v1/admin/streams/{stream}/owner"
    asked = httpx.post(path, json={"node": nodes.node_id(target)}, timeout=60)
    told = once_done(nodes.url, asked)["pause_ms"]
    producer.await_answer()
    return producer.longest_since(began), float(told or 0)


def _drain(stage: Stage) -> None:
    def run(_: float) -> Figure:
        directory = stage.directory / f"nodes-{next(_numbers)}"
        with running_nodes(directory) as nodes:
            names = _names(sized(STREAMS, stage.seconds))
            opened(nodes, names, 3, http.arrow_body(1), 1, LATER)
            began = time.monotonic()
            nodes.deployment[FIRST].stop()
            took = time.monotonic() - began
            given = len(names) - nodes.owned_by(FIRST, names)
            return Figure(
                units=len(names),
                seconds=took,
                rss_mib=nodes.tree.rss_mib(),
                extra={"streams that another node owns after it": given},
            )

    stage.runners[DRAIN] = run
    stage.notes.append(
        "Nothing of these streams is in object storage, so each has to be given away."
    )


ROWS: Final = (
    Row(
        "replicas-failover",
        "The owner of streams with 3 replicas is killed: until another node takes appends, lease 3 s",
        "streams",
        (
            at_most("1 stream: ≤ 6 s", ONE_GONE, lambda figure: figure.seconds, 6, "s"),
            at_most("1,000 streams: all ≤ 15 s", MANY_GONE, lambda figure: figure.seconds, 15, "s"),
        ),
        _failover,
        warms_up=False,
        rounds_max=1,
        guess_seconds=140,
    ),
    Row(
        "replicas-move",
        "100 planned moves of a stream with 3 replicas under a producer",
        "moves",
        (at_most("pause p99 ≤ 0.5 s", MOVE, lambda figure: figure.p99_ms / 1000, 0.5, "s"),),
        _move,
        warms_up=False,
        rounds_max=1,
        guess_seconds=90,
    ),
    Row(
        "replicas-drain",
        "A node that owns 1,000 streams with 3 replicas is stopped",
        "streams",
        (at_most("≤ 20 s", DRAIN, lambda figure: figure.seconds, 20, "s"),),
        _drain,
        warms_up=False,
        rounds_max=1,
        guess_seconds=120,
    ),
)
