"""What commits, prunes, fences and closes make of the tail of a leaderless stream.

Nothing here awaits, and nothing knows a clock: times come in. `stores/tails.py` carries it out, each
of them in one transaction on the tail's record and its index.
"""

from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.wal import Note
from bottomless_server.leaderless.tail import (
    UNSEEN,
    SeenTail,
    Tail,
    TailEntry,
    TailState,
    check_step,
    new_tail,
)

_RECORD_COUNT_MAX: Final = 2**32 - 1
"""Records of one entry, which has 32 bits for their number."""


class TailBounds(NamedTuple):
    """How much may wait in one tail."""

    size_max: int
    entry_count_max: int


class Accepted(NamedTuple):
    """A piece of a WAL object that its conditions allow."""

    instance: Uid
    sequence: int
    number: int
    """Its place in the object's directory, from 0."""
    position: int
    size: int
    record_count: int
    last_chunk: int
    """Records of the piece that lie before its last chunk."""


class Refusal(Enum):
    """Why nothing of a stream is committed; all its pieces share it."""

    GONE = auto()
    """There is no tail, or the stream is being deleted."""
    FENCED = auto()
    FULL = auto()
    """Too much waits to be made fragments of."""
    DAMAGED = auto()
    """What coordination holds of the stream cannot be read, or goes on to nothing that can be
    written; the log says what."""
    ENDED = auto()
    """The last of its records would have a higher offset than any may have."""


class Committed(NamedTuple):
    """What a commit makes of a tail."""

    tail: Tail
    entries: list[TailEntry]
    notes: list[tuple[Uid, Note]]
    """A note for each entry, with the instance whose object it speaks of."""
    first_offsets: Sequence[int] = ()
    """The first offset of each accepted piece."""


class Pruned(NamedTuple):
    """What a prune makes of a tail."""

    tail: Tail
    gone: list[TailEntry]


@guard("the state of the tail in the EXEC of a commit")
def refusal_by_state(tail: Tail) -> Refusal | None:
    """Say why nothing may be committed to a stream that is fenced or being deleted."""
    if tail.state is TailState.CLOSED:
        return Refusal.GONE
    return Refusal.FENCED if tail.state is TailState.FENCED else None


def refusal_of(tail: Tail | None, bounds: TailBounds) -> Refusal | None:
    """Say why nothing of a stream may be committed now; None where its pieces may be looked at."""
    if tail is None:
        return Refusal.GONE
    by_state = refusal_by_state(tail)
    if by_state is not None:
        return by_state
    full = tail.size >= bounds.size_max or tail.entry_count >= bounds.entry_count_max
    return Refusal.FULL if full else None


@guard("a tail that went back ends the whole EXEC")
def is_of_before(tail: Tail, generation: int, seen: SeenTail) -> bool:
    """Tell whether a tail is one that coordination had before: then nothing in it is believed, not
    even the tails of other streams in the same EXEC, which may have gone back as well.

    `seen` is what the process had seen of the tail before it began to ask, since answers overtake
    each other.
    """
    return tail.generation != generation or has_gone_back(tail, seen)


def has_gone_back(tail: Tail, seen: SeenTail) -> bool:
    """Tell whether a tail shows less than somebody had seen of it before they asked."""
    if tail.epoch != seen.epoch:
        return tail.epoch < seen.epoch
    return tail.next_offset < seen.next_offset or tail.pruned_next < seen.pruned_next


def seen_of(tail: Tail, before: SeenTail = UNSEEN) -> SeenTail:
    """Remember the highest of what was seen before and of a tail; a rebuild's epoch begins anew."""
    if tail.epoch != before.epoch:
        return max(before, SeenTail(tail.epoch, tail.next_offset, tail.pruned_next))
    next_offset = max(before.next_offset, tail.next_offset)
    return SeenTail(tail.epoch, next_offset, max(before.pruned_next, tail.pruned_next))


def has_offsets_for(tail: Tail, pieces: Sequence[Accepted]) -> bool:
    """Tell whether all records of these pieces can have offsets."""
    return tail.next_offset + sum(piece.record_count for piece in pieces) <= OFFSET_MAX + 1


def first_offsets(tail: Tail, pieces: Sequence[Accepted]) -> list[int]:
    """Tell the first offset of each of these pieces if they are committed in this order."""
    counts = [piece.record_count for piece in pieces]
    return list(accumulate(counts[:-1], initial=tail.next_offset)) if counts else []


def timestamp_of(tail: Tail, clock: int) -> int:
    """Tell the timestamp of the next commit: that of a stream never goes back."""
    return max(tail.last_timestamp, clock)


