"""The record of an instance, and what its writer may still commit."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Corrupt
from bottomless.model.limits import WAL_SEQUENCE_MAX
from bottomless_server.leaderless.attempts import NOTHING_COMPARED, AttemptNumbers, is_owing
from bottomless_server.leaderless.instance import (
    RESERVED_COUNT,
    RESERVED_LEFT_MIN,
    Loss,
    WalInstance,
    committed,
    decode_instance,
    encode_instance,
    loss_of,
    settled_whole,
)
from unit.formats.examples import UID, WAL_INSTANCE


def numbers(*, held: bool = False) -> AttemptNumbers:
    """A writer whose record has the attempt 41, as that of the examples does."""
    made = AttemptNumbers(UID, 1, lambda: held, checked=1)
    made.decided(41)
    return made


@pytest.mark.parametrize("record", [WAL_INSTANCE, WalInstance(None, 0, 0, 0)])
def test_records_come_back(record: WalInstance) -> None:
    assert decode_instance(encode_instance(record)) == record


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"url": 1},
        {"settled": 1025},
        {"settled": True},
        {"deleted": 7},
        {"deleted": -1},
        {"reserved": WAL_SEQUENCE_MAX + 2},
        {"attempt": "41"},
        {"keep_until": 2**62},
        {"more": 1},
    ],
)
def test_a_record_that_no_writer_made_is_refused(changed: dict[str, Any]) -> None:
    members = orjson.loads(encode_instance(WAL_INSTANCE)) | changed
    with pytest.raises(Corrupt):
        decode_instance(orjson.dumps(members))
    del members[next(iter(changed))]
    if next(iter(changed)) != "more":
        with pytest.raises(Corrupt):
            decode_instance(orjson.dumps(members))


@pytest.mark.parametrize(
    ("record", "sequence", "loss"),
    [
        (WAL_INSTANCE, 6, None),
        (WAL_INSTANCE, 5, Loss.SETTLED),
        (None, 6, Loss.GONE),
        (replace(WAL_INSTANCE, attempt=40), 6, Loss.REGRESSED),
        (replace(WAL_INSTANCE, attempt=42), 6, Loss.GONE),
        (replace(WAL_INSTANCE, generation=2), 6, Loss.REGRESSED),
    ],
)
def test_a_writer_commits_only_what_is_still_its_own(
    record: WalInstance | None, sequence: int, loss: Loss | None
) -> None:
    assert loss_of(record, numbers(), sequence) is loss


def test_no_number_of_an_attempt_is_given_twice() -> None:
    """Also where nothing is known of what became of the one before."""
    own = numbers()
    lost, bump = own.take(), own.take()
    own.lose(lost, 0)
    own.decided(lost)
    assert [lost, bump, own.take(owing=True), own.take()] == [2, 4, 5, 8]
    assert (own.attempt, own.lost) == (lost, None)


def test_a_commit_outlives_its_run_of_the_store_and_is_not_settled_before_it_is_made_again() -> (
    None
):
    own = numbers()
    own.compared(1, "one run")
    lost = own.take()
    own.lose(lost, 3)
    own.compared(2, "one run")
    assert not own.is_outlived
    own.compared(3, "the next")
    assert own.is_outlived
    bump = own.take(owing=True)
    assert is_owing(bump)
    own.bumped(bump)
    assert (own.attempt, own.lost, own.owes, own.settled(9)) == (bump, None, True, 3)
    again = own.take()
    assert not is_owing(again)
    own.decided(again)
    assert (own.owes, own.settled(9)) == (False, 9)


def test_a_process_owes_what_any_of_its_instances_does() -> None:
    living: list[AttemptNumbers] = []
    own, other = (AttemptNumbers(UID, 1, lambda: True, 1, "a run", lambda: living) for _ in "12")
    assert not is_owing(own.take())
    living += [own, other]
    assert not is_owing(own.take())
    other.under_way = True
    assert is_owing(own.take())
    other.under_way = False
    other.lose(other.take(), 0, may_be_seen=False)
    assert not other.owes_lost
    assert not is_owing(own.take())
    other.lose(other.take(), 0)
    assert other.owes_lost
    assert is_owing(own.take())
    assert not is_owing(other.take())


def test_what_is_compared_for_a_repeat_alone_ends_with_it() -> None:
    own = numbers()
    own.compared(4, "a run", whole=False)
    assert own.checked == 4
    own.decided(own.take())
    assert own.checked == NOTHING_COMPARED
    own.compared(4, "a run")
    own.decided(own.take())
    assert own.checked == 4


def test_the_record_of_a_writer_that_lives_is_never_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer heard GONE of an older copy, began anew, and gave the same offsets again."""
    assert loss_of(None, numbers(held=True), 6) is Loss.REGRESSED
    remove(monkeypatch, "a record that is gone while its writer lives", lambda _: False)
    assert loss_of(None, numbers(held=True), 6) is Loss.GONE


@given(st.integers(0, 2_000), st.integers(0, 2_000), st.integers(0, 2_000))
def test_sequences_never_run_out_and_nothing_goes_back(
    reserved: int, settled: int, next_sequence: int
) -> None:
    before = WalInstance(None, 1, reserved, min(reserved, 7))
    if next_sequence > reserved:
        with pytest.raises(AssertionError, match="not reserved"):
            committed(before, attempt=1, settled=settled, next_sequence=next_sequence)
        return
    after = committed(before, attempt=1, settled=settled, next_sequence=next_sequence)
    assert before.settled <= after.settled <= after.reserved
    assert after.reserved - before.reserved in (0, RESERVED_COUNT)
    assert after.reserved - next_sequence > RESERVED_LEFT_MIN


@pytest.mark.parametrize("name", ["reserved", "settled", "deleted", "attempt"])
def test_a_record_with_any_lower_number_is_an_older_one(name: str) -> None:
    before = replace(WAL_INSTANCE, deleted=3)
    assert before.goes_on_as(before)
    older = replace(before, **{name: getattr(before, name) - 1})
    assert not before.goes_on_as(older)
    assert older.goes_on_as(before)


def test_a_dead_writer_commits_nothing_of_what_it_reserved() -> None:
    settled = settled_whole(WAL_INSTANCE)
    assert loss_of(settled, numbers(), WAL_INSTANCE.reserved - 1) is Loss.SETTLED
