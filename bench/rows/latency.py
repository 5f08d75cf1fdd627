"""One record at a time, confirmed: what a single call costs when nobody else asks."""

from typing import Final

import orjson

from bench.figures import at_most
from bench.pump import HttpLoad, Load, Request, connect
from bench.rows.append import STREAM
from bench.servers.nats import running_nats
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.servers.reference import running_reference
from bench.servers.valkey import running_valkey
from bench.turns import Row, Stage
from bench.wire import http, nats, rabbit, resp


def _set_up(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create(STREAM)
    (value,) = http.values(1)
    body = orjson.dumps({"records": [{"value": value.decode()}]})
    request = Request(http.append(STREAM, http.JSON, body), 1)
    stage.runners["ours, fsync"] = HttpLoad(ours.port, ours.tree, [request], 1)
    with stage.side("C reference, fsync"):
        least = stage.stack.enter_context(running_reference(stage.directory / "c", "fsync"))
        stage.runners["C reference, fsync"] = HttpLoad(least.port, least.tree, [request], 1)
    with stage.side("RabbitMQ"):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        talk = server.connection()
        talk.create(STREAM)
        talk.declare_publisher(STREAM)
        plain = rabbit.plain_request([value])
        stage.runners["RabbitMQ"] = Load("rabbit", [plain], [talk.socket], 1, tree=server.tree).run
    with stage.side("NATS JetStream"):
        mesh = stage.stack.enter_context(running_nats(stage.directory / "nats"))
        stage.versions["NATS"] = mesh.version
        line = nats.Connection(mesh.port)
        line.create()
        message = nats.publish([value])
        stage.runners["NATS JetStream"] = Load(
            "nats", [message], [line.socket], 1, tree=mesh.tree
        ).run
    with stage.side("Valkey, always"):
        store = stage.stack.enter_context(running_valkey(stage.directory / "valkey", "always"))
        stage.versions["Valkey"] = store.version
        entry = resp.add([value])
        stage.runners["Valkey, always"] = Load(
            "resp", [entry], [connect(store.port)], 1, tree=store.tree
        ).run


ROWS: Final = (
    Row(
        "one-record",
        "One JSON record of 100 bytes, one connection, durability `fsync`",
        "records",
        (
            at_most("p50 ≤ 1 ms", "ours, fsync", lambda figure: figure.p50_ms, 1, "ms"),
            at_most("p50 ≤ 0.6 ms", "ours, fsync", lambda figure: figure.p50_ms, 0.6, "ms"),
            at_most("p99 ≤ 5 ms", "ours, fsync", lambda figure: figure.p99_ms, 5, "ms"),
            at_most("p99 ≤ 2 ms", "ours, fsync", lambda figure: figure.p99_ms, 2, "ms"),
        ),
        _set_up,
    ),
)
