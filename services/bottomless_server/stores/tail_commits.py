"""Commits to the tails of leaderless streams.

A commit is one EXEC for the pieces that one flush has of many streams. It changes their tails and the
instance of the writer, and never a stream's record. Every EXEC watches the generation. What it makes
of a tail is decided in `leaderless/`; here it is read and written.

In S3 nothing changes: the WAL object that a commit names was durable before it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Corrupt, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationUnknown,
    Due,
    Member,
    Values,
)
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided, KnownName, NewKnown
from bottomless_server.leaderless.groups import GROUP_KEY_COUNT_MAX, GROUP_STREAM_COUNT_MAX
from bottomless_server.leaderless.instance import (
    Loss,
    WalInstance,
    committed,
    decode_instance,
    encode_instance,
    loss_of,
)
from bottomless_server.leaderless.tail import HeldMember, SeenTail, Tail, TailState, shard_of
from bottomless_server.leaderless.tail_changes import (
    Committed,
    Refusal,
    TailBounds,
    has_offsets_for,
    is_of_before,
    refusal_of,
)
from bottomless_server.leaderless.tail_changes import commit as commit_pieces
from bottomless_server.leaderless.tail_format import (
    Known,
    encode_entry,
    encode_held,
    encode_known,
    encode_tail,
)
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import (
    known_in,
    known_index_key,
    known_key,
    silent,
    tail_in,
    tail_index_key,
    tail_key,
)
from bottomless_server.stores.wal import held_key, instance_key, require_generation
from bottomless_server.stores.wal_check import require_checked

log = structlog.get_logger(__name__)

COMMIT_KEY_COUNT_MAX: Final = GROUP_KEY_COUNT_MAX + 2
"""Keys that one EXEC watches: the generation, the instance, and what `groups` puts into one."""


class Asked(NamedTuple):
    """What a flush has for one stream."""

    stream_id: StreamId
    names: Sequence[KnownName]
    """Producers and keys of its appends: what is known of them is watched."""
    seen: SeenTail
    """What this process had seen of the tail before it began to ask."""
    decide: Callable[[Tail, Mapping[KnownName, Known | None]], Decided]
    """Decides piece after piece, each seeing those before it. A name is left out of which what is known
    cannot be read: nothing of it may be accepted. `first_offsets` and `timestamp_of` say
    where accepted ones come to lie. It may be called again, and has no effects of its own: what it
    finds out goes into `answers`."""

    @property
    def redis_keys(self) -> list[str]:
        return [tail_key(self.stream_id), *(known_key(self.stream_id, one) for one in self.names)]


class Commit(NamedTuple):
    """What became of a commit, stream by stream."""

    record: WalInstance
    """The instance as the commit has written it."""
    streams: dict[StreamId, Committed | Refusal]
    answers: dict[StreamId, Any]
    """What `decide` said of each stream. Of one that is refused, what it said of repeats counts; None
    of one that was not asked, since it is gone or cannot be read."""


Verdict = tuple[Committed | Refusal, Any, Changes]
"""What becomes of one stream, what its appends are told, and what is written for it."""


class CommitUnknown(CoordinationUnknown):
    """The reply of a commit was lost. `decide_lost` tells whether `commit` is what happened."""

    def __init__(self, commit: Commit) -> None:
        super().__init__("the coordination store did not answer a commit")
        self.commit = commit


async def commit(
    coordination: Coordination,
    numbers: AttemptNumbers,
    asked: Sequence[Asked],
    *,
    sequence: int,
    clock: int,
    settled: int,
    next_sequence: int,
    bounds: TailBounds,
) -> Commit | Loss:
    """Give the accepted pieces of a flush their offsets: one attempt, all of its streams or none.

    `sequence` is the lowest of the objects whose pieces are accepted; all of them are durable.
    `settled` is the first sequence with anything left to decide after this, `next_sequence` the one
    that the writer gives next: all below it is reserved. `clock` is in ms since 1970.

    In Redis after a crash: before EXEC nothing; after it tails, entries, what is known of names,
    what holds the objects, and the instance with its new `attempt`: visible, and recognised when it
    is repeated. A stream that is refused changes nothing of the others.

    Raises:
        CommitUnknown: the reply of EXEC was lost; nothing else is committed before that is decided.
        CancelledError: the same may be so, and `numbers.lost` says whether it is. Who needs the
            answers of the commit lets nobody cancel it.
        CoordinationUnknown: another reply was lost; nothing was to be written.
        CoordinationConflict: others changed one of the keys; nothing is written.
        Corrupt: the instance's record cannot be read; nothing is written. Take a new instance.
        Unchecked: this run of the store was not compared with the bucket; nothing is written.
        Unavailable: `coordination-regressed`, or not now; nothing is written.
    """
    assert numbers.lost is None, "a lost commit is decided before the next one"
    attempt, key = numbers.take(), instance_key(numbers.instance)
    watched = [GENERATION_KEY, key, *(one for each in asked for one in each.redis_keys)]
    assert len(asked) <= GROUP_STREAM_COUNT_MAX
    assert len(watched) <= COMMIT_KEY_COUNT_MAX
    assert len(set(watched)) == len(watched), "pieces of a stream belong together"
    last: list[Commit] = []

    def decide(values: Values) -> tuple[Changes, Commit | Loss]:
        require_generation(values, numbers.generation)
        require_checked(coordination, numbers)
        value = values[key]
        record = None if value is None else decode_instance(value)
        loss = loss_of(record, numbers, sequence)
        if loss is Loss.REGRESSED:
            raise coordination_lost()
        if record is None or loss is not None:
            return Changes(), loss or Loss.GONE
        after = committed(record, attempt=attempt, settled=settled, next_sequence=next_sequence)
        given = range(sequence, next_sequence)
        streams, answers, changes = _decide_all(asked, values, numbers, given, clock, bounds)
        last[:] = [Commit(after, streams, answers)]
        return changes | Changes({key: encode_instance(after)}), last[0]

    numbers.under_way = True
    try:
        done = await coordination.transact(watched, decide, attempts=1)
    except (CoordinationUnknown, asyncio.CancelledError) as error:
        # Without a decision nothing was to be written: the instance was lost already.
        if last:
            numbers.lose(attempt, sequence, may_be_seen=bool(asked))
        if last and isinstance(error, CoordinationUnknown):
            raise CommitUnknown(last[0]) from error
        raise
    except StoreError:
        raise
    except Exception:
        # A bug, of which nobody knows whether EXEC came before it: no note may say that it did not.
        if last:
            numbers.lose(attempt, sequence, may_be_seen=bool(asked))
        raise
    finally:
        numbers.under_way = False
    if isinstance(done, Commit):
        numbers.decided(attempt)
    return done


def _decide_all(
    asked: Sequence[Asked],
    values: Values,
    numbers: AttemptNumbers,
    given: range,
    clock: int,
    bounds: TailBounds,
) -> tuple[dict[StreamId, Committed | Refusal], dict[StreamId, Any], Changes]:
    """What becomes of each stream's pieces, its answers, and all that is written but the instance."""
    streams, answers = dict[StreamId, Committed | Refusal](), dict[StreamId, Any]()
    held = dict[tuple[int, int], HeldMember]()
    written: list[Changes] = []
    for one in asked:
        found, answers[one.stream_id], changes = _decide_stream(
            one, values, numbers.generation, clock, bounds
        )
        streams[one.stream_id] = found
        written.append(changes)
        if isinstance(found, Committed):
            places = {(entry.instance, entry.sequence) for entry in found.entries}
            assert {instance for instance, _ in places} <= {numbers.instance}
            assert all(one in given for _, one in places), "it was not given yet"
            _hold(held, one.stream_id, found, clock)
    members = [Member(held_key(numbers.instance), encode_held(one), True) for one in held.values()]
    # At once, and not one after the other: that would copy what is there for each stream.
    return (
        streams,
        answers,
        Changes(
            {key: value for changes in written for key, value in changes.values.items()},
            [due for changes in written for due in changes.queued],
            [*(member for changes in written for member in changes.members), *members],
        ),
    )


