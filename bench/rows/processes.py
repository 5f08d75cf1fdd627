"""Several processes on one machine: two ingest nodes with a stream each, two readers of streams."""

from pathlib import Path
from typing import Final

import httpx
from support.processes import Process
from support.separate_processes import TwoNodes
from support.valkey import running_valkey

from bench.figures import Goal, ratios
from bench.pump import HttpLoad, Request
from bench.rows.append import RECORDS_1M
from bench.tree import Tree
from bench.turns import Row, Stage
from bench.wire import http

CONNECTIONS: Final = 4
PAGE_BYTES: Final = 8 << 20
FILLED: Final = 100
"""Appends of 1 MiB to each stream that is read."""


def _port(process: Process) -> int:
    return int(process.url.rsplit(":", 1)[1])


def _set_up(stage: Stage) -> None:
    valkey = stage.stack.enter_context(running_valkey(stage.directory / "valkey"))
    deployment = TwoNodes(Path(stage.directory), valkey.url)
    deployment.services["reader-2"] = deployment.another("reader")
    for process in deployment.services.values():
        stage.stack.enter_context(process)
    tree = Tree(valkey.pid, *(process.pid for process in deployment.services.values()))
    nodes = (_port(deployment["ingest"]), _port(deployment["ingest-2"]))
    readers = (_port(deployment["reader"]), _port(deployment["reader-2"]))
    homes = {"a": nodes[0], "b": nodes[1], "c": nodes[0]}
    appends = {}
    body = http.arrow_body(RECORDS_1M)
    for stream, node in homes.items():
        httpx.put(f"{deployment['manifest'].url}/v1/streams/{stream}", json={}).raise_for_status()
        appends[stream] = Request(http.append(stream, http.ARROW, body), RECORDS_1M)
        HttpLoad(node, tree, [appends[stream]] * FILLED, 1, again=False)(0)
    stage.runners["1 ingest process, 2 streams"] = HttpLoad(
        nodes[0], tree, [appends["a"], appends["c"]], CONNECTIONS
    )
    stage.runners["2 ingest processes, a stream each"] = HttpLoad(
        nodes, tree, [appends["a"], appends["b"]], CONNECTIONS
    )
    pages = [_first_page(deployment["reader"].url, stream) for stream in ("a", "b")]
    stage.runners["1 reader process, 2 connections"] = HttpLoad(readers[0], tree, pages, 2)
    stage.runners["2 reader processes, one each"] = HttpLoad(readers, tree, pages, 2)
    stage.notes.append("CPU and memory are those of all six processes and Valkey.")


def _first_page(url: str, stream: str) -> Request:
    """The same page over and over: it is in the cache, so that the process is measured."""
    answer = httpx.get(
        f"{url}/v1/streams/{stream}/records",
        params={"offset": 0, "max_bytes": PAGE_BYTES},
        headers={"Accept": http.CHUNKS, "Accept-Encoding": "identity"},
        timeout=60,
    ).raise_for_status()
    count = int(answer.headers["Page-Next-Offset"])
    return Request(http.page(stream, 0, http.CHUNKS, PAGE_BYTES), count)


ROWS: Final = (
    Row(
        "processes",
        "Two processes instead of one, on 2 cores: ingest (1 MiB, `fsync`) and reader (pages of 8 MiB)",
        "records",
        (
            Goal(
                "2 ingest processes over 1",
                lambda sides: ratios(
                    sides, "2 ingest processes, a stream each", "1 ingest process, 2 streams"
                ),
            ),
            Goal(
                "2 reader processes over 1",
                lambda sides: ratios(
                    sides, "2 reader processes, one each", "1 reader process, 2 connections"
                ),
            ),
        ),
        _set_up,
    ),
)
