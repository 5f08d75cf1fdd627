"""The sides of rows of queues: ours and the peers', each with the same ways to publish and to work.

In every run of a side its queue is new. A message is confirmed as safely as the side does it: ours and
quorum queues after a sync, classic queues after a write, JetStream, Valkey and beanstalkd after a sync
too. Acknowledgements of RabbitMQ and of JetStream are not answered.
"""

import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from bench.figures import Figure
from bench.install import beanstalkd
from bench.pump import Load, Request, connect
from bench.servers.beanstalkd import running_beanstalkd
from bench.servers.nats import running_nats
from bench.servers.ours import Ours
from bench.servers.rabbitmq import Rabbit, running_rabbitmq
from bench.servers.valkey import running_valkey
from bench.tree import Tree
from bench.turns import Runner, Stage
from bench.wire import amqp, beanstalk, nats, queues, resp

OURS: Final = "ours"
QUORUM: Final = "RabbitMQ, quorum queue"
CLASSIC: Final = "RabbitMQ, classic queue v2"
NATS: Final = "NATS JetStream, sync always"
VALKEY: Final = "Valkey stream with a group, always"
BEANSTALKD: Final = "beanstalkd, -f 0"
ARGUMENTS: Final[Mapping[str, Mapping[str, str | int]]] = {
    QUORUM: {"x-queue-type": "quorum"},
    CLASSIC: {"x-queue-type": "classic", "x-queue-version": 2},
}
CALL_SECONDS: Final = 60
SYNCED_ONE_BY_ONE: Final = 10
_NUMBERS: Final = count()


@dataclass(frozen=True)
class Shape:
    """A load: so large messages, so many in a request, over so many connections."""

    size: int = 1_024
    batch: int = 100
    connections: int = 8

    def values(self) -> list[bytes]:
        """Messages of one request, all different."""
        return [b"%010d" % number + b"x" * (self.size - 10) for number in range(self.batch)]


BATCHES: Final = Shape()
SINGLES: Final = Shape(batch=1, connections=1)


class Lane(NamedTuple):
    """A connection that is ready, what publishes on it and what takes."""

    socket: socket.socket
    put: Request
    take: Request


class Side(ABC):
    """A server with queues, and how a load speaks to it."""

    protocol: str
    tree: Tree
    batch_max: int = 1_000
    """Of messages that are on their way at once: where each is synced by itself a larger batch ends late
    and is no faster."""

    def __init__(self) -> None:
        self._last: str | None = None

    def fresh(self) -> str:
        """The name of a new queue; the one before is gone."""
        if self._last is not None:
            self.delete(self._last)
        self._last = f"bench-{next(_NUMBERS)}"
        self.create(self._last)
        return self._last

    @abstractmethod
    def create(self, queue: str) -> None:
        """Make a durable queue."""

    @abstractmethod
    def delete(self, queue: str) -> None:
        """Remove it, and all that is in it."""

    @abstractmethod
    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        """A connection that publishes these values; `takes`: so many at once are received on it."""

    def settling(self, queue: str) -> Request:
        """What an acknowledgement begins with (`native/work.c`)."""
        del queue
        return Request(b"", 0, 0)

    def publishing(self, shape: Shape, queue: str | None = None) -> Runner:
        """Batches into one queue, one after the other on each connection."""
        shape = self._fitting(shape)

        def run(seconds: float) -> Figure:
            with ExitStack() as stack:
                into = queue or self.fresh()
                lanes = [self.lane(into, shape.values(), 0) for _ in range(shape.connections)]
                sockets = [stack.enter_context(lane.socket) for lane in lanes]
                requests = [lane.put for lane in lanes]
                load = Load(self.protocol, requests, sockets, shape.batch, tree=self.tree)
                return load.run(seconds)

        return run

    def working(self, shape: Shape, queue: str | None = None) -> Runner:
        """Batches are published, received and acknowledged, in turn on each connection."""
        shape = self._fitting(shape)

        def run(seconds: float) -> Figure:
            with ExitStack() as stack:
                into = queue or self.fresh()
                values, settling = shape.values(), self.settling(into)
                lanes = [self.lane(into, values, shape.batch) for _ in range(shape.connections)]
                sockets = [stack.enter_context(lane.socket) for lane in lanes]
                requests = [each for lane in lanes for each in (lane.put, lane.take, settling)]
                load = Load(self.protocol, requests, sockets, 0, tree=self.tree, works=True)
                return load.run(seconds)

        return run

    def _fitting(self, shape: Shape) -> Shape:
        return replace(shape, batch=min(shape.batch, self.batch_max))


class OurSide(Side):
    """Bottomless, whose queues take JSON."""

    protocol = "http"

    def __init__(self, server: Ours) -> None:
        super().__init__()
        self.server = server
        self.tree = server.tree

    def create(self, queue: str) -> None:
        url = f"{self.server.url}/v1/queues/{queue}"
        httpx.put(url, json={}, timeout=CALL_SECONDS).raise_for_status()

    def delete(self, queue: str) -> None:
        url = f"{self.server.url}/v1/queues/{queue}"
        httpx.delete(url, timeout=CALL_SECONDS).raise_for_status()

    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        put = Request(queues.publish(queue, values), len(values))
        take = Request(queues.receive(queue, max(takes, 1)), takes)
        return Lane(connect(self.server.port), put, take)

    def settling(self, queue: str) -> Request:
        return Request(queues.ack_head(queue), 0)