def _decide_stream(
    asked: Asked, values: Values, generation: int, clock: int, bounds: TailBounds
) -> Verdict:
    """What becomes of one stream's pieces, its answers, and what is written for them.

    Raises:
        Unavailable: `coordination-regressed`: its tail proves that coordination has gone back.
    """
    stream_id = asked.stream_id
    try:
        tail = tail_in(values, stream_id)
    except Corrupt:
        return Refusal.DAMAGED, None, Changes()
    known = _known_of(asked, values)
    if tail is not None and is_of_before(tail, generation, asked.seen):
        raise coordination_lost()
    refusal = refusal_of(tail, bounds)
    if tail is None or refusal is Refusal.GONE:
        return Refusal.GONE, None, Changes()
    return alone(stream_id, lambda: _decide_pieces(asked, tail, known, clock, refusal))


def _known_of(asked: Asked, values: Values) -> dict[KnownName, Known | None]:
    """What is known of each name, without those of which it cannot be read: that is of theirs alone."""
    known: dict[KnownName, Known | None] = {}
    for name in asked.names:
        try:
            known[name] = known_in(values, asked.stream_id, name)
        except Corrupt:
            log.exception(
                "what is known of a name cannot be read", stream_id=asked.stream_id, name=name.name
            )
    return known


@guard("what one stream of a commit raises, kept from the others")
def alone(stream_id: StreamId, decide: Callable[[], Verdict]) -> Verdict:
    """What becomes of one stream; whatever is wrong with it is not of the others.

    Raises:
        Unavailable: it is not of this stream that nothing can be committed now.
    """
    try:
        return decide()
    except Unavailable:
        raise
    except Exception:
        log.exception("nothing can be committed to a stream", stream_id=stream_id)
        return Refusal.DAMAGED, None, Changes()


