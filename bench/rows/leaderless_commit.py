"""What a commit of leaderless appends takes, alone and where nodes meet."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from support.leaderless import SERVED, WalWriter, a_leaderless_record
from support.separate_processes import FourProcesses
from support.valkey import another_client, running_valkey

from bench.figures import Figure, at_most, quantile, times
from bench.pump import HttpLoad
from bench.rows.leaderless import (
    LEADERLESS,
    RECORDS,
    appends,
    await_taken,
    numbers,
)
from bench.tree import Tree
from bench.turns import Row, Stage
from bottomless.model.names import StreamId, StreamName
from bottomless_server.coordination.redis import RedisCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.common.context import now_ms
from bottomless_server.stores import tails
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import Streams

COMMIT_STREAMS: Final = 256
COMMIT_SIDE: Final = "EXEC of 256 streams"
CONTENDED_STREAMS: Final = 100
CONTENDED_CONNECTIONS: Final = 64
CONTENDED_LINGER_MS: Final = "5"
"""So short that commits are what appends wait for, and not the linger."""
ONE_NODE, FOUR_NODES = "one node, 100 streams", "four nodes, the same 100 streams"


@dataclass
class _Stores:
    """What a writer of tests writes to, with a real Valkey."""

    drive: MemoryDrive
    coordination: Any
    streams: Streams

    def clock(self) -> int:
        return now_ms()


async def _commits(url: str, seconds: float) -> list[float]:
    """How long commits of 256 streams took, one after the other, in seconds."""
    coordination = RedisCoordination.connect(url)
    stores = _Stores(MemoryDrive(), coordination, Streams(coordination, SERVED))
    stores.streams.generation = await check_generation(stores.drive, coordination)
    names = [StreamId(f"{next(numbers):032x}") for _ in range(COMMIT_STREAMS)]
    for name in names:
        record = a_leaderless_record(
            stores.streams.generation or 0, stream_id=name, name=StreamName(f"commit-{name}")
        )
        await tails.create(stores.streams, record)
    writer = WalWriter(stores)
    await writer.begin()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        packed = await writer.put(*names)
        begun = time.perf_counter()
        await writer.commit(packed)
        taken.append(time.perf_counter() - begun)
    await coordination.aclose()
    return taken


def _set_up_commit(stage: Stage) -> None:
    alone = stage.stack.enter_context(running_valkey(stage.directory / "alone"))

    def commit(seconds: float) -> Figure:
        with another_client(alone.url) as client:
            client.flushall()
        taken = sorted(asyncio.run(_commits(alone.url, seconds)))
        return Figure(
            units=len(taken),
            seconds=sum(taken),
            p50_ms=quantile(taken, 0.5) * 1000,
            p99_ms=quantile(taken, 0.99) * 1000,
            p999_ms=quantile(taken, 0.999) * 1000,
        )

    stage.runners[COMMIT_SIDE] = commit
    valkey = stage.stack.enter_context(running_valkey(stage.directory / "valkey"))
    settings = {
        "BOTTOMLESS_INGEST_PROFILES": "leaderless",
        "BOTTOMLESS_INGEST_WAL_LINGER_MS": CONTENDED_LINGER_MS,
    }
    nodes = FourProcesses(Path(stage.directory), valkey.url, settings)
    for number in (2, 3, 4):
        own = {"BOTTOMLESS_INGEST_URL": nodes.internal_url(f"ingest-{number}")}
        nodes.services[f"ingest-{number}"] = nodes.another("ingest", number, own)
    for process in nodes.services.values():
        stage.stack.enter_context(process)
    ingest = [name for name in nodes.services if name.startswith("ingest")]
    ports = [int(nodes[name].url.rsplit(":", 1)[1]) for name in ingest]
    names = [f"contended-{number}" for number in range(CONTENDED_STREAMS)]
    for name in names:
        url = f"{nodes['manifest'].url}/v1/streams/{name}"
        httpx.put(url, json=LEADERLESS, timeout=60).raise_for_status()
    tree = Tree(valkey.pid, *(process.pid for process in nodes.services.values()))
    requests = appends(names, RECORDS)
    for port in ports:
        await_taken(f"http://127.0.0.1:{port}/v1/streams/{names[0]}")
    stage.runners[ONE_NODE] = HttpLoad(ports[0], tree, requests, CONTENDED_CONNECTIONS)
    stage.runners[FOUR_NODES] = HttpLoad(tuple(ports), tree, requests, CONTENDED_CONNECTIONS)
    stage.notes.append(
        "The EXEC is what an ingest node does between a durable object and its answers, Valkey with "
        "`appendfsync always` included. One node and four have the same 64 connections, and appends of "
        "1 KB to the same streams in turn, with a linger of 5 ms."
    )


ROWS: Final = (
    Row(
        "leaderless-commit",
        "Commits of leaderless appends, and four nodes that write to the same streams",
        "units",
        (
            at_most("p50 ≤ 10 ms", COMMIT_SIDE, lambda figure: figure.p50_ms, 10, "ms"),
            times("four nodes ≥ 0.7 x one", FOUR_NODES, ONE_NODE, 0.7),
        ),
        _set_up_commit,
    ),
)
