"""Messages, indexes and directories of a broker, written by hand: what no broker at hand has written."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from bottomless.formats.amqp_properties import PROPERTIES
from bottomless.formats.erlang_term import Atom, Pairs, Term
from bottomless.formats.rdq import encode_rdq_record
from support.erlang_terms import as_term

FRAMING = Atom("rabbit_framing_amqp_0_9_1")
NONE = Atom("none")
UNDEFINED = Atom("undefined")
NO_PROPERTIES = b"\0\0"
PERSISTENT = b"\x10\x00\x02"


def content(value: bytes = b"", properties: bytes = PERSISTENT) -> Term:
    return (Atom("content"), 60, NONE, properties, FRAMING, [value] if value else [])


def decoded_content(value: bytes, properties: Mapping[str, Term]) -> Term:
    """As a broker keeps a message whose properties it changed."""
    record = tuple(properties.get(name, UNDEFINED) for name in PROPERTIES)
    return (Atom("content"), 60, (Atom("P_basic"), *record), NONE, NONE, [value])


def basic_message(
    inner: Term, *, msg_id: bytes = bytes(16), exchange: bytes = b"", key: bytes = b"jobs"
) -> Term:
    """Of 3.10 to 3.12, and of 3.13 where a release before it wrote."""
    where = (Atom("resource"), b"/", Atom("exchange"), exchange)
    return (Atom("basic_message"), where, [key], inner, msg_id, Atom("true"))


def container(inner: Term, annotations: Sequence[tuple[Term, Term]] = ()) -> Term:
    """Of 3.13."""
    known: tuple[tuple[Term, Term], ...] = (
        (Atom("x"), b"news"),
        (Atom("rk"), [b"eu", b"de"]),
        (Atom("d"), Atom("true")),
    )
    return (Atom("mc"), Atom("mc_amqpl"), inner, Pairs((*known, *annotations)))


def a_term(value: bytes = b"", *, msg_id: bytes = bytes(16)) -> bytes:
    return as_term(basic_message(content(value), msg_id=msg_id))


def published_1(
    rel: int, msg_id: bytes, term: bytes = b"", *, expiry: int = 0, size: int = 9
) -> bytes:
    """An entry of a segment of version 1; without a term the message is in the message store."""
    return struct.pack(">H", 0xC000 | rel) + fields(msg_id, term, expiry=expiry, size=size)


def fields(msg_id: bytes, term: bytes = b"", *, expiry: int = 0, size: int = 9) -> bytes:
    return struct.pack(">16sQII", msg_id, expiry, size, len(term)) + term


def settled_1(rel: int) -> bytes:
    """The first says delivered, the second acknowledged."""
    return struct.pack(">H", 0x4000 | rel)


def journal_entry(kind: int, sequence: int, rest: bytes = b"") -> bytes:
    return struct.pack(">Q", kind << 62 | sequence) + rest


def index_2(first: int, end: int, entries: Sequence[bytes]) -> bytes:
    return struct.pack(">4sBQQ43x", b"RCQI", 2, first, end) + b"".join(entries)


def stored_2(msg_id: bytes, *, size: int = 9, expiry: int = 0, flags: int = 1) -> bytes:
    return struct.pack(">BBBB16sIQ", 1, flags, 0, 1, msg_id, size, expiry)


def placed_2(position: int, term_size: int, *, size: int = 9, expiry: int = 0) -> bytes:
    return struct.pack(">BBBBQIIIQ", 1, 1, 0, 2, position, term_size, 0, size, expiry)


def store_2(first: int, end: int, terms: Sequence[bytes], *, checksum: bool = True) -> bytes:
    head = struct.pack(">4sBQQ43x", b"RCQS", 2, first, end)
    return head + b"".join(framed(term, checksum=checksum) for term in terms)


def framed(term: bytes, *, checksum: bool = True) -> bytes:
    crc = zlib.crc32(term) & 0xFFFF if checksum else 0
    return struct.pack(">IBHB", len(term), checksum, crc, 0) + term


def write_vhost(directory: Path, name: str, *, entry_count: int | None = 16) -> None:
    directory.mkdir(parents=True)
    (directory / ".vhost").write_text(name)
    if entry_count is not None:
        text = f"%% This file is auto-generated!\n{{segment_entry_count, {entry_count}}}."
        (directory / ".config").write_text(text)
    (directory / "msg_store_persistent").mkdir()
    (directory / "queues").mkdir()


def write_queue(directory: Path, vhost: str, name: str, files: Mapping[str, bytes]) -> None:
    directory.mkdir(parents=True)
    (directory / ".queue_name").write_bytes(f"VHOST: {vhost}\nQUEUE: {name}\n".encode())
    for file, data in files.items():
        (directory / file).write_bytes(data)


def write_rdq(vhost: Path, number: int, messages: Mapping[bytes, bytes]) -> None:
    """A message file of a vhost, with the terms of these ids."""
    data = b"".join(encode_rdq_record(msg_id, term) for msg_id, term in messages.items())
    (vhost / "msg_store_persistent" / f"{number}.rdq").write_bytes(data)