def _decide_pieces(
    asked: Asked,
    tail: Tail,
    known: Mapping[KnownName, Known | None],
    clock: int,
    refusal: Refusal | None,
) -> Verdict:
    """What becomes of the pieces of a stream that is there.

    It is asked also where it takes nothing new: what is stored already is answered as ever.
    """
    stream_id = asked.stream_id
    decided = asked.decide(tail, known)
    if not has_offsets_for(tail, decided.accepted):
        refusal = refusal or Refusal.ENDED
    if refusal is not None:
        return refusal, decided.answers, Changes()
    done = commit_pieces(tail, decided.accepted, clock)
    if not done.entries and not decided.known:
        return done, decided.answers, Changes()
    if new := [name for name in decided.known if known[name] is None]:
        producers = sum(name.is_producer for name in new)
        counted = done.tail._replace(
            producer_count=tail.producer_count + producers,
            key_count=tail.key_count + len(new) - producers,
        )
        done = done._replace(tail=counted)
    after = done.tail
    changes = Changes(
        {tail_key(stream_id): encode_tail(after)},
        members=[
            Member(tail_index_key(stream_id), encode_entry(entry), True) for entry in done.entries
        ],
    )
    for name, now in decided.known.items():
        changes |= known_written(stream_id, name, now, after.next_offset)
    return done, decided.answers, changes


def known_written(stream_id: StreamId, name: KnownName, now: NewKnown, next_offset: int) -> Changes:
    """Write what is known of a name from now on, with its places in index and queue."""
    return Changes(
        {known_key(stream_id, name): encode_known(next_offset, now.entries)},
        queued=[silent(stream_id, name, now.forget_at)],
        members=[Member(known_index_key(stream_id), name.member, True)],
    )


def _hold(
    held: dict[tuple[int, int], HeldMember], stream_id: StreamId, found: Committed, clock: int
) -> None:
    """Count the entries of a commit among those that hold their objects."""
    shard = shard_of(stream_id)
    for entry in found.entries:
        place = (entry.sequence, shard)
        before = held.get(place)
        age, count = found.tail.max_age_ms, 1
        if before is not None:
            age, count = min(before.max_age_ms, age), before.entry_count + 1
        held[place] = HeldMember(*place, clock, age, count)


async def change_known(
    coordination: Coordination,
    stream_id: StreamId,
    name: KnownName,
    generation: int,
    decide: Callable[[Tail, Known | None], NewKnown | None],
    settled: Sequence[Due] = (),
) -> None:
    """Change what is known of a name without an append: raise an epoch, or forget it with None.

    `decide` raises to change nothing. `settled` leaves the queue of silent names in the same
    transaction, unless more was heard of it since.

    Raises:
        NotFound: there is no such stream, or it is being deleted.
        Unavailable: `coordination-regressed`, or not now.
    """
    keys = [GENERATION_KEY, tail_key(stream_id), known_key(stream_id, name)]

    def change(values: Values) -> tuple[Changes, None]:
        require_generation(values, generation)
        tail = _open_tail(values, stream_id, generation)
        known = known_in(values, stream_id, name)
        now = decide(tail, known)
        difference = (now is not None) - (known is not None)
        after = _counted(tail, stream_id, name, difference)
        changes = Changes(settled=settled)
        if difference:
            changes |= Changes({tail_key(stream_id): encode_tail(after)})
        if now is not None:
            return changes | known_written(stream_id, name, now, tail.next_offset), None
        gone = Member(known_index_key(stream_id), name.member, False)
        return changes | Changes({known_key(stream_id, name): None}, members=[gone]), None

    await coordination.transact(keys, change)


def _counted(tail: Tail, stream_id: StreamId, name: KnownName, difference: int) -> Tail:
    """The tail with one name more or less. A count that has drifted ends at 0, with an alarm."""
    count = (tail.producer_count if name.is_producer else tail.key_count) + difference
    if count < 0:
        log.error("more names of a stream are forgotten than were counted", stream_id=stream_id)
    if name.is_producer:
        return tail._replace(producer_count=max(0, count))
    return tail._replace(key_count=max(0, count))


def _open_tail(values: Values, stream_id: StreamId, generation: int) -> Tail:
    tail = tail_in(values, stream_id)
    if tail is None or tail.state is TailState.CLOSED:
        raise stream_not_found()
    if tail.generation != generation:
        raise coordination_lost()
    return tail