class RabbitSide(Side):
    """One kind of queue of RabbitMQ; consumers have messages pushed."""

    protocol = "amqp"

    def __init__(self, server: Rabbit, arguments: Mapping[str, str | int]) -> None:
        super().__init__()
        self.server = server
        self.tree = server.tree
        self._arguments = arguments

    def create(self, queue: str) -> None:
        with closing(amqp.Connection(self.server.amqp_port)) as connection:
            connection.declare(queue, self._arguments)

    def delete(self, queue: str) -> None:
        with closing(amqp.Connection(self.server.amqp_port)) as connection:
            connection.delete(queue)

    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        connection = amqp.Connection(self.server.amqp_port)
        if takes:
            connection.consume(queue, takes)
        return Lane(connection.socket, amqp.publish(values, "", queue), Request(b"", takes))


class NatsSide(Side):
    """JetStream: a stream whose messages go when they are acknowledged, and one consumer of it."""

    protocol = "nats"
    batch_max = SYNCED_ONE_BY_ONE
    consumer: Final = "workers"

    def __init__(self, port: int, tree: Tree) -> None:
        super().__init__()
        self._port = port
        self.tree = tree
        self._inboxes = count()

    def create(self, queue: str) -> None:
        nats.Connection(self._port).create_work_queue(queue, self.consumer)

    def delete(self, queue: str) -> None:
        nats.Connection(self._port).delete(queue)

    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        connection = nats.Connection(self._port, f"_INBOX.queues{next(self._inboxes)}")
        put = nats.publish(values, queue, connection.inbox)
        take = nats.pull(self.consumer, max(takes, 1), queue, connection.inbox)
        return Lane(connection.socket, put, take)


class ValkeySide(Side):
    """A stream with a group; what is acknowledged is deleted too."""

    protocol = "resp"
    group: Final = b"workers"

    def __init__(self, port: int, tree: Tree) -> None:
        super().__init__()
        self._port = port
        self.tree = tree
        self._consumers = count()

    def create(self, queue: str) -> None:
        self._ask(b"XGROUP", b"CREATE", queue.encode(), self.group, b"0", b"MKSTREAM")

    def delete(self, queue: str) -> None:
        self._ask(b"DEL", queue.encode())

    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        key, consumer = queue.encode(), b"worker-%d" % next(self._consumers)
        take = resp.take(key, self.group, consumer, max(takes, 1))
        return Lane(connect(self._port), resp.add(values, key), take)

    def settling(self, queue: str) -> Request:
        return resp.settle(queue.encode(), self.group)

    def _ask(self, *words: bytes) -> None:
        with connect(self._port) as other:
            other.sendall(resp.command(*words))
            answer = other.recv(256)
        if answer.startswith(b"-"):
            raise RuntimeError(f"Valkey answers {answer!r}")


class BeanstalkSide(Side):
    """A tube, which is there for whoever uses it, and stays until the server ends."""

    protocol = "beanstalk"
    batch_max = SYNCED_ONE_BY_ONE

    def __init__(self, port: int, tree: Tree) -> None:
        super().__init__()
        self._port = port
        self.tree = tree

    def create(self, queue: str) -> None:
        """Nothing is to be done."""

    def delete(self, queue: str) -> None:
        """Nothing can be done: jobs are deleted one by one."""

    def lane(self, queue: str, values: Sequence[bytes], takes: int) -> Lane:
        put, take = beanstalk.put(values), beanstalk.reserve(max(takes, 1))
        return Lane(beanstalk.connection(self._port, queue), put, take)


Way = Callable[[Side], Runner]
"""What a row has a side do."""


def add_rabbitmq(stage: Stage, way: Way, kinds: Sequence[str] = (QUORUM, CLASSIC)) -> None:
    """Kinds of queues, on one server."""
    with stage.side(kinds[0]):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        for kind in kinds:
            stage.runners[kind] = way(RabbitSide(server, ARGUMENTS[kind]))


def add_others(stage: Stage, way: Way) -> None:
    """JetStream, Valkey and beanstalkd, all of which sync each write."""
    with stage.side(NATS):
        mesh = stage.stack.enter_context(running_nats(stage.directory / "nats", sync_always=True))
        stage.versions["NATS"] = mesh.version
        stage.runners[NATS] = way(NatsSide(mesh.port, mesh.tree))
    with stage.side(VALKEY):
        store = stage.stack.enter_context(running_valkey(stage.directory / "valkey", "always"))
        stage.versions["Valkey"] = store.version
        stage.runners[VALKEY] = way(ValkeySide(store.port, store.tree))
    with stage.side(BEANSTALKD):
        beanstalkd()
        stage.runners[BEANSTALKD] = _anew(stage, way)


def _anew(stage: Stage, way: Way) -> Runner:
    """A new beanstalkd for each run: what was ever put and not deleted stays in its memory."""

    def run(seconds: float) -> Figure:
        directory: Path = stage.directory / "beanstalkd"
        shutil.rmtree(directory, ignore_errors=True)
        with running_beanstalkd(directory) as server:
            stage.versions["beanstalkd"] = server.version
            return way(BeanstalkSide(server.port, server.tree))(seconds)

    return run
