"""What must hold in every state of the search, and from each state to the next.

The numbers are those of the design's list. That fragments have the bytes of what is placed (5) is no
matter of an order of events, and has tests of its own.
"""

from functools import lru_cache

from bottomless.formats.stream_record import decode_record
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.leaderless.noted import StreamEnd
from bottomless_server.leaderless.tail import (
    Tail,
    TailEntry,
    TailState,
    check_index,
    check_step,
    shard_of,
)
from bottomless_server.leaderless.tail_format import decode_entry, decode_held, decode_tail
from bottomless_server.manifest.recovery.wal_scan import FoundWal
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.tail_keys import tail_index_key, tail_key
from bottomless_server.stores.wal import held_key, instance_key
from model.leaderless import GENERATION, SERVED, Violation
from model.leaderless_state import IDS, INSTANCES, RECORD_COUNT, Given, State

_tail = lru_cache(2**14)(decode_tail)
_entry = lru_cache(2**14)(decode_entry)
_instance = lru_cache(2**14)(decode_instance)
_held = lru_cache(2**14)(decode_held)


@lru_cache(2**14)
def record_of(value: bytes) -> StreamRecord:
    return decode_record(value, SERVED)


def tail_of_stream(state: State, stream: int) -> Tail:
    return _tail(state.held(tail_key(IDS[stream])))


def entries_of(state: State, stream: int) -> list[TailEntry]:
    return [_entry(member) for member in state.held(tail_index_key(IDS[stream]))]


def with_given(before: State, after: State) -> State:
    """Note what an EXEC gave offsets to.

    Raises:
        Violation: it may not have them.
    """
    given = set[Given]()
    for stream in range(len(IDS)):
        known = set(entries_of(before, stream))
        for entry in entries_of(after, stream):
            if entry not in known:
                given.add(_given(before, stream, entry))
    if not given:
        return after
    for one in given:
        for other in before.given:
            if (one.stream, one.offset) == (other.stream, other.offset):
                raise Violation("offsets are given twice")
            if (one.stream, one.writer, one.flush) == (other.stream, other.writer, other.flush):
                raise Violation("an append is there twice")
    return after._replace(given=before.given | given)


def _given(before: State, stream: int, entry: TailEntry) -> Given:
    if tail_of_stream(before, stream).state is not TailState.OPEN:
        raise Violation("it commits after a fence was answered")
    assert entry.record_count == RECORD_COUNT
    for one in before.objects:
        if (one.instance, one.sequence) == (entry.instance, entry.sequence):
            return Given(stream, entry.first_offset, one.writer, one.flush)
    raise Violation("an entry names an object that is deleted")


def check(before: State, after: State) -> None:
    """Look at a state that came of another one.

    Raises:
        Violation
    """
    if after.slots is before.slots and after.objects == before.objects:
        return
    try:
        if after.is_whole:
            for stream in range(len(IDS)):
                _check_stream(before, after, stream)
            _check_instances(before, after)
        elif before.generation == after.generation > GENERATION:
            for stream in range(len(IDS)):
                same = tail_of_stream(before, stream) == tail_of_stream(after, stream)
                assert same, "what is restored is changed by a process of before"
    except Violation:
        raise
    except AssertionError as error:
        raise Violation(str(error)) from error


def _check_stream(before: State, after: State, stream: int) -> None:
    tail, entries = tail_of_stream(after, stream), entries_of(after, stream)
    record = record_of(after.held(stream_key(IDS[stream])))
    # 2: no hole; 3: nothing goes back.
    check_step(tail_of_stream(before, stream), tail)
    check_index(tail, entries)
    assert tail.published_next <= record.published_next, "it prunes what nobody published"
    objects = {(one.instance, one.sequence) for one in after.objects}
    for entry in entries:
        # 1: each object is there, and is held.
        if (entry.instance, entry.sequence) not in objects:
            raise Violation("an entry names an object that is deleted")
        held = [_held(member) for member in after.held(held_key(entry.instance))]
        if (entry.sequence, shard_of(IDS[stream])) not in {
            (one.sequence, one.shard) for one in held
        }:
            raise Violation("an entry names an object that nothing holds")


def _check_instances(before: State, after: State) -> None:
    for instance in INSTANCES:
        was, now = before.held(instance_key(instance)), after.held(instance_key(instance))
        # Its numbers go together, or it could not be read.
        if was is not now and was is not None and now is not None:
            assert _instance(was).goes_on_as(_instance(now)), "an instance goes back"


def check_rebuild(state: State, found: FoundWal, ends: list[StreamEnd], *, sync: bool) -> None:
    """Look at what a rebuild brings back.

    Raises:
        Violation
    """
    doubts = {(one.instance, one.sequence) for one in found.in_doubt}
    for stream, end in enumerate(ends):
        assert end.differs_at is None
        back = {entry.first_offset: entry for entry in end.entries}
        for one in state.given:
            if one.stream != stream or one.offset < state.roots[stream]:
                continue
            if end.goes_on_at < one.offset + RECORD_COUNT:
                raise Violation("offsets that were seen are given again after a rebuild")
            of_append = {
                (each.instance, each.sequence)
                for each in state.objects
                if (each.writer, each.flush) == (one.writer, one.flush)
            }
            entry = back.get(one.offset)
            if entry is not None:
                # 4: it is that append.
                assert (entry.instance, entry.sequence) in of_append
            elif (stream, one.offset) in state.noted:
                # 6: what `sync` answered comes back.
                raise Violation("what was noted is not brought back")
            elif not sync and not of_append & doubts:
                raise Violation("what was acknowledged is neither brought back nor in doubt")
