"""The RabbitMQ stream protocol, as far as a load needs it: bytes to send, replies to await.

Written from the protocol's public description. Everything is big endian; a frame is its
size, a key, a version and the rest. A message is what a client would send: AMQP 1.0, one data
section.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Final

from bench.pump import Request, connect

VERSION: Final = 1
OK: Final = 1
RESPONSE: Final = 0x8000
DECLARE_PUBLISHER: Final = 1
PUBLISH: Final = 2
PUBLISH_CONFIRM: Final = 3
SUBSCRIBE: Final = 7
STORE_OFFSET: Final = 10
CREATE: Final = 13
DELETE: Final = 14
PEER_PROPERTIES: Final = 17
SASL_HANDSHAKE: Final = 18
SASL_AUTHENTICATE: Final = 19
TUNE: Final = 20
OPEN: Final = 21
FRAME_MAX: Final = 1 << 20
"""What the server takes by default."""
SUB_ENTRY: Final = 0x80
"""First byte of an entry that holds a batch, uncompressed."""
PUBLISHER: Final = 1
"""Its number where a connection has one alone."""
PUBLISHER_COUNT_MAX: Final = 256
"""Of one connection: their number is a byte."""
FROM_FIRST: Final = struct.pack(">H", 1)


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def frame(key: int, *parts: bytes) -> bytes:
    content = struct.pack(">HH", key, VERSION) + b"".join(parts)
    return struct.pack(">I", len(content)) + content


def message(value: bytes) -> bytes:
    """AMQP 1.0: one data section of at most 255 bytes."""
    return b"\x00\x53\x75\xa0" + bytes([len(value)]) + value


def publish(publisher: int, values: Sequence[bytes]) -> bytes:
    """A frame of single messages, each with a publishing id of its own."""
    parts = [struct.pack(">BI", publisher, len(values))]
    for number, value in enumerate(values):
        content = message(value)
        parts += [struct.pack(">QI", number, len(content)), content]
    return frame(PUBLISH, *parts)


def publish_batch(publisher: int, values: Sequence[bytes]) -> bytes:
    """A frame of one sub-entry: all values under one publishing id."""
    contents = [message(value) for value in values]
    block = b"".join(struct.pack(">I", len(content)) + content for content in contents)
    head = struct.pack(">BI", publisher, 1)
    entry = struct.pack(">QBHII", 0, SUB_ENTRY, len(values), len(block), len(block))
    return frame(PUBLISH, head, entry, block)


def plain_request(values: Sequence[bytes], publisher: int = PUBLISHER) -> Request:
    content = publish(publisher, values)
    assert len(content) <= FRAME_MAX, len(content)
    return Request(content, units=len(values), replies=len(values), tag=publisher)


def batch_request(values: Sequence[bytes], publisher: int = PUBLISHER) -> Request:
    content = publish_batch(publisher, values)
    assert len(content) <= FRAME_MAX, len(content)
    return Request(content, units=len(values), replies=1, tag=publisher)


class Connection:
    """A connection that has introduced itself; its socket is then somebody else's to use."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(port)
        self._count = 0
        self.call(PEER_PROPERTIES, struct.pack(">I", 0))
        self.call(SASL_HANDSHAKE)
        secret = b"\0guest\0guest"
        plain = text("PLAIN") + struct.pack(">I", len(secret)) + secret
        self.call(SASL_AUTHENTICATE, plain)
        self._await(TUNE)
        self.socket.sendall(frame(TUNE, struct.pack(">II", FRAME_MAX, 0)))
        self.call(OPEN, text("/"))

    def call(self, key: int, content: bytes = b"", accepted: Sequence[int] = (OK,)) -> bytes:
        """Ask and wait for the answer; returns what follows its code."""
        self._count += 1
        self.socket.sendall(frame(key, struct.pack(">I", self._count), content))
        answer = self._await(key | RESPONSE)
        code = int.from_bytes(answer[4:6], "big")
        if code not in accepted:
            raise RuntimeError(f"RabbitMQ answers {code} to {key}")
        return answer[6:]

    def create(self, stream: str, arguments: dict[str, str] | None = None) -> None:
        given = arguments or {}
        pairs = b"".join(text(key) + text(value) for key, value in given.items())
        self.call(CREATE, text(stream) + struct.pack(">I", len(given)) + pairs)

    def delete(self, stream: str) -> None:
        self.call(DELETE, text(stream))

    def send(self, key: int, content: bytes) -> None:
        """Send a command that has no answer, or one that comes later."""
        self.socket.sendall(frame(key, content))

    def confirmed(self, count: int) -> None:
        """Wait until as many publishing ids of publisher 1 are confirmed."""
        while count > 0:
            count -= int.from_bytes(self._await(PUBLISH_CONFIRM)[1:5], "big")

    def declare_publisher(self, stream: str, publisher: int = PUBLISHER) -> None:
        """A publisher without a name: nothing is deduplicated."""
        self.call(DECLARE_PUBLISHER, bytes([publisher]) + text("") + text(stream))

    def subscribe(self, stream: str, credit: int) -> None:
        """Subscription 0 from the first record on; deliveries follow at once."""
        asked = b"\x00" + text(stream) + FROM_FIRST + struct.pack(">HI", credit, 0)
        self.call(SUBSCRIBE, asked)

    def close(self) -> None:
        self.socket.close()

    def _await(self, key: int) -> bytes:
        """The next frame with this key; others that come before it are passed over."""
        while True:
            content = self._exactly(int.from_bytes(self._exactly(4), "big"))
            if int.from_bytes(content[:2], "big") == key:
                return content[4:]

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self.socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("RabbitMQ hung up")
            parts += got
        return bytes(parts)
