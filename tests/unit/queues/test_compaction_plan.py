"""Plans of compaction: what moves goes where it fits, and nothing that is needed is written over."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.formats.message_file import HEADER_SIZE
from bottomless_server.queues.core.compaction_plan import (
    CompactionPlan,
    LiveRecord,
    begins_in_one_sector,
    gaps_of,
    is_candidate,
    is_enough,
    plan_compaction,
)
from unit.formats.examples import a_msg_id

layouts = st.lists(
    st.tuples(st.integers(25, 90) | st.integers(1, 600).map(lambda size: 21 + size), st.booleans()),
    max_size=40,
)


def laid(layout: list[tuple[int, bool]]) -> tuple[list[LiveRecord], int]:
    live, position = [], HEADER_SIZE
    for number, (size, needed) in enumerate(layout):
        if needed:
            live.append(LiveRecord(a_msg_id(number), position, size))
        position += size
    return live, position


def after(live: list[LiveRecord], plan: CompactionPlan) -> list[LiveRecord]:
    moved = {record.msg_id: position for record, position in plan.moves}
    placed = [one._replace(position=moved.get(one.msg_id, one.position)) for one in live]
    return sorted(placed, key=lambda one: one.position)


def naive(live: list[LiveRecord], size: int) -> CompactionPlan:
    """Each gap looked at for each record, from the last one on."""
    gaps = [(at, length) for at, length in gaps_of(live, size) if begins_in_one_sector(at)]
    used = dict.fromkeys(gaps, 0)
    placed = {one: one.position for one in live}
    for record in reversed(live):
        fits = [g for g in gaps if g[0] < record.position and g[1] - used[g] >= record.size]
        if not fits:
            break
        placed[record] = fits[0][0] + used[fits[0]]
        used[fits[0]] += record.size
    end = max([HEADER_SIZE, *(at + one.size for one, at in placed.items())])
    return CompactionPlan((), end)


@given(layout=layouts)
def test_records_move_down_into_gaps_that_they_fit_and_overlap_nothing(
    layout: list[tuple[int, bool]],
) -> None:
    live, size = laid(layout)
    plan = plan_compaction(live, size)
    assert plan.end == naive(live, size).end
    gaps = gaps_of(live, size)
    for filling in plan.fillings:
        assert (filling.position, filling.size) in gaps
        assert filling.filled <= filling.size
        assert begins_in_one_sector(filling.position)
        assert all(record.position >= filling.position + filling.size for record in filling.records)
    placed = after(live, plan)
    gaps_of(placed, plan.end)
    assert {one.msg_id for one in placed} == {one.msg_id for one in live}
    assert max([HEADER_SIZE, *(one.position + one.size for one in placed)]) == plan.end


@given(layout=layouts)
def test_a_second_plan_without_removals_moves_nothing(layout: list[tuple[int, bool]]) -> None:
    live, size = laid(layout)
    plan = plan_compaction(live, size)
    again = plan_compaction(after(live, plan), plan.end)
    assert again == CompactionPlan((), plan.end)


def test_what_is_left_of_a_large_file_is_planned_in_a_moment() -> None:
    """Of ten thousand gaps each is found without a look at those before it: naively 10^8 looks."""
    live, size = laid([(100 + number % 7, number % 3 == 0) for number in range(30_000)])
    plan = plan_compaction(live, size)
    assert sum(len(filling.records) for filling in plan.fillings) > 6_000
    assert is_enough(plan, sum(one.size for one in live), 0.5)


def test_a_gap_whose_first_bytes_are_in_two_sectors_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [at for at in range(505, 515) if not begins_in_one_sector(at)] == [508, 509, 510, 511]
    live = [LiveRecord(a_msg_id(1), 64, 509 - 64), LiveRecord(a_msg_id(2), 900, 30)]
    assert plan_compaction(live, 930) == CompactionPlan((), 930)
    remove(monkeypatch, "a destination's first bytes in one sector", lambda _: True)
    assert [at for _, at in plan_compaction(live, 930).moves] == [509]


def test_a_gap_whose_first_bytes_just_fit_a_sector_is_a_destination() -> None:
    live = [LiveRecord(a_msg_id(1), 64, 507 - 64), LiveRecord(a_msg_id(2), 900, 30)]
    assert [at for _, at in plan_compaction(live, 930).moves] == [507]


@pytest.mark.parametrize(
    ("valid", "size", "candidate"), [(0, 164, True), (49, 164, True), (50, 164, False)]
)
def test_a_file_is_a_candidate_while_less_than_its_share_is_needed(
    valid: int, size: int, candidate: bool
) -> None:
    assert is_candidate(valid, size, 0.5) is candidate


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("valid", [25, 64, 1_000])
def test_a_file_that_was_just_written_anew_is_no_candidate_whatever_the_share(
    valid: int, share: float
) -> None:
    assert not is_candidate(valid, HEADER_SIZE + valid, share)
    assert is_candidate(valid, HEADER_SIZE + valid + 2 * valid, share)


def test_any_file_of_which_half_is_needed_shrinks_to_what_is_needed_or_is_better_rewritten() -> (
    None
):
    chance = random.Random(3)
    enough = 0
    for _ in range(200):
        layout = [(chance.randrange(25, 400), chance.random() < 0.3) for _ in range(100)]
        live, size = laid(layout)
        enough += is_enough(plan_compaction(live, size), sum(one.size for one in live), 0.5)
    assert enough > 190
