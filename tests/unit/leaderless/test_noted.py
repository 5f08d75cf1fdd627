"""What a rebuild makes of notes: pure."""

from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import Uid
from bottomless_server.leaderless.noted import UNDECIDED_COUNT, NotedEntry, StreamEnd, end_of

ONE, OTHER = Uid("1" * 32), Uid("2" * 32)


def noted(first: int, count: int = 10, *, instance: Uid = ONE, epoch: int = 1) -> NotedEntry:
    return NotedEntry(first, count, epoch, 1_000 + first, first + 1, instance, first, 0, 64)


def test_what_is_in_the_manifest_is_left_out_and_the_rest_is_in_order() -> None:
    entries = [noted(20), noted(0), noted(10)]
    assert end_of(10, entries, undecided=False) == StreamEnd([noted(10), noted(20)], 30)
    assert end_of(30, entries, undecided=False) == StreamEnd([], 30)
    assert end_of(0, [], undecided=False) == StreamEnd([], 0)


def test_an_entry_in_which_the_manifest_ends_is_needed() -> None:
    assert end_of(5, [noted(0)], undecided=False) == StreamEnd([noted(0)], 10)


def test_the_same_note_twice_is_one() -> None:
    assert end_of(0, [noted(0), noted(0)], undecided=False) == StreamEnd([noted(0)], 10)


def test_what_one_node_had_not_noted_does_not_cost_what_another_has() -> None:
    entries = [noted(10, instance=OTHER), noted(40)]
    assert end_of(0, entries, undecided=False) == StreamEnd(entries, 50)


def test_a_stream_goes_on_beyond_what_was_not_decided() -> None:
    assert end_of(7, [], undecided=True) == StreamEnd([], 7 + UNDECIDED_COUNT)
    assert end_of(0, [noted(0)], undecided=True) == StreamEnd([noted(0)], 10 + UNDECIDED_COUNT)
    assert end_of(OFFSET_MAX, [], undecided=True).goes_on_at == OFFSET_MAX + 1


def test_of_two_that_differ_the_higher_epoch_counts() -> None:
    older, newer = noted(0, 20), noted(10, instance=OTHER, epoch=2)
    for entries in ([older, newer], [newer, older]):
        assert end_of(0, entries, undecided=False) == StreamEnd([newer], 20)
    newer = noted(0, instance=OTHER, epoch=2)
    later = noted(5, 10)
    assert end_of(0, [newer, later], undecided=False) == StreamEnd([newer], 10)


def test_where_two_of_one_epoch_differ_the_stream_ends() -> None:
    entries = [noted(0), noted(10), noted(15, instance=OTHER), noted(25)]
    end = end_of(0, entries, undecided=False)
    assert end == StreamEnd([noted(0)], 35 + UNDECIDED_COUNT, differs_at=10)
