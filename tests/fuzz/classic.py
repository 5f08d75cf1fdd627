"""Parsers of what a RabbitMQ wrote of its classic queues: nobody who keeps such a directory is trusted."""

import struct
from collections.abc import Callable
from contextlib import suppress

from support.classic_messages import (
    PERSISTENT,
    basic_message,
    container,
    content,
    fields,
    framed,
    index_2,
    journal_entry,
    placed_2,
    published_1,
    settled_1,
    stored_2,
)
from support.erlang_terms import as_term
from unit.formats.examples import a_msg_id

from bottomless.errors import Corrupt
from bottomless.formats.amqp_properties import decode_properties
from bottomless.formats.classic_index import Rest, read_journal, read_segment
from bottomless.formats.classic_index_2 import (
    FRAME_SIZE,
    check_store_header,
    read_index,
    read_stored_term,
)
from bottomless.formats.classic_message import decode_classic_message, queue_message
from bottomless.formats.classic_names import (
    decode_queue_name,
    decode_segment_entry_count,
    decode_vhost,
)
from bottomless.formats.envelope import encode_envelope
from bottomless.model.queue import QueuePlace
from fuzz.parsers import Parser

ID = a_msg_id(1)
SEGMENT = published_1(3, ID) + published_1(4, ID, b"\x83j", expiry=5) + settled_1(3) + settled_1(3)
JOURNAL = journal_entry(0, 5, fields(ID, b"\x83j")) + journal_entry(3, 5) + bytes(40)
TABLE = b"\x01a" + b"S\0\0\0\1x" + b"\x01b" + b"F\0\0\0\x03\x01cV"
PROPERTIES = (
    b"\xb0\x40" + b"\x0atext/plain" + struct.pack(">I", len(TABLE)) + TABLE + b"\x02" + bytes(8)
)


def as_segment(data: bytes) -> None:
    for entries in (list(read_segment(data, 2, 16)), list(read_journal(data))):
        rest = [one for one in entries if isinstance(one, Rest)]
        assert all(one.position + one.size == len(data) for one in rest)


def as_index_2(data: bytes) -> None:
    assert len(list(read_index(data))) <= len(data) // 32
    check_store_header(b"RCQS" + data[4:])


def as_framed(data: bytes) -> None:
    read_stored_term(data, max(len(data) - FRAME_SIZE, 0))


def as_names(data: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [decode_queue_name, decode_vhost]
    for decode in (*decoders, decode_segment_entry_count):
        with suppress(Corrupt):
            decode(data)


def as_message(data: bytes) -> None:
    """Whatever is taken can be kept."""
    message = queue_message(
        decode_classic_message(data),
        (QueuePlace(bytes(16), 0),),
        published_at=0,
        expires_at=None,
        priority=0,
    )
    encode_envelope(message)


CLASSIC = {
    "segment of a classic queue": Parser(as_segment, SEGMENT, (Corrupt,)),
    "journal of a classic queue": Parser(as_segment, JOURNAL, (Corrupt,)),
    "index of a classic queue": Parser(
        as_index_2, index_2(16, 32, [stored_2(ID), bytes(32), placed_2(64, 9)]), (Corrupt,)
    ),
    "store of a classic queue": Parser(as_framed, framed(b"\x83j"), (Corrupt,)),
    "names of a classic queue": Parser(
        as_names, b"VHOST: /\nQUEUE: a\0\5\nINDEX: v2\n", (Corrupt,)
    ),
    "properties of AMQP 0-9-1": Parser(decode_properties, PROPERTIES, (Corrupt,)),
    "message of a classic queue": Parser(
        as_message, as_term(basic_message(content(b"body", PERSISTENT))), (Corrupt,)
    ),
    "container of a classic queue": Parser(
        as_message, as_term(container(content(b"body", PROPERTIES), [(b"x-a", 7)])), (Corrupt,)
    ),
}
