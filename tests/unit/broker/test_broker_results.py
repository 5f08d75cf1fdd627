"""Results of the broker contract: types of errors, and the answer that results make."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Code, Outcome, Overloaded, StoreError
from bottomless_server.core.broker.error_types import CODES, TYPE_OF, ErrorType
from bottomless_server.core.broker.names import Place
from bottomless_server.core.broker.results import Result, Verdict, refused, stored, whole
from bottomless_server.core.broker.turns import Turns, rotated

PLACE = Place("orders", 3)
GOOD = Result({"ok": True})


def failed(error_type: ErrorType, pause: float | None = None) -> Result:
    return Result({"ok": False}, error_type, pause)


def test_every_code_of_the_registry_has_a_type() -> None:
    assert {*TYPE_OF} == {*Code}
    assert {*TYPE_OF.values()} == {*ErrorType}


def test_no_code_stands_in_the_table_twice() -> None:
    named = [code for codes in CODES.values() for code in codes]
    assert len(named) == len({*named})


@pytest.mark.parametrize("code", ["overloaded", "tail-bound", "disk-bound", "rate-limited"])
def test_a_bound_that_is_reached_is_back_pressure(code: str) -> None:
    assert TYPE_OF[Code(code)] is ErrorType.BACK_PRESSURE
    assert sum(one is ErrorType.BACK_PRESSURE for one in TYPE_OF.values()) == 4


def test_what_was_stored_is_named_without_saying_where_it_lies() -> None:
    assert stored(PLACE, "id", 4, 7, 3).members == {
        "topic": "orders",
        "partition": 3,
        "ok": True,
        "start_offset": 4,
        "end_offset": 7,
        "count": 3,
        "index_key": "id:4",
        "wal_uri": "urn:bottomless:wal:id:4-7",
    }


def test_a_repeat_whose_original_is_forgotten_has_no_offsets() -> None:
    members = stored(PLACE, "id", None, 70, 0).members
    assert members["ok"]
    assert {name for name, value in members.items() if value is None} == {
        "start_offset",
        "end_offset",
        "index_key",
        "wal_uri",
    }


def test_a_refusal_says_what_to_do() -> None:
    error = Overloaded("full", code=Code.TAIL_BOUND, retry_after_seconds=2.5)
    result = refused(PLACE, error, write=True)
    assert result == Result(
        {
            "topic": "orders",
            "partition": 3,
            "ok": False,
            "error_type": "BackPressureRejected",
            "error": "full",
            "code": "tail-bound",
            "retryable": True,
            "outcome": "none",
        },
        ErrorType.BACK_PRESSURE,
        2.5,
    )


def test_of_a_read_nothing_is_unknown() -> None:
    error = StoreError("lost", code=Code.PEER_UNAVAILABLE, outcome=Outcome.UNKNOWN)
    assert refused(PLACE, error, write=True).members["outcome"] == "unknown"
    assert refused(PLACE, error, write=False).members["outcome"] == "none"


@pytest.mark.parametrize("code", [Code.OFFSET_TRIMMED, Code.OFFSET_OUT_OF_RANGE])
def test_an_offset_out_of_range_brings_both_bounds(code: Code) -> None:
    error = StoreError("gone", code=code, facts={"first_offset": 3, "next_offset": 9})
    members = refused(PLACE, error, write=False).members
    assert members["error_type"] == "OffsetOutOfRange"
    assert (members["log_start"], members["high_watermark"]) == (3, 9)


def test_an_offset_that_was_not_expected_brings_the_end() -> None:
    error = StoreError("other", code=Code.OFFSET_MISMATCH, facts={"next_offset": 9})
    assert refused(PLACE, error, write=True).members["high_watermark"] == 9


results = st.lists(
    st.just(GOOD) | st.builds(failed, st.sampled_from(ErrorType), st.none() | st.floats(0.1, 30)),
    min_size=1,
    max_size=8,
)


@given(results)
def test_the_answer_follows_from_the_results(given_results: list[Result]) -> None:
    answer = whole(given_results)
    types = [one.failed for one in given_results]
    if not any(types):
        expected = Verdict.GOOD
    elif {*types} == {ErrorType.BACK_PRESSURE}:
        expected = Verdict.HELD_BACK
    else:
        expected = Verdict.FAILED

    assert answer.verdict is expected
    assert answer.members["results"] == [one.members for one in given_results]
    assert answer.members["success_count"] == types.count(None)
    assert answer.members["error_count"] == len(types) - types.count(None)
    if expected is Verdict.HELD_BACK:
        pauses = [one.retry_after_seconds or 1 for one in given_results]
        assert answer.retry_after_seconds is not None
        assert max(pauses) <= answer.retry_after_seconds < max(pauses) + 1
    else:
        assert answer.retry_after_seconds is None


@given(st.integers(1, 12), st.integers(0, 50))
def test_each_is_first_once_in_as_many_turns_as_there_are(count: int, begin: int) -> None:
    items = list(range(count))
    turns = [rotated(items, begin + turn) for turn in range(count)]
    assert sorted(turn[0] for turn in turns) == items
    assert all(sorted(turn) == items for turn in turns)


def test_two_clients_in_lockstep_both_go_round() -> None:
    turns = Turns()
    seen = [(client, turns.take(client)) for _, client in product(range(4), "ab")]
    for client in "ab":
        taken = [turn for who, turn in seen if who == client]
        assert taken == list(range(taken[0], taken[0] + 4))


def test_clients_beyond_the_bound_are_forgotten_and_still_do_not_begin_alike() -> None:
    turns = Turns(client_count_max=2)
    first = [turns.take(client) for client in range(10)]
    assert len(turns) == 2
    assert first == list(range(10))
    # Forgotten each time, the clients of a crowd are first in turn all the same.
    assert turns.take(0) == 10
