"""A leaderless stream as a plain value: a tail, and what is known of each name as bytes.

It does what a commit does in coordination, one commit after the other, without any node: nothing
is remembered between two questions but these values.
"""

from collections.abc import Sequence
from typing import Final

from bottomless.errors import StoreError
from bottomless.model.names import StreamId, Uid
from bottomless_server.core.tracking.known_producers import Producer, TrackingBounds
from bottomless_server.ingest.leaderless.core.changing import forget, raise_epoch
from bottomless_server.ingest.leaderless.core.deciding import decide_pieces
from bottomless_server.ingest.leaderless.core.pieces import (
    TrimAgain,
    WaitingAppend,
    WaitingPiece,
)
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds, RememberedNames
from bottomless_server.ingest.leaderless.core.sealing import seal_again, seal_pieces
from bottomless_server.ingest.leaderless.core.telling import told
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.decided import Decided, KnownName, NewKnown
from bottomless_server.leaderless.tail import Tail, new_tail
from bottomless_server.leaderless.tail_changes import (
    Accepted,
    Committed,
    Refusal,
    TailBounds,
    commit,
    refusal_of,
)
from bottomless_server.leaderless.tail_format import Known, decode_known, encode_known

STREAM: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
INSTANCE: Final = Uid("ab" * 16)
CHUNK_SIZE_MAX: Final = 1_000_000
KEEP_MS: Final = 604_800_000
ROOMY: Final = TailBounds(2**40, 2**20)


def waiting(append: Append) -> WaitingAppend:
    """An append in line whose answer nobody waits for."""
    return WaitingAppend(append, lambda _: None)


def a_piece(one: WaitingAppend, duplicates: int = 0, trim_count: int = 0) -> WaitingPiece:
    """The piece of one append, without what is stored of it."""
    [piece] = seal_pieces(STREAM, [one], CHUNK_SIZE_MAX)
    piece.trim_count = trim_count
    return seal_again(piece, duplicates, CHUNK_SIZE_MAX) if duplicates else piece


class UnownedStream:
    """One leaderless stream, and what one commit after the other makes of it."""

    def __init__(self, bounds: TrackingBounds, tail_bounds: TailBounds = ROOMY) -> None:
        self.bounds = KnownBounds(bounds, KEEP_MS)
        self.tail_bounds = tail_bounds
        self.tail: Tail = new_tail(generation=1, created_at=0, max_age_ms=600_000)
        self.values: dict[KnownName, bytes] = {}
        self.forget_at: dict[KnownName, int] = {}
        self.now = 10_000
        self._sequence = 0

    @property
    def next_offset(self) -> int:
        return self.tail.next_offset

    def send(self, append: Append) -> Appended:
        """Append alone, as one commit, or as several where it has to be trimmed."""
        [answer] = self.send_together([append])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def send_together(self, appends: Sequence[Append]) -> list[Appended | StoreError]:
        """Append by one commit, and what has to be sealed anew by later ones; the answers stand in
        the order of the appends."""
        ones = [waiting(append) for append in appends]
        answers = dict(self.commit_all([a_piece(one) for one in ones]))
        return [answers[one] for one in ones]

    def commit_all(
        self, pieces: list[WaitingPiece]
    ) -> list[tuple[WaitingAppend, Appended | StoreError]]:
        """Commit pieces of one append each, in the order in which that is decided."""
        decided: list[tuple[WaitingAppend, Appended | StoreError]] = []
        while pieces:
            again: list[WaitingPiece] = []
            for piece, said in zip(pieces, self.commit(pieces), strict=True):
                [one] = piece.appends
                if isinstance(said, TrimAgain):
                    again.append(seal_again(piece, said.duplicates, CHUNK_SIZE_MAX))
                    continue
                decided.append((one, said))
            pieces = again
        return decided

    def commit(self, pieces: Sequence[WaitingPiece]) -> list[Appended | StoreError | TrimAgain]:
        """Commit pieces once, as the flush of one object."""
        position = 4_096
        for number, piece in enumerate(pieces):
            size = sum(memoryview(part).nbytes for part in piece.sealed.parts)
            count, before = piece.sealed.record_count, piece.last_chunk
            piece.accepted = Accepted(
                INSTANCE, self._sequence, number, position, size, count, before
            )
            position += size
        self._sequence += 1
        names = {name: self.known(name) for piece in pieces for name in piece.names}
        decided = decide_pieces(self.tail, names, pieces, self.now, self.bounds)
        found = self._apply(decided)
        return told(found, decided.answers, pieces)

    def _apply(self, decided: Decided) -> Committed | Refusal:
        refusal = refusal_of(self.tail, self.tail_bounds)
        if refusal is not None:
            return refusal
        done = commit(self.tail, decided.accepted, self.now)
        self.tail = done.tail
        for name, new in decided.known.items():
            self._write(name, new)
        return done

    def known(self, name: KnownName) -> Known | None:
        """What coordination has of a name, read anew each time."""
        value = self.values.get(name)
        return None if value is None else decode_known(value)

    def producer(self, producer_id: str) -> Producer | None:
        """What is known of a producer."""
        name = KnownName(producer_id, is_producer=True)
        return RememberedNames({name: self.known(name)}, self.bounds).producer(name)

    def raise_epoch(self, producer_id: str) -> None:
        name = KnownName(producer_id, is_producer=True)
        raised = raise_epoch(producer_id, self.tail, self.known(name), self.now, self.bounds)
        self._write(name, raised)

    def forget(self, producer_id: str) -> None:
        name = KnownName(producer_id, is_producer=True)
        forget(self.known(name))
        self._write(name, None)

    def restarted(self) -> "UnownedStream":
        """The same stream: nothing of it is in any node."""
        return self

    def _write(self, name: KnownName, new: NewKnown | None) -> None:
        """Write what is known of a name, and count it, as the stores do."""
        difference = (new is not None) - (name in self.values)
        if name.is_producer:
            count = self.tail.producer_count + difference
            self.tail = self.tail._replace(producer_count=count)
        else:
            self.tail = self.tail._replace(key_count=self.tail.key_count + difference)
        if new is None:
            del self.values[name], self.forget_at[name]
            return
        self.values[name] = encode_known(self.tail.next_offset, new.entries)
        self.forget_at[name] = new.forget_at
