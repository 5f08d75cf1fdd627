"""Tails as values: any sequence of commits, prunes and fences keeps what must hold of each of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.model.names import Uid, stream_id_from_bytes
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import Loss, loss_of
from bottomless_server.leaderless.tail import (
    UNSEEN,
    SeenTail,
    Tail,
    TailEntry,
    TailState,
    check_index,
    new_tail,
    shard_of,
)
from bottomless_server.leaderless.tail_changes import (
    Accepted,
    Committed,
    Refusal,
    TailBounds,
    closed,
    commit,
    configured,
    first_offsets,
    has_gone_back,
    is_of_before,
    prune,
    refusal_of,
    seen_of,
    timestamp_of,
    waiting,
)
from unit.formats.examples import OTHER_UID, STREAM_ID, TAIL, UID, WAL_INSTANCE

NO_BOUNDS = TailBounds(2**40, 2**30)
NEW = new_tail(generation=1, created_at=0, max_age_ms=600_000)


def accepted(number: int, *, count: int = 2, sequence: int = 5, instance: Uid = UID) -> Accepted:
    """A piece of 64 bytes for each number of a directory."""
    return Accepted(instance, sequence, number, 1_024 + 64 * number, 64, count, count - 1)


pieces = st.builds(
    lambda number, count, sequence, instance: accepted(
        number, count=count, sequence=sequence, instance=instance
    ),
    st.integers(0, 4),
    st.integers(1, 9),
    st.integers(0, 2),
    st.sampled_from([UID, OTHER_UID]),
)
steps = st.one_of(
    st.tuples(st.just("commit"), st.lists(pieces, max_size=5)),
    st.tuples(st.just("prune"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["fence", "unfence", "close"]), st.none()),
)


@given(st.lists(steps, max_size=25), st.lists(st.integers(0, 1_000), min_size=25, max_size=25))
def test_any_steps_keep_what_must_hold(taken: list[tuple[str, Any]], clocks: list[int]) -> None:
    """Beside the lists of all records and of all entries: none is lost, none is given twice."""
    tail, index = NEW, list[TailEntry]()
    records: list[tuple[Uid, int, int]] = []
    for (what, given_), clock in zip(taken, clocks, strict=False):
        if what == "commit" and refusal_of(tail, NO_BOUNDS) is None:
            done = commit(tail, given_, clock)
            assert [entry.first_offset for entry in done.entries] == [
                note.first_offset for _, note in done.notes
            ]
            tail, index = done.tail, index + done.entries
            records += [
                (piece.instance, piece.sequence, piece.number)
                for piece in given_
                for _ in range(piece.record_count)
            ]
        elif what == "prune":
            published = min(tail.published_next + given_, tail.next_offset)
            pruned = prune(tail, index[:3], published, tail.manifest_version + 1)
            tail, index = pruned.tail, index[len(pruned.gone) :]
            assert all(entry.next_offset <= published for entry in pruned.gone)
        elif what == "close":
            tail = closed(tail)
        else:
            tail = configured(tail, fenced=what == "fence", max_age_ms=1)
        check_index(tail, index)
        assert tail.next_offset == len(records)
        for entry in index:
            own = set(records[entry.first_offset : entry.next_offset])
            assert {one[:2] for one in own} == {(entry.instance, entry.sequence)}
        assert waiting(tail, index) == ([] if tail.state is TailState.CLOSED else index)


def test_pieces_beside_each_other_share_an_entry_and_its_note() -> None:
    """A piece that was refused between two others ends the entry."""
    done = commit(NEW, [accepted(0), accepted(1), accepted(3), accepted(4, count=5)], 7)
    assert [(e.position, e.size, e.next_offset, e.number) for e in done.entries] == [
        (1_024, 128, 4, 1),
        (1_024 + 192, 128, 11, 1),
    ]
    assert [(n.first_piece, n.piece_count, n.first_offset) for _, n in done.notes] == [
        (0, 2, 0),
        (3, 2, 4),
    ]
    assert (done.tail.last_chunk_offset, done.tail.number, done.tail.size) == (10, 1, 256)


def test_one_commit_may_name_several_objects() -> None:
    """As that of staged batches does: all of it in one transaction."""
    done = commit(NEW, [accepted(0), accepted(1, sequence=6), accepted(2, instance=OTHER_UID)], 7)
    assert [(entry.instance, entry.sequence) for entry in done.entries] == [
        (UID, 5),
        (UID, 6),
        (OTHER_UID, 5),
    ]
    assert {entry.number for entry in done.entries} == {1}


def test_records_of_an_entry_are_counted_in_32_bits() -> None:
    done = commit(NEW, [accepted(n, count=2**31) for n in range(3)], 7)
    assert [entry.record_count for entry in done.entries] == [2**31, 2**31, 2**31]


def test_offsets_are_told_before_they_are_given() -> None:
    taken = [accepted(0), accepted(1, count=5), accepted(3)]
    told = first_offsets(TAIL, taken)
    done = commit(TAIL, taken, 7)
    end = TAIL.next_offset
    assert list(done.first_offsets) == told == [end, end + 2, end + 7]
    assert {entry.timestamp for entry in done.entries} == {timestamp_of(TAIL, 7)}
    assert first_offsets(TAIL, []) == []


def test_a_commit_of_nothing_changes_nothing_and_time_never_goes_back() -> None:
    assert commit(TAIL, [], 0) == Committed(TAIL, [], [])
    [entry] = commit(TAIL, [accepted(0)], 0).entries
    assert entry.timestamp == TAIL.last_timestamp


BOUNDS = TailBounds(size_max=1_001, entry_count_max=3)


@pytest.mark.parametrize(
    ("tail", "bounds", "refusal"),
    [
        (TAIL, BOUNDS, None),
        (None, BOUNDS, Refusal.GONE),
        (closed(TAIL), BOUNDS, Refusal.GONE),
        (TAIL._replace(state=TailState.FENCED), BOUNDS, Refusal.FENCED),
        (TAIL, TailBounds(1_000, 3), Refusal.FULL),
        (TAIL, TailBounds(1_001, 2), Refusal.FULL),
    ],
)
def test_why_nothing_of_a_stream_is_committed(
    tail: Tail | None, bounds: TailBounds, refusal: Refusal | None
) -> None:
    assert refusal_of(tail, bounds) is refusal


@pytest.mark.parametrize(
    ("seen", "back"),
    [
        (UNSEEN, False),
        (seen_of(TAIL), False),
        (SeenTail(TAIL.epoch, TAIL.next_offset + 1, 0), True),
        (SeenTail(TAIL.epoch, 0, TAIL.pruned_next + 1), True),
        (SeenTail(TAIL.epoch + 1, 0, 0), True),
        (SeenTail(TAIL.epoch - 1, TAIL.next_offset + 1, 0), False),
    ],
)
def test_a_tail_that_shows_less_than_was_seen_has_gone_back(seen: SeenTail, back: bool) -> None:
    """A higher epoch is a rebuild's, which has decided what is there."""
    assert has_gone_back(TAIL, seen) is back
    assert is_of_before(TAIL, 1, seen) is back
    assert is_of_before(TAIL, 2, seen), "it is of another generation"
    assert not has_gone_back(TAIL, seen_of(TAIL, UNSEEN))


