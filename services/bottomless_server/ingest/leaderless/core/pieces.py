"""Pieces of leaderless streams on their way: what waits for a commit, and what is decided about it.

A piece is sealed before anybody knows where it goes: its chunks count their records from 0. It then
gets a place in a WAL object, and a commit gives it its offsets, or refuses it. Each append in it is
told what became of it.

Appends without a promise share a piece; an append with one (a producer's number, a key, an expected
offset) is a piece of its own, since it is accepted or refused alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless.model.wal import Piece
from bottomless_server.ingest.log.core.batcher import Round
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import FromProducer, WithKey
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.decided import KnownName
from bottomless_server.leaderless.tail_changes import Accepted

TRIM_COUNT_MAX: Final = 3
"""How often a piece is sealed anew because more of it was stored meanwhile; then it is refused."""


@dataclass(slots=True, eq=False)
class WaitingAppend:
    """An append, and how it is answered."""

    append: Append
    """The append as it was asked, with all of its records."""
    settle: Callable[[Appended | StoreError], None]
    """Answers it; called once."""
    at: int | None = None
    """When it was put in line, in ms of a clock that never goes back; None of one that never was."""
    decided: bool = False
    """Whether it was answered, or will be once a note is durable: it is never decided again."""


@dataclass(slots=True, eq=False)
class WaitingPiece:
    """A sealed piece whose place in the stream nobody knows yet."""

    stream_id: StreamId
    appends: Sequence[WaitingAppend]
    """In the order in which they came; one, where it has a promise. None where the piece goes on with
    the append of the piece before it, which is a staged commit: it is accepted with that one."""
    round: Round
    """Its chunks and the place of each append, sealed at offset 0 with timestamp and epoch 0."""
    duplicates: int = 0
    """Records at the front of its only append that are not in it, since they are stored already."""
    trim_count: int = 0
    """How often it was sealed anew for that."""
    accepted: Accepted | None = None
    """Where it lies, once its object is durable; it is committed as this."""
    durable_at: int = 0
    """When its object was durable, in ms of a clock that never goes back."""

    @property
    def sealed(self) -> Piece:
        """Its bytes, as a WAL object takes them."""
        chunks = self.round.chunks
        parts = [part for chunk in chunks for part in chunk.buffers]
        count = self.round.next_offset
        return Piece(self.stream_id, parts, count, len(chunks), len(self.appends))

    @property
    def last_chunk(self) -> int:
        """Records before its last chunk."""
        return self.round.chunks[-1].first_offset

    @property
    def names(self) -> list[KnownName]:
        """The producer or key by which repeats of it are recognised: one at most."""
        if not self.appends:
            return []
        identity = self.appends[0].append.conditions.identity
        return [] if identity is None else [name_of(identity)]


def joined(pieces: Sequence[WaitingPiece]) -> list[WaitingPiece]:
    """Make one append of the pieces of a staged commit, each of which has a part of it: they are
    accepted or refused together, and the first of them has the answer."""
    parts = [one.append for piece in pieces for one in piece.appends]
    whole = replace(parts[0], record_count=sum(part.record_count for part in parts))
    first = replace(pieces[0], appends=(WaitingAppend(whole, _nobody_waits),))
    return [first, *(replace(piece, appends=()) for piece in pieces[1:])]


def _nobody_waits(_: Appended | StoreError) -> None:
    """Take the answer of an append that is told by whoever commits it."""


def name_of(identity: FromProducer | WithKey) -> KnownName:
    """The name under which coordination keeps what is known of a producer or a key."""
    if isinstance(identity, WithKey):
        return KnownName(identity.key_hash.hex(), is_producer=False)
    return KnownName(identity.producer_id, is_producer=True)


class TrimAgain(NamedTuple):
    """The piece is sealed anew, and keeps its place among those of its stream; nothing of it is
    stored."""

    duplicates: int
    """Records at the front of its append that are to be left out. If there are as many now, it only
    waits for an earlier one of its producer, which does not count as a trim."""


class Verdict(NamedTuple):
    """What is decided about one append by what is stored, and by the pieces before it."""

    said: Appended | StoreError | TrimAgain
    certain: bool
    """Whether it holds also if the stream is refused and nothing of this commit is stored: it was
    stored before, or is refused whatever becomes of the others."""
