"""AMQP 0-9-1, as far as a load of queues needs it: bytes to send, replies to await.

Written from the protocol's public description. Everything is big endian; a frame is its type, a
channel, its size, a payload and one last byte. A message is three frames: how it is published or
delivered, what it is, and its body, here of one frame.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from bench.pump import Request, connect

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
LAST: Final = b"\xce"
CHANNEL: Final = 1
PERSISTENT: Final = 2
START: Final = (10, 10)
START_OK: Final = (10, 11)
TUNE: Final = (10, 30)
TUNE_OK: Final = (10, 31)
OPEN: Final = (10, 40)
CHANNEL_OPEN: Final = (20, 10)
EXCHANGE_DECLARE: Final = (40, 10)
QUEUE_DECLARE: Final = (50, 10)
QUEUE_BIND: Final = (50, 20)
QUEUE_DELETE: Final = (50, 40)
QOS: Final = (60, 10)
CONSUME: Final = (60, 20)
PUBLISH: Final = (60, 40)
GET: Final = (60, 70)
CONFIRM_SELECT: Final = (85, 10)
Method = tuple[int, int]


def short(value: str) -> bytes:
    encoded = value.encode()
    return bytes([len(encoded)]) + encoded


def table(values: Mapping[str, str | int]) -> bytes:
    """Arguments: texts, and whole numbers of four bytes."""
    parts = []
    for name, value in values.items():
        if isinstance(value, int):
            parts.append(short(name) + b"I" + struct.pack(">i", value))
        else:
            encoded = value.encode()
            parts.append(short(name) + b"S" + struct.pack(">I", len(encoded)) + encoded)
    content = b"".join(parts)
    return struct.pack(">I", len(content)) + content


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + LAST


def method(which: Method, *arguments: bytes, channel: int = CHANNEL) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + b"".join(arguments))


def publish(values: Sequence[bytes], exchange: str, routing_key: str, confirms: int = 1) -> Request:
    """Each value as a persistent message of its own, all of them sent at once; each is confirmed.

    Its units are messages in queues: of a fan-out `units` is more than what was sent.
    """
    how = method(PUBLISH, b"\0\0", short(exchange), short(routing_key), b"\0")
    parts = []
    for value in values:
        head = struct.pack(">HHQH", PUBLISH[0], 0, len(value), 1 << 12) + bytes([PERSISTENT])
        parts += [how, frame(HEADER, CHANNEL, head), frame(BODY, CHANNEL, value)]
    return Request(b"".join(parts), units=len(values), replies=confirms * len(values))


def get(queue: str, count: int = 1) -> Request:
    """So many messages, one by one; each has to be acknowledged."""
    return Request(method(GET, b"\0\0", short(queue), b"\0") * count, units=count, replies=count)


class Connection:
    """A connection with one channel, in which publishes are confirmed."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(port)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._await(START)
        secret = b"\0guest\0guest"
        login = short("PLAIN") + struct.pack(">I", len(secret)) + secret + short("en_US")
        self.socket.sendall(method(START_OK, table({}), login, channel=0))
        # Channels and bytes of a frame as the server wants them; no heartbeats.
        offered = self._await(TUNE)
        self.socket.sendall(method(TUNE_OK, offered[:6], b"\0\0", channel=0))
        self.call(OPEN, short("/"), b"\0\0", channel=0)
        self.call(CHANNEL_OPEN, b"\0")
        self.call(CONFIRM_SELECT, b"\0")

    def call(self, which: Method, *arguments: bytes, channel: int = CHANNEL) -> bytes:
        """Ask and wait for the answer, which has the next number; returns its arguments."""
        self.socket.sendall(method(which, *arguments, channel=channel))
        return self._await((which[0], which[1] + 1))

    def declare(self, queue: str, arguments: Mapping[str, str | int]) -> None:
        """Make a durable queue."""
        self.call(QUEUE_DECLARE, b"\0\0", short(queue), b"\x02", table(arguments))

    def delete(self, queue: str) -> None:
        self.call(QUEUE_DELETE, b"\0\0", short(queue), b"\0")

    def fan_out(self, exchange: str, queues: Sequence[str]) -> None:
        """Make a durable exchange that gives each message to all of these queues."""
        self.call(EXCHANGE_DECLARE, b"\0\0", short(exchange), short("fanout"), b"\x02", table({}))
        for queue in queues:
            self.call(
                QUEUE_BIND, b"\0\0", short(queue), short(exchange), short(""), b"\0", table({})
            )

    def consume(self, queue: str, prefetch: int) -> None:
        """Have messages pushed, so many at most that are not acknowledged."""
        self.call(QOS, struct.pack(">IHB", 0, prefetch, 0))
        self.call(CONSUME, b"\0\0", short(queue), short(""), b"\0", table({}))

    def close(self) -> None:
        self.socket.close()

    def _await(self, which: Method) -> bytes:
        """The arguments of the next method of this name; what comes before it is passed over.

        Raises:
            RuntimeError: the server closes the channel or the connection.
        """
        while True:
            kind, _, size = struct.unpack(">BHI", self._exactly(7))
            payload = self._exactly(size + 1)[:-1]
            found = struct.unpack_from(">HH", payload) if kind == METHOD else None
            if found == which:
                return payload[4:]
            if found in ((10, 50), (20, 40)):
                raise RuntimeError(f"RabbitMQ closes: {payload[7:200]!r}")

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self.socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("RabbitMQ hung up")
            parts += got
        return bytes(parts)