def test_what_was_seen_only_grows() -> None:
    older = TAIL._replace(next_offset=1_046, pruned_next=1_000)
    assert seen_of(older, seen_of(TAIL)) == seen_of(TAIL)
    later = TAIL._replace(epoch=TAIL.epoch + 1, next_offset=5)
    assert seen_of(later, seen_of(TAIL)).next_offset == 5
    assert seen_of(TAIL, seen_of(later)) == seen_of(later)


def test_shards_are_the_last_byte_of_the_id() -> None:
    assert shard_of(STREAM_ID) == 1
    assert {shard_of(stream_id_from_bytes(bytes(15) + bytes([n]))) for n in range(256)} == set(
        range(16)
    )


def test_without_the_state_in_the_exec_a_fenced_stream_takes_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the state of the tail in the EXEC of a commit", lambda _: None)
    for state in (TailState.FENCED, TailState.CLOSED):
        assert refusal_of(TAIL._replace(state=state), NO_BOUNDS) is None


def test_without_the_settled_sequence_a_late_commit_names_an_object_that_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = AttemptNumbers(UID, 1, lambda: True, checked=1)
    writer.decided(WAL_INSTANCE.attempt)
    assert loss_of(WAL_INSTANCE, writer, 1) is Loss.SETTLED
    remove(monkeypatch, "the settled sequence in the EXEC of a commit", lambda *_: False)
    assert loss_of(WAL_INSTANCE, writer, 1) is None