def commit(tail: Tail, pieces: Sequence[Accepted], clock: int) -> Committed:
    """Give accepted pieces their offsets, in this order: one commit of a stream.

    Pieces that follow each other in one object share an entry. `clock` is in ms since 1970.
    Without pieces nothing changes.
    """
    if not pieces:
        return Committed(tail, [], [])
    number, timestamp = tail.number + 1, timestamp_of(tail, clock)
    entries: list[TailEntry] = []
    notes: list[tuple[Uid, Note]] = []
    next_offset, log_end = tail.next_offset, tail.log_end
    for run in _runs(pieces):
        first, size = run[0], sum(piece.size for piece in run)
        record_count = sum(piece.record_count for piece in run)
        note = Note(
            first.sequence, first.number, len(run), next_offset, timestamp, tail.epoch, number
        )
        notes.append((first.instance, note))
        next_offset, log_end = next_offset + record_count, log_end + size
        entries.append(
            TailEntry(
                next_offset,
                number,
                timestamp,
                log_end,
                first.instance,
                first.sequence,
                first.position,
                size,
                record_count,
            )
        )
    assert next_offset <= OFFSET_MAX + 1
    last = pieces[-1]
    after = tail._replace(
        next_offset=next_offset,
        number=number,
        last_timestamp=timestamp,
        last_chunk_offset=next_offset - last.record_count + last.last_chunk,
        log_end=log_end,
        entry_count=tail.entry_count + len(entries),
    )
    check_step(tail, after)
    return Committed(after, entries, notes, first_offsets(tail, pieces))


def _runs(pieces: Sequence[Accepted]) -> list[list[Accepted]]:
    """Divide pieces into runs that lie beside each other in one object."""
    runs: list[list[Accepted]] = []
    records = 0
    for piece in pieces:
        last = runs[-1][-1] if runs else None
        beside = (
            last is not None
            and (last.instance, last.sequence) == (piece.instance, piece.sequence)
            and last.number + 1 == piece.number
            and last.position + last.size == piece.position
            and records + piece.record_count <= _RECORD_COUNT_MAX
        )
        if beside:
            runs[-1].append(piece)
            records += piece.record_count
        else:
            runs.append([piece])
            records = piece.record_count
    return runs


def prune(
    tail: Tail, oldest: Sequence[TailEntry], published_next: int, manifest_version: int
) -> Pruned:
    """Take out entries that end at or below the end of the manifest.

    `oldest` are the first entries of the index, perhaps as they were a while ago: what is pruned
    since is passed over. `published_next` and `manifest_version` are those of the stream's record
    in this very transaction.
    """
    gone = [entry for entry in oldest if tail.pruned_next < entry.next_offset <= published_next]
    if gone:
        assert gone[0].first_offset == tail.pruned_next, "the index has a hole"
    # A floor that passed everything, or a gap, may end where no entry does.
    after = tail._replace(
        pruned_next=gone[-1].next_offset if gone else tail.pruned_next,
        pruned_end=gone[-1].log_end if gone else tail.pruned_end,
        published_next=published_next,
        manifest_version=manifest_version,
        entry_count=tail.entry_count - len(gone),
    )
    check_step(tail, after)
    return Pruned(after, gone)


def tail_of(record: StreamRecord, last_timestamp: int) -> Tail:
    """Make the tail of a stream that has no entry: a new one, or one that a rebuild restores.

    It begins where the manifest ends, and is in the state that the record says. `last_timestamp` is
    the last that any record of the stream was given, in ms since 1970.
    """
    config = record.config
    tail = new_tail(
        generation=record.generation,
        created_at=record.created_at,
        max_age_ms=config.fragment.max_age_ms,
        next_offset=record.published_next,
        last_timestamp=max(record.last_timestamp, last_timestamp),
        manifest_version=record.version,
    )
    assert record.epoch == tail.epoch
    # Else no fragment of the stream would be believed, and nothing would ever be published.
    assert record.epochs
    start = record.epochs[-1]
    assert start.epoch == tail.epoch
    assert start.first_offset <= tail.next_offset
    if record.state is StreamState.DELETING:
        return closed(tail)
    return configured(tail, fenced=config.fenced, max_age_ms=config.fragment.max_age_ms)


def configured(tail: Tail, *, fenced: bool, max_age_ms: int) -> Tail:
    """Make a tail follow its stream's configuration; one that is closed stays as it is."""
    if tail.state is TailState.CLOSED:
        return tail
    state = TailState.FENCED if fenced else TailState.OPEN
    return tail._replace(state=state, max_age_ms=max_age_ms)


def closed(tail: Tail) -> Tail:
    """Close a tail for good: its stream is being deleted."""
    return tail._replace(state=TailState.CLOSED)


def waiting(tail: Tail, entries: Sequence[TailEntry]) -> list[TailEntry]:
    """List the entries that may still be needed: those above `pruned_next`, of a tail that is not
    closed."""
    if tail.state is TailState.CLOSED:
        return []
    return [entry for entry in entries if entry.next_offset > tail.pruned_next]
