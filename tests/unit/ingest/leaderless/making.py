"""Appends to leaderless streams, and what they are told, for the tests of this room."""

from typing import Final

from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.model.chunk import AppendMode
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import NO_CONDITIONS, Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append

CHUNK_SIZE_MAX: Final = 4_096
IDS: Final = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d00{number:02x}") for number in range(64)]


def an_append(
    *values: bytes, conditions: Conditions = NO_CONDITIONS, size: int | None = None
) -> Append:
    """An append of these values; `size` makes one large value instead."""
    found = list(values or [b"a"]) if size is None else [b"x" * size]
    rows = Rows(found, [Content.BYTES] * len(found))
    return Append(len(found), rows.size, crc32c(b"|".join(found)), rows, (), conditions)


def of_producer(
    name: str, number: int = 0, expected_offset: int | None = None, epoch: int = 0
) -> Conditions:
    """What a strict producer sends with an append."""
    return Conditions(FromProducer(name, epoch, AppendMode.STRICT, number), expected_offset)


def expecting(offset: int) -> Conditions:
    """What is sent with an append for which the stream must end there."""
    return Conditions(None, offset)


class Told(list[Appended | StoreError]):
    """What an append was told; at most once."""


def waiting(append: Append | None = None) -> tuple[WaitingAppend, Told]:
    """An append in line, and what it is told."""
    told = Told()

    def settle(outcome: Appended | StoreError) -> None:
        assert not told, "it is answered twice"
        told.append(outcome)

    return WaitingAppend(an_append() if append is None else append, settle), told
