"""Sequences come from a block that was reserved before, and some are kept for notes."""

import pytest
from support.guards import remove

from bottomless_server.ingest.leaderless.core.sequences import KEPT_COUNT, Sequences


def test_each_sequence_is_given_once_and_in_its_order() -> None:
    sequences = Sequences(KEPT_COUNT + 3)
    assert [sequences.take() for _ in range(3)] == [0, 1, 2]
    assert sequences.take() is None
    sequences.note_reserved(KEPT_COUNT + 4)
    assert (sequences.take(), sequences.take()) == (3, None)


def test_the_last_ones_are_kept_for_notes() -> None:
    sequences = Sequences(KEPT_COUNT)
    assert sequences.take() is None
    assert [sequences.take(for_notes=True) for _ in range(KEPT_COUNT)] == list(range(KEPT_COUNT))
    assert sequences.take(for_notes=True) is None


def test_without_those_flushes_that_come_to_nothing_leave_no_sequence_for_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the sequences that are kept for notes", lambda left, **_: left > 0)
    sequences = Sequences(KEPT_COUNT)
    while sequences.take() is not None:
        pass
    assert sequences.take(for_notes=True) is None


def test_what_an_older_record_says_takes_nothing_away() -> None:
    sequences = Sequences(KEPT_COUNT + 2)
    sequences.note_reserved(3)
    assert sequences.left == KEPT_COUNT + 2
