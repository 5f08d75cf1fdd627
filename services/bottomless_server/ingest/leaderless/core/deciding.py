"""Decide what a commit accepts of the pieces that wait for it, by what coordination knows.

The rules are those of every stream (ingest/producers/producers.py). Each piece sees what those before
it will have stored, so several appends of one producer may follow each other in one commit.

What is decided holds if the commit is applied and takes this stream. If it refuses the stream, which
is fenced or full, what was stored before is answered all the same: telling.py says what each append
hears.

On the record's path: after the object that holds the piece is durable, before stores/tail_commits.py,
in whose transaction it is asked.
"""

from collections.abc import Mapping, Sequence

from bottomless.errors import Code, Corrupt, Outcome, Overloaded, StoreError
from bottomless.guards import guard
from bottomless_server.ingest.leaderless.core.pieces import (
    TRIM_COUNT_MAX,
    TrimAgain,
    Verdict,
    WaitingPiece,
    name_of,
)
from bottomless_server.ingest.leaderless.core.places import require_place
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds, RememberedNames
from bottomless_server.ingest.producers.producers import Appended, New, known_of
from bottomless_server.ingest.records.conditions import NO_CONDITIONS
from bottomless_server.leaderless.decided import Decided, KnownName, NewKnown
from bottomless_server.leaderless.tail import Tail
from bottomless_server.leaderless.tail_changes import Accepted, timestamp_of
from bottomless_server.leaderless.tail_format import Known


def decide_pieces(
    tail: Tail,
    known: Mapping[KnownName, Known | None],
    pieces: Sequence[WaitingPiece],
    clock: int,
    bounds: KnownBounds,
) -> Decided:
    """Decide about the pieces that a commit has for one stream, in their order.

    `clock` is that of the commit, in ms since 1970. `Decided.answers` has a `Verdict` for each append.
    """
    question = _Question(tail, known, clock, bounds)
    verdicts = [verdict for piece in pieces for verdict in question.decide(piece)]
    return Decided(question.accepted, question.known(), verdicts)


class _Question:
    """What a stream would hold after the pieces that were decided so far."""

    def __init__(
        self, tail: Tail, known: Mapping[KnownName, Known | None], clock: int, bounds: KnownBounds
    ) -> None:
        self.accepted: list[Accepted] = []
        self._tail = tail
        self._end = tail.next_offset
        self._timestamp = timestamp_of(tail, clock)
        self._bounds = bounds
        self._names = RememberedNames(known, bounds)
        self._changed: dict[KnownName, None] = {}
        self._new_counts = {True: 0, False: 0}
        """New names among them, producers and keys."""
        self._held: set[KnownName] = set()
        """Producers of pieces that are sealed anew."""
        self._goes_on = False
        """Whether the append of the last piece is accepted."""

    def known(self) -> dict[KnownName, NewKnown]:
        """What is to be known from now on of the names whose appends are accepted."""
        return {name: self._names.written(name) for name in self._changed}

    def decide(self, piece: WaitingPiece) -> list[Verdict]:
        """Decide about the next piece. One without appends goes on with that of the piece before."""
        if not piece.appends:
            if self._goes_on:
                self._take(piece)
            return []
        refused = self._refused(piece)
        self._goes_on = refused is None
        if refused is not None:
            if isinstance(refused.said, TrimAgain):
                self._held.update(piece.names)
            return [refused]
        answers = self._answers(piece)
        self._take(piece)
        return answers

    def _refused(self, piece: WaitingPiece) -> Verdict | None:
        """What its append is told where nothing of the piece is stored; None if it is accepted."""
        waiting = piece.appends[0]
        conditions = waiting.append.conditions
        if conditions is NO_CONDITIONS:
            return None
        name = None if conditions.identity is None else name_of(conditions.identity)
        if name is not None and not self._names.is_read(name):
            sentence = "what coordination holds of this producer or key cannot be read"
            return Verdict(Corrupt(sentence, outcome=Outcome.NONE), certain=True)
        apart = counts_alone(name, self._changed)
        try:
            said = known_of(self._names.tracking, waiting.append, self._end)
        except StoreError as error:
            # Where the stream ends depends on the pieces before, whoever sent them.
            by_end = error.code is Code.OFFSET_MISMATCH and self._end != self._tail.next_offset
            return Verdict(error, apart and not by_end)
        if isinstance(said, Appended):
            if apart and said.first_offset is None:
                said = said._replace(next_offset=self._tail.next_offset)
            return Verdict(said, apart)
        if conditions.numbered:
            again = self._trimmed(piece, said)
            if again is not None:
                return again
        full = None if name is None else self._take_place(name)
        return None if full is None else Verdict(full, certain=False)

    def _trimmed(self, piece: WaitingPiece, said: New) -> Verdict | None:
        """Whether a piece whose records have numbers of their own has to be sealed anew."""
        if passes_another(piece, self._held):
            return Verdict(TrimAgain(piece.duplicates), certain=False)
        if said.duplicates == piece.duplicates:
            return None
        if piece.trim_count < TRIM_COUNT_MAX:
            return Verdict(TrimAgain(said.duplicates), certain=False)
        # It is refused, and so is what came after it (followers.py).
        self._held.update(piece.names)
        sentence = "others store the same records again and again; send them again later"
        return Verdict(Overloaded(sentence, retry_after_seconds=1), certain=False)

    def _take_place(self, name: KnownName) -> StoreError | None:
        """Count a name that becomes known; why not, if the stream knows as many as it may."""
        if self._names.knows(name):
            return None
        new = self._new_counts
        try:
            require_place(self._tail, name, self._bounds, new[name.is_producer])
        except StoreError as error:
            return error
        new[name.is_producer] += 1
        return None

    def _answers(self, piece: WaitingPiece) -> list[Verdict]:
        answers = []
        for waiting, (before, _) in zip(piece.appends, piece.round.placements, strict=True):
            first = self._end + before
            count = waiting.append.record_count - piece.duplicates
            said = Appended(first, first + count, self._timestamp, count, piece.duplicates)
            answers.append(Verdict(said, certain=False))
        return answers

    def _take(self, piece: WaitingPiece) -> None:
        assert piece.accepted is not None, "it is in no object yet"
        for chunk in piece.round.chunks:
            self._names.tracking.take_chunk(
                self._end + chunk.first_offset,
                self._timestamp,
                chunk.entries,
                more_follows=chunk.more_follows,
            )
        self.accepted.append(piece.accepted)
        self._changed |= dict.fromkeys(piece.names)
        self._end += piece.accepted.record_count


@guard("what is told of an append although its stream is refused")
def counts_alone(name: KnownName | None, changed: Mapping[KnownName, None]) -> bool:
    """Whether what is known of an append's name is stored already, and is not what an earlier piece
    of the same commit will have stored."""
    return name not in changed


@guard("the order of appends whose records have numbers")
def passes_another(piece: WaitingPiece, held: set[KnownName]) -> bool:
    """Whether an earlier piece of the same producer is being sealed anew: its records would all count
    as stored once this one is. Pieces of later commits wait by themselves."""
    return not held.isdisjoint(piece.names)
