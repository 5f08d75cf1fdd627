"""Kafka's protocol, as far as a load needs it: one topic, one partition, no keys, no compression.

Written from the protocol's public description: Produce version 3, Fetch version 4, record
batches of magic 2. A frame is its size and the rest, big endian.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Final

import fastcrc

from bench.pump import Request, connect

PRODUCE: Final = (0, 3)
FETCH: Final = (1, 4)
CREATE_TOPICS: Final = (19, 0)
TIMEOUT_MS: Final = 30_000
TOPIC: Final = "bench"
BATCH_HEAD: Final = struct.Struct(">qii")
"""Of a record batch: first offset, bytes that follow, leader epoch."""


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def frame(api: tuple[int, int], content: bytes) -> bytes:
    head = struct.pack(">hhi", *api, 7) + text("bench")
    return struct.pack(">i", len(head) + len(content)) + head + content


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def record_batch(values: Sequence[bytes]) -> bytes:
    records = bytearray()
    for number, value in enumerate(values):
        record = b"\0\0" + varint(number) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(record)) + record
    checked = struct.pack(">hiqqqhii", 0, len(values) - 1, 0, 0, -1, -1, -1, len(values)) + records
    tail = struct.pack(">bI", 2, fastcrc.crc32.iscsi(checked)) + checked
    return BATCH_HEAD.pack(0, 4 + len(tail), -1) + tail


def produce(values: Sequence[bytes], topic: str = TOPIC) -> Request:
    batch = record_batch(values)
    content = struct.pack(">hhii", -1, 1, TIMEOUT_MS, 1) + text(topic)
    content += struct.pack(">iii", 1, 0, len(batch)) + batch
    return Request(frame(PRODUCE, content), units=len(values))


def fetch(offset: int, max_bytes: int) -> bytes:
    content = struct.pack(">iiiibi", -1, 500, 1, max_bytes, 0, 1) + text(TOPIC)
    return frame(FETCH, content + struct.pack(">iiqi", 1, 0, offset, max_bytes))


def create_topic(topic: str = TOPIC) -> bytes:
    content = struct.pack(">i", 1) + text(topic) + struct.pack(">ihiii", 1, 1, 0, 0, TIMEOUT_MS)
    return frame(CREATE_TOPICS, content)


def next_offset(records: bytes) -> int | None:
    """Where the last whole batch of a fetched set ends; None if there is none."""
    found, at = None, 0
    while at + 61 <= len(records):
        first, size, _ = BATCH_HEAD.unpack_from(records, at)
        at += 12 + size
        if at > len(records):
            break
        (delta,) = struct.unpack_from(">i", records, at - size - 12 + 23)
        found = first + delta + 1
    return found


class Connection:
    """Asks one thing at a time."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(port)

    def call(self, request: bytes) -> bytes:
        """What follows the correlation id of the answer."""
        self.socket.sendall(request)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)[4:]

    def create(self, topic: str = TOPIC) -> None:
        answer = self.call(create_topic(topic))
        (code,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic))
        if code:
            raise RuntimeError(f"the broker makes no topic: {code}")

    def produce(self, values: Sequence[bytes], topic: str = TOPIC) -> None:
        """One batch, and whether it was taken."""
        answer = self.call(produce(values, topic).content)
        (code,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
        if code:
            raise RuntimeError(f"the broker takes nothing: {code}")

    def fetch(self, offset: int, max_bytes: int) -> bytes:
        """The record batches from an offset on."""
        answer = self.call(fetch(offset, max_bytes))
        at = 4 + 4 + 2 + len(TOPIC) + 4 + 4
        (code,) = struct.unpack_from(">h", answer, at)
        if code:
            raise RuntimeError(f"the broker gives nothing: {code}")
        at += 2 + 8 + 8
        (aborted,) = struct.unpack_from(">i", answer, at)
        at += 4 + 16 * max(0, aborted)
        (size,) = struct.unpack_from(">i", answer, at)
        return answer[at + 4 : at + 4 + size]

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self.socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("the broker hung up")
            parts += got
        return bytes(parts)
