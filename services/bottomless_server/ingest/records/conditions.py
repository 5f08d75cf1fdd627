"""The conditions of an append: under which name its repeats are recognised, and at which offset.

They come in headers (api.md, section 4): one of three kinds of numbers under a producer's name, or
an idempotency key, or neither; and with any of these the offset at which the stream must end.

On the record's path: after front/append_requests.py, before intake.py; producers/producers.py
decides about them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bottomless.errors import InvalidRequest
from bottomless.model.chunk import AppendMode
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import parse_reference
from bottomless_server.core.faults import bad_header
from bottomless_server.core.idempotency_key import check_idempotency_key
from bottomless_server.core.short_hash import hash_of

SEQUENCE_MAX: Final = OFFSET_MAX
"""Numbers of producers are integers of JSON, as offsets are."""

_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FromProducer:
    """An append with a producer's name."""

    producer_id: str
    epoch: int
    mode: AppendMode
    number: int = 0
    """The number of the first record (STRICT) or of the append (TRANSACTION); with HIGHWATER the
    records have numbers of their own."""
    start_any: bool = False
    """An unknown producer may begin with any number."""
    parts_before: int = 0
    """TRANSACTION: how many parts of the same commit must be stored already
    (producers/commit_parts.py)."""
    part_of: "FromProducer | None" = None
    """What this is a part of, as it was asked: the part is decided as all of it would be."""

    @property
    def turn_name(self) -> str:
        """The name whose appends are taken one at a time: parts of a commit wait for their producer."""
        return self.producer_id if self.part_of is None else self.part_of.producer_id


@dataclass(frozen=True, slots=True)
class WithKey:
    """An append with an idempotency key."""

    key_hash: bytes


@dataclass(frozen=True, slots=True)
class PartOf:
    """The request to a super stream of which an append is the part of one partition."""

    layout: int
    """The layout by which its records were divided."""
    resumed: bool = False
    """Whether it is known that it was begun by this layout, before the super stream grew."""
    first: int = 0
    """The number of the request's first record, if it has numbers; its last is the number of the
    append."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one append; it is stored only if all of them hold."""

    identity: FromProducer | WithKey | None = None
    expected_offset: int | None = None
    part_of: PartOf | None = None

    @property
    def numbered(self) -> bool:
        """Whether every record brings a publishing_id."""
        return isinstance(self.identity, FromProducer) and (
            self.identity.mode is AppendMode.HIGHWATER
        )

    @property
    def keyed(self) -> bool:
        return isinstance(self.identity, WithKey)


NO_CONDITIONS: Final = Conditions()


def read_conditions(header: Callable[[str], str | None], sender: str = "") -> Conditions:
    """Read the conditions of an append from its headers; `header` gives the value of one.

    `sender` is the principal that sends it, empty if that is not known: what one sender stored under
    an idempotency key says nothing to another one that happens to choose the same key.

    Raises:
        InvalidRequest: `bad-header`: a value that is none, or headers that exclude each other.
    """
    producer = _name("producer-id", header("producer-id"))
    epoch = _number("producer-epoch", header("producer-epoch"))
    sequence = _number("producer-seq", header("producer-seq"))
    transaction = _number("txn-number", header("txn-number"))
    start = header("producer-start")
    key = header("idempotency-key")
    expected = _number("stream-expected-offset", header("stream-expected-offset"), OFFSET_MAX + 1)
    _check_together(producer, epoch, sequence, transaction, start, key)
    if producer is not None:
        mode, number = AppendMode.HIGHWATER, 0
        if sequence is not None:
            mode, number = AppendMode.STRICT, sequence
        elif transaction is not None:
            mode, number = AppendMode.TRANSACTION, transaction
        identity = FromProducer(producer, epoch or 0, mode, number, start is not None)
        return Conditions(identity, expected)
    if key is not None:
        check_idempotency_key(key)
        own = f"{sender}\0{key}" if sender else key
        return Conditions(WithKey(hash_of(own.encode())), expected)
    return NO_CONDITIONS if expected is None else Conditions(None, expected)


def commit_of(conditions: Conditions) -> FromProducer:
    """The producer and the number of a commit of staged batches.

    Raises:
        InvalidRequest: `bad-header`: it has none.
    """
    asked = conditions.identity
    if not isinstance(asked, FromProducer) or asked.mode is not AppendMode.TRANSACTION:
        raise bad_header("txn-number", "must be given with staged batches")
    return asked


def _check_together(
    producer: str | None,
    epoch: int | None,
    sequence: int | None,
    transaction: int | None,
    start: str | None,
    key: str | None,
) -> None:
    if producer is None:
        given = {
            "producer-epoch": epoch,
            "producer-seq": sequence,
            "txn-number": transaction,
            "producer-start": start,
        }
        for name, value in given.items():
            if value is not None:
                raise bad_header(name, "goes with the header Producer-Id")
        return
    if key is not None:
        raise bad_header("idempotency-key", "must not stand beside the headers of a producer")
    if sequence is not None and transaction is not None:
        raise bad_header("txn-number", "must not stand beside Producer-Seq")
    if start is not None and start != "any":
        raise bad_header("producer-start", "must be: any")
    if start is not None and sequence is None:
        raise bad_header("producer-start", "goes with the header Producer-Seq")


def _number(name: str, value: str | None, largest: int = SEQUENCE_MAX) -> int | None:
    if value is None:
        return None
    if not _INTEGER.fullmatch(value) or int(value) > largest:
        raise bad_header(name, f"must be an integer from 0 to {largest}")
    return int(value)


def _name(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return parse_reference(value)
    except InvalidRequest as error:
        raise bad_header(name, error.message) from None
