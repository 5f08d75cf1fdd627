"""The Python clients, ours and the peers', as their users call them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, at_most, times
from bench.install import peers_python
from bench.place import ROOT
from bench.pump import SETTLE_SECONDS, HttpLoad, Request
from bench.rows.append import LARGE_CONNECTIONS, RECORDS_1M, STREAM
from bench.servers.kafka import running_kafka
from bench.servers.nats import running_nats
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.servers.valkey import running_valkey
from bench.tree import Tree
from bench.turns import Row, Runner, Stage
from bench.wire import http, kafka, nats

CLIENTS: Final = ROOT / "bench" / "clients"
CLIENT_SECONDS_MAX: Final = 120
SERVER: Final = "ours, the server's own rate"
SENDING: Final = "client CPU s/M"
"""Of a client that says what sending cost it, without the start of its program."""


def client(
    python: str | Path, script: str, tree: Tree, before: Sequence[str], after: Sequence[str] = ()
) -> Runner:
    """A program of its own that takes its seconds between these arguments."""

    def run(seconds: float) -> Figure:
        tree.settle(SETTLE_SECONDS)
        spent = tree.cpu_seconds()
        with tree.watched() as rss:
            done = subprocess.run(
                [str(python), str(CLIENTS / script), *before, str(seconds), *after],
                capture_output=True,
                text=True,
                check=False,
                timeout=CLIENT_SECONDS_MAX,
            )
            if done.returncode:
                raise RuntimeError(f"the client failed: {done.stderr[-300:]}")
            busy = tree.cpu_seconds() - spent
            tree.settle(SETTLE_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        sending = answer.get("cpu_sending")
        return Figure(
            units=answer["units"],
            seconds=answer["seconds"],
            cpu_seconds=tree.cpu_seconds() - spent,
            cpu_busy_seconds=busy,
            generator_cpu_seconds=answer["cpu"],
            rss_mib=max(rss),
            extra={} if sending is None else {SENDING: sending / answer["units"] * 1e6},
        )

    return run


def _set_up(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create(STREAM)
    table = Request(http.append(STREAM, http.ARROW, http.arrow_body(RECORDS_1M)), RECORDS_1M)
    stage.runners[SERVER] = HttpLoad(ours.port, ours.tree, [table], LARGE_CONNECTIONS)
    for way in ("send", "send_many", "send_table"):
        stage.runners[f"ours, {way}"] = client(
            sys.executable, "ours.py", ours.tree, [ours.url, STREAM], [way]
        )
    with stage.side("rstream send_batch"):
        python = peers_python()
        rabbit = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = rabbit.version
        rabbit.connection().create(STREAM)
        for way in ("send_batch", "send"):
            stage.runners[f"rstream {way}"] = client(
                python, "rabbit.py", rabbit.tree, [str(rabbit.port), STREAM], [way]
            )
    with stage.side("aiokafka"):
        broker = stage.stack.enter_context(running_kafka(stage.directory / "kafka"))
        kafka.Connection(broker.port).create()
        stage.runners["aiokafka"] = client(
            peers_python(), "others.py", broker.tree, ["kafka", str(broker.port)]
        )
    with stage.side("nats-py"):
        server = stage.stack.enter_context(running_nats(stage.directory / "nats"))
        nats.Connection(server.port).create()
        stage.runners["nats-py"] = client(
            peers_python(), "others.py", server.tree, ["nats", str(server.port)]
        )
    with stage.side("redis-py, everysec"):
        store = stage.stack.enter_context(running_valkey(stage.directory / "valkey", "everysec"))
        stage.runners["redis-py, everysec"] = client(
            peers_python(), "others.py", store.tree, ["valkey", str(store.port)]
        )


ROWS: Final = (
    Row(
        "clients",
        "Python clients: records of 100 bytes, acknowledged",
        "records",
        (
            times("send ≥ 2 x rstream send_batch", "ours, send", "rstream send_batch", 2),
            times(
                "send_table ≥ 10 x rstream send_batch",
                "ours, send_table",
                "rstream send_batch",
                10,
            ),
            at_most(
                "send_table: client ≤ 0.25 CPU s per million records",
                "ours, send_table",
                lambda figure: figure.extra[SENDING],
                0.25,
                "CPU s/M",
            ),
            times("send_table ≥ 0.8 x the server's own rate", "ours, send_table", SERVER, 0.8),
        ),
        _set_up,
    ),
)
