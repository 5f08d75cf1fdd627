"""Every note goes into each object until one that carries it is durable."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.model.wal import Note
from bottomless_server.ingest.leaderless.core.notes import Notes

LINGER_MS = 1_000


def a_note(sequence: int, number: int = 1) -> Note:
    return Note(sequence, 0, 1, 0, 5, 1, number)


def test_a_note_goes_along_until_an_object_with_it_is_durable() -> None:
    notes = Notes(LINGER_MS)
    notes.add([a_note(0)], 5)

    first, second = notes.carry(1, 1), notes.carry(2, 1)
    assert first.notes == second.notes == [a_note(0)]
    notes.end(1, durable=False)
    assert notes.carry(3, 1).notes == [a_note(0)]
    notes.end(2, durable=True)
    assert notes.carry(4, 1).notes == []
    assert len(notes) == 0


def test_one_object_that_carries_it_is_enough_whatever_becomes_of_the_others() -> None:
    notes = Notes(LINGER_MS)
    notes.add([a_note(0)], 5)
    for sequence in (1, 2):
        notes.carry(sequence, 1)
    notes.end(1, durable=True)
    notes.end(2, durable=True)

    assert (notes.added, notes.durable_below) == (1, 1)


def test_what_is_durable_is_told_without_a_gap() -> None:
    notes = Notes(LINGER_MS)
    notes.add([a_note(0)], 5)
    notes.carry(1, 1)
    notes.add([a_note(1)], 6)
    assert notes.added == 2
    assert notes.durable_below == 0
    notes.end(1, durable=True)
    assert notes.durable_below == 1


def test_an_object_with_notes_alone_is_due_when_no_flush_took_them_in_time() -> None:
    notes = Notes(LINGER_MS)
    assert notes.due_at() is None
    notes.add([a_note(0)], 5)
    notes.add([a_note(1)], 50)
    assert notes.due_at() == 5 + LINGER_MS
    notes.carry(2, 2)
    assert notes.due_at() is None
    notes.end(2, durable=False)
    assert notes.due_at() == 5 + LINGER_MS


def test_what_finds_no_room_in_an_object_does_not_count_as_noted() -> None:
    notes = Notes(LINGER_MS, count_max=2)
    notes.add([a_note(sequence) for sequence in (3, 4, 7)], 5)

    told = notes.carry(9, 8)
    assert [note.sequence for note in told.notes] == [3, 4]
    assert told.noted_below == 7


def test_nothing_is_told_of_itself_or_of_later_ones() -> None:
    assert Notes(LINGER_MS).carry(2, 9).noted_below == 2


STEPS = st.lists(st.tuples(st.sampled_from(["commit", "put", "end"]), st.integers(0, 9)))


class World:
    """Objects that are put side by side, and arrive or not in any order."""

    def __init__(self) -> None:
        self.notes = Notes(LINGER_MS, count_max=4)
        self.sequence = 0
        self.uncommitted: list[int] = []
        self.committed: list[Note] = []
        self.in_flight: dict[int, Any] = {}
        self.durable: dict[int, Any] = {}

    def put(self) -> None:
        settled = min(self.uncommitted, default=self.sequence)
        self.in_flight[self.sequence] = self.notes.carry(self.sequence, settled)
        self.uncommitted.append(self.sequence)
        self.sequence += 1

    def commit(self, chosen: int) -> None:
        if self.uncommitted:
            sequence = self.uncommitted.pop(chosen % len(self.uncommitted))
            self.committed.append(a_note(sequence, len(self.committed) + 1))
            self.notes.add([self.committed[-1]], 0)

    def end(self, chosen: int) -> None:
        if self.in_flight:
            sequence = sorted(self.in_flight)[chosen // 2 % len(self.in_flight)]
            told = self.in_flight.pop(sequence)
            self.notes.end(sequence, durable=bool(chosen % 2))
            if chosen % 2:
                self.durable[sequence] = told

    def check(self) -> None:
        """What a rebuild counts on, if everything but the bucket is lost now."""
        noted = {note for told in self.durable.values() for note in told.notes}
        below = max((told.noted_below for told in self.durable.values()), default=0)
        assert all(sequence >= below for sequence in self.uncommitted)
        missing = {note for note in self.committed if note.sequence < below} - noted
        assert not missing


def play(steps: list[tuple[str, int]]) -> None:
    world = World()
    acts: dict[str, Callable[[int], None]] = {
        "put": lambda _: world.put(),
        "commit": world.commit,
        "end": world.end,
    }
    for name, chosen in steps:
        acts[name](chosen)
        world.check()


@given(STEPS)
def test_what_counts_as_noted_is_noted_in_the_bucket(steps: list[tuple[str, int]]) -> None:
    play(steps)


def test_a_note_that_counts_before_it_is_durable_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Must fail: notes that found no room in an object count as noted there."""
    remove(
        monkeypatch,
        "notes that are durable nowhere do not count as noted",
        lambda settled, _: settled,
    )
    crowd = [("put", 0), ("commit", 0)] * 5

    with pytest.raises(AssertionError):
        play([*crowd, ("put", 0), ("end", 11)])
