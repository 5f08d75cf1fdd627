"""Names of staged files say all of them; parts hold every batch once; a plan is read as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.sealed_json import seal
from bottomless_server.ingest.producers.commit_plan import (
    CommitPlan,
    StagedBatch,
    decode_plan,
    encode_plan,
    parse_file_name,
    parts_of,
    plan_name,
)

ID = "st_" + "0f" * 16
BATCHES = st.builds(
    StagedBatch,
    st.just(ID),
    st.integers(0, 10**14),
    st.integers(1, 2**24),
    st.integers(1, 10**6),
    st.integers(1, 2**15),
)
PLAN = CommitPlan(
    "load.large", 7, 1_750_000_000_000, ((ID, "st_" + "1" * 32), ("st_" + "2" * 32,)), 4
)


IN_ORDER = {
    name: getattr(PLAN, name) for name in ("producer_id", "epoch", "number", "created_at", "parts")
}


@given(batch=BATCHES)
def test_a_file_name_says_what_is_in_the_file(batch: StagedBatch) -> None:
    assert parse_file_name(batch.file_name) == batch


@pytest.mark.parametrize("name", ["x.staged", f"{ID}.1.2.3.4.staged.new", f"{ID}.1.2.3.staged", ""])
def test_other_files_are_no_staged_batches(name: str) -> None:
    assert parse_file_name(name) is None


@given(batches=st.lists(BATCHES, min_size=1, max_size=40), size_max=st.integers(1, 2**26))
def test_parts_hold_every_batch_in_order_and_stay_below_their_bounds(
    batches: list[StagedBatch], size_max: int
) -> None:
    parts = parts_of(batches, size_max)
    assert [batch for part in parts for batch in part] == batches
    for part in parts:
        size = sum(batch.size for batch in part)
        records = sum(batch.record_count for batch in part)
        frames = sum(batch.frame_count for batch in part)
        fits = size <= size_max and records <= 4_000_000 and frames <= 32_767
        assert fits or len(part) == 1


def test_no_two_parts_could_be_one() -> None:
    batches = [StagedBatch(ID, 0, size, 1, 1) for size in (4, 4, 4, 9, 1)]
    assert [[batch.size for batch in part] for part in parts_of(batches, 8)] == [
        [4, 4],
        [4],
        [9],
        [1],
    ]


def test_a_plan_is_read_as_it_was_written() -> None:
    assert decode_plan(encode_plan(PLAN)) == PLAN
    assert len(PLAN.staged_ids) == 3


def test_a_plan_has_exactly_this_form() -> None:
    assert encode_plan(PLAN).startswith(
        b'{"format":2,"producer_id":"load.large","epoch":4,"number":7,"created_at":1750000000000,"parts":[["st_'
    )


@given(position=st.integers(0, len(encode_plan(PLAN)) - 1), flip=st.integers(1, 255))
def test_a_damaged_plan_is_never_followed(position: int, flip: int) -> None:
    data = bytearray(encode_plan(PLAN))
    data[position] ^= flip
    with pytest.raises(Corrupt):
        decode_plan(bytes(data))


def test_the_file_of_a_plan_shows_no_name_of_a_producer() -> None:
    assert plan_name("a") != plan_name("b")
    assert plan_name("../../a").count("/") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"producer_id": None},
        {"number": 1.0},
        {"number": 2**63},
        {"number": True},
        {"epoch": None},
        {"epoch": -1},
        {"created_at": -1},
        {"parts": {}},
        {"parts": [{}]},
        {"parts": ["st_"]},
        {"parts": [[ID, None]]},
        {"parts": [["../" + ID]]},
    ],
)
def test_a_plan_that_nobody_can_have_written_is_corrupt(changes: dict[str, object]) -> None:
    """Found by fuzzing: numbers and ids of any type were taken for what they are not."""
    with pytest.raises(Corrupt):
        decode_plan(seal({**IN_ORDER, **changes}, 2))


def test_a_plan_of_version_1_is_read_as_one() -> None:
    members = {name: value for name, value in IN_ORDER.items() if name != "epoch"}
    assert decode_plan(seal(members)) == PLAN._replace(epoch=None)
