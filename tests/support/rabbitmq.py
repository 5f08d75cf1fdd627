"""What a RabbitMQ is given to store in a stream, for tests of the import, and what was given.

Messages with properties are those that RabbitMQ's own client for Python encoded
(`golden/rabbitmq/messages.json`); sub-entries are compressed here, as clients do it.
"""

import gzip
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.wire.rabbit import (
    PUBLISH,
    PUBLISHER,
    STORE_OFFSET,
    Connection,
    message,
    text,
)
from bottomless.formats.checks import crc32c
from bottomless.formats.osiris import SubEntryCodec

GOLDEN: Final = Path(__file__).parents[1] / "golden/rabbitmq"
MESSAGES: Final[list[dict[str, Any]]] = json.loads((GOLDEN / "messages.json").read_bytes())
NOT_AMQP: Final = b"bytes of no protocol"


@dataclass
class Publishing:
    """A stream of a running node, and each record that it confirmed, in order."""

    connection: Connection | None
    """None if it is only to be known what would be published."""
    stream: str
    records: list[dict[str, Any]] = field(default_factory=list)
    """As in `messages.json`."""

    def begin(self, segment_size: int) -> None:
        assert self.connection is not None
        arguments = {"stream-max-segment-size-bytes": str(segment_size)}
        self.connection.create(self.stream, arguments)
        self.connection.declare_publisher(self.stream)

    def plain(self, values: Sequence[str]) -> None:
        contents = [message(value.encode()) for value in values]
        self._publish(contents, [{"value": value} for value in values])

    def encoded(self) -> None:
        """All kinds of messages, and one that is none."""
        contents = [*(bytes.fromhex(one["bytes"]) for one in MESSAGES), NOT_AMQP]
        records = [{"bytes": one["bytes"], **one["record"]} for one in MESSAGES]
        self._publish(contents, [*records, {"value": NOT_AMQP.decode()}])

    def sub_entry(self, codec: SubEntryCodec, values: Sequence[str]) -> None:
        entry = sub_entry(codec, [message(value.encode()) for value in values])
        self._send(PUBLISH, struct.pack(">BIQ", PUBLISHER, 1, 0) + entry, 1)
        self.records += [{"value": value} for value in values]

    def track(self, name: str, offset: int) -> None:
        """Let a consumer store where it is: a chunk that holds no message."""
        stored = text(name) + text(self.stream) + struct.pack(">Q", offset)
        self._send(STORE_OFFSET, stored, 0)

    def close(self) -> None:
        assert self.connection is not None
        self.connection.close()

    def _publish(self, contents: Sequence[bytes], records: Sequence[dict[str, Any]]) -> None:
        parts = [struct.pack(">BI", PUBLISHER, len(contents))]
        for number, content in enumerate(contents):
            parts += [struct.pack(">QI", number, len(content)), content]
        self._send(PUBLISH, b"".join(parts), len(contents))
        self.records += records

    def _send(self, command: int, content: bytes, confirm_count: int) -> None:
        if self.connection is not None:
            self.connection.send(command, content)
            self.connection.confirmed(confirm_count)


def publish_everything(publishing: Publishing) -> None:
    """Every kind of message and of sub-entry, with tracked offsets between them."""
    publishing.plain([f"plain {number}" for number in range(200)])
    publishing.encoded()
    publishing.track("billing", 100)
    for codec in SubEntryCodec:
        publishing.sub_entry(
            codec, [f"{codec.name} {number} of a sub-entry" for number in range(60)]
        )
        publishing.plain([f"after {codec.name}", "x" * 200])
    publishing.track("archive", 300)
    # More than a block of Snappy has.
    publishing.sub_entry(SubEntryCodec.SNAPPY, ["y" * 250 for _ in range(400)])
    publishing.plain([f"late {number}" for number in range(300)])


def sub_entry(codec: SubEntryCodec, messages: Sequence[bytes]) -> bytes:
    """A sub-entry as it stands in a chunk."""
    raw = b"".join(struct.pack(">I", len(one)) + one for one in messages)
    stored = compressed(codec, raw)
    return struct.pack(">BHII", 0x80 | codec << 4, len(messages), len(raw), len(stored)) + stored


def compressed(codec: SubEntryCodec, raw: bytes) -> bytes:
    match codec:
        case SubEntryCodec.GZIP:
            return gzip.compress(raw)
        case SubEntryCodec.SNAPPY:
            return b"\xff\x06\x00\x00sNaPpY" + b"".join(_blocks(raw))
        case SubEntryCodec.LZ4:
            return bytes(pa.Codec("lz4").compress(raw, asbytes=True))
        case SubEntryCodec.ZSTD:
            return bytes(pa.Codec("zstd").compress(raw, asbytes=True))
    return raw


def _blocks(raw: bytes) -> Iterator[bytes]:
    """Of Snappy's framing format; the last one as it is, uncompressed."""
    starts = range(0, len(raw), 65_536)
    for start in starts:
        part = raw[start : start + 65_536]
        crc = crc32c(part)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
        last = start == starts[-1] and len(starts) > 1
        stored = part if last else bytes(pa.Codec("snappy").compress(part, asbytes=True))
        block = struct.pack("<I", masked) + stored
        yield bytes([1 if last else 0]) + len(block).to_bytes(3, "little") + block
