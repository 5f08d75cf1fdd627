"""What a log that follows another keeps when it is opened, and what it takes."""

from dataclasses import replace

import pytest

from bottomless.formats.segment import HEADER_SIZE
from bottomless_server.node.core.following import (
    NEVER_OWNED,
    Held,
    HeldSegment,
    LastOwned,
    Opened,
    OpenRefusal,
    Run,
    Sent,
    added,
    freed,
    judge,
    open_log,
    told,
)
from bottomless_server.protocol.replica import NOWHERE, EpochEnd, Opening, Place, Taken


def log_of(*chunks: tuple[int, int, int]) -> Held:
    """Of (epoch, first offset of the segment, next offset), each 10 bytes."""
    held = Held()
    for epoch, segment_first, next_offset in chunks:
        last = held.segments[-1].end if held.segments else None
        fits = last is not None and last.segment_first == segment_first
        place = last if last is not None and fits else Place(segment_first, HEADER_SIZE)
        held = added(held, epoch, place, 10, next_offset)
    return held


def place(segment_first: int, chunks: int) -> Place:
    return Place(segment_first, HEADER_SIZE + 10 * chunks)


def opening(epoch: int, *ends: EpochEnd, local_first: int = 0, published_next: int = 0) -> Opening:
    return Opening(epoch, ends, local_first, published_next, 1)


THREE = log_of((1, 0, 2), (1, 0, 4), (2, 4, 6))
"""Two chunks of epoch 1 in one segment, and one of epoch 2 in the next."""


def opened(
    held: Held, said: Opening, *, in_sync: bool = False, owned: LastOwned = NEVER_OWNED
) -> Opened:
    found = open_log(held, said, in_sync=in_sync, owned=owned)
    assert isinstance(found, Opened)
    return found


def test_a_log_that_its_owner_has_too_stays_whole() -> None:
    said = opening(3, EpochEnd(1, place(0, 2), 4), EpochEnd(2, place(4, 1), 6))
    found = opened(THREE, said)
    assert found.held == replace(THREE, epoch=3)
    assert (found.cut, found.end, found.set_aside) == (None, place(4, 1), False)


def test_it_is_cut_where_an_epoch_ends_earlier() -> None:
    found = opened(THREE, opening(3, EpochEnd(1, place(0, 1), 2)))
    assert (found.cut, found.held.next_offset) == (place(0, 1), 2)
    assert found.held.segments == (HeldSegment(0, (Run(1, place(0, 1), 2),)),)


def test_it_is_cut_where_an_epoch_begins_that_its_owner_does_not_have() -> None:
    found = opened(THREE, opening(3, EpochEnd(1, place(0, 2), 4)))
    assert (found.cut, found.held.next_offset) == (place(0, 2), 4)


def test_the_epoch_that_opens_is_kept_whole_however_late_the_opening_is() -> None:
    found = opened(THREE, opening(2, EpochEnd(1, place(0, 2), 4)))
    assert (found.cut, found.held) == (None, THREE)


def test_an_owner_of_the_past_opens_nothing() -> None:
    assert open_log(THREE, opening(1), in_sync=False) is OpenRefusal.FENCED


def test_segments_that_the_owner_has_freed_with_their_epochs_go_and_the_others_stay() -> None:
    said = opening(3, EpochEnd(2, place(4, 1), 6), local_first=4, published_next=4)
    found = opened(THREE, said)
    assert [one.first_offset for one in found.held.segments] == [4]
    assert (found.cut, found.end) == (None, place(4, 1))


def test_a_segment_goes_that_begins_with_a_freed_epoch_and_the_log_after_it_stays() -> None:
    """The owner was restarted in a segment that it has freed since, and this node has not."""
    held = told(log_of((1, 0, 2), (2, 0, 4), (2, 4, 6), (2, 4, 8)), 8)
    said = opening(3, EpochEnd(2, place(4, 2), 8), local_first=4, published_next=4)
    found = opened(held, said, in_sync=True)
    assert [one.first_offset for one in found.held.segments] == [4]
    assert (found.cut, found.end, found.set_aside) == (None, place(4, 2), False)


def test_a_published_segment_is_cut_too_where_its_owner_has_other_bytes() -> None:
    """A node that was away holds two records of epoch 1 that nobody else has, and others stand at
    their offsets in the stream, which are published by now."""
    said = opening(3, EpochEnd(1, place(0, 1), 2), EpochEnd(2, place(0, 3), 9), published_next=9)
    found = opened(log_of((1, 0, 2), (1, 0, 4)), said)
    assert (found.cut, found.end) == (place(0, 1), place(0, 1))


def test_a_log_that_ends_before_the_owners_oldest_segment_begins_anew() -> None:
    said = opening(3, EpochEnd(1, place(0, 2), 4), local_first=8, published_next=9)
    found = opened(log_of((1, 0, 2), (1, 0, 4)), said)
    assert (found.held.segments, found.end, found.set_aside) == ((), None, False)


def test_a_log_of_which_nothing_stays_and_not_all_is_published_is_put_aside() -> None:
    found = opened(THREE, opening(3, published_next=5))
    assert (found.held.segments, found.set_aside) == ((), True)


def test_who_was_told_of_more_does_not_cut() -> None:
    said = opening(3, EpochEnd(1, place(0, 1), 2))
    knowing = told(THREE, 6)
    assert open_log(knowing, said, in_sync=True) is OpenRefusal.DIVERGED
    found = opened(knowing, said)
    assert (found.held.segments, found.set_aside, found.held.committed_next) == ((), True, 0)


def not_shown(epoch: int, *ends: EpochEnd, published_next: int = 0) -> Opening:
    """Of an owner that has just claimed."""
    return opening(epoch, *ends, published_next=published_next)._replace(shown=False)


BEYOND = {
    "more of the owner's newest epoch": not_shown(3, EpochEnd(1, place(0, 1), 2)),
    "a later epoch after all of that one": not_shown(3, EpochEnd(1, place(0, 2), 4)),
    "what follows a log that is published": not_shown(
        3, EpochEnd(1, place(0, 2), 4), published_next=4
    ),
    "all of a stream whose owner has nothing": not_shown(3, published_next=4),
}


@pytest.mark.parametrize("name", BEYOND)
def test_in_sync_nothing_is_cut_of_a_log_that_goes_on_where_the_owners_ends(name: str) -> None:
    """Nobody was told of anything: all nodes may have lost their power."""
    said = BEYOND[name]
    assert THREE.committed_next == 0
    assert open_log(THREE, said, in_sync=True) is OpenRefusal.DIVERGED
    # Out of sync it counts for nothing; and an owner that has shown its log has everything.
    assert opened(THREE, said).held.next_offset < 6
    assert opened(THREE, said._replace(shown=True), in_sync=True).held.next_offset < 6


def test_what_is_published_of_an_older_segment_need_not_be_there_to_go_beyond_an_owner() -> None:
    later = replace(THREE, segments=THREE.segments[1:])
    said = not_shown(3, EpochEnd(1, place(0, 2), 4), published_next=4)
    assert open_log(later, said, in_sync=True) is OpenRefusal.DIVERGED


def owned(epoch: int, shown: Place = NOWHERE) -> LastOwned:
    return LastOwned(epoch, 0, shown)


def test_of_its_own_newest_epoch_a_node_knows_what_it_has_shown() -> None:
    """It gave the stream away with a round that nobody else had."""
    said = not_shown(3, EpochEnd(1, place(0, 2), 4))
    assert opened(told(THREE, 4), said, in_sync=True, owned=owned(2)).cut == place(0, 2)
    assert open_log(told(THREE, 5), said, in_sync=True, owned=owned(2)) is OpenRefusal.DIVERGED


def test_what_it_has_shown_need_not_be_records() -> None:
    said = not_shown(3, EpochEnd(1, place(0, 2), 4))
    shown = owned(2, place(4, 1))
    assert open_log(THREE, said, in_sync=True, owned=shown) is OpenRefusal.DIVERGED
    assert opened(THREE, said, in_sync=True, owned=owned(2, place(0, 2))).cut == place(0, 2)


def test_once_another_owner_has_opened_its_log_a_node_knows_it_no_more() -> None:
    """That one may have shown the round, without its word of it having come."""
    said = not_shown(4, EpochEnd(1, place(0, 2), 4))
    since = replace(THREE, epoch=3)
    assert open_log(since, said, in_sync=True, owned=owned(2)) is OpenRefusal.DIVERGED
    assert opened(THREE, said, in_sync=True, owned=owned(2)).cut == place(0, 2)


def test_of_other_epochs_a_node_that_was_an_owner_knows_no_more_than_others() -> None:
    """A later owner's round may not have been told here; an earlier one's was perhaps never shown here."""
    later = not_shown(3, EpochEnd(1, place(0, 2), 4))
    assert open_log(told(THREE, 4), later, in_sync=True, owned=owned(1)) is OpenRefusal.DIVERGED
    earlier = not_shown(3, EpochEnd(1, place(0, 1), 2))
    assert open_log(told(THREE, 2), earlier, in_sync=True, owned=owned(2)) is OpenRefusal.DIVERGED


def test_an_owner_without_a_log_has_less_than_any_log_in_sync() -> None:
    """Chunks without records end where all is published, and say something of producers."""
    without = Held(1, 0, (HeldSegment(6, (Run(1, place(6, 1), 6),)),))
    assert open_log(without, not_shown(2, published_next=6), in_sync=True) is OpenRefusal.DIVERGED
    assert not opened(without, not_shown(2, published_next=6)).held.segments


def test_a_log_that_lacks_something_of_the_owners_is_cut_also_in_sync() -> None:
    """Where both have something that the other does not have, nobody can tell who is right."""
    said = not_shown(3, EpochEnd(1, place(0, 3), 5))
    assert opened(THREE, said, in_sync=True).cut == place(0, 2)


def test_a_log_that_ends_where_the_owners_does_is_opened_also_in_sync() -> None:
    said = not_shown(3, EpochEnd(1, place(0, 2), 4), EpochEnd(2, place(4, 1), 6))
    assert opened(THREE, said, in_sync=True).end == place(4, 1)


def test_what_is_published_is_not_missed() -> None:
    said = opening(3, EpochEnd(1, place(0, 1), 2), published_next=6)
    assert opened(told(THREE, 6), said, in_sync=True).cut == place(0, 1)


def test_what_was_told_counts_as_far_as_the_log_goes_and_never_goes_back() -> None:
    assert told(THREE, 9).committed_next == 6
    assert told(told(THREE, 4), 2).committed_next == 4
    assert told(Held(), 4).committed_next == 0


@pytest.mark.parametrize(
    ("open_epoch", "sent", "answer"),
    [
        (2, Sent(2, place(4, 1), False, 0), None),
        (2, Sent(2, place(4, 0), False, 0), Taken.OK),
        (2, Sent(2, place(0, 1), False, 0), Taken.OK),
        (2, Sent(2, place(4, 2), False, 0), Taken.GAP),
        (2, Sent(2, place(6, 0), True, HEADER_SIZE + 10), None),
        (2, Sent(2, place(6, 0), True, HEADER_SIZE + 20), Taken.GAP),
        (2, Sent(2, place(7, 0), True, HEADER_SIZE + 10), Taken.GAP),
        (2, Sent(1, place(4, 1), False, 0), Taken.FENCED),
        (2, Sent(3, place(4, 1), False, 0), Taken.NOT_OPEN),
        (None, Sent(2, place(4, 1), False, 0), Taken.NOT_OPEN),
    ],
)
def test_chunks_are_taken_at_the_end_under_the_open_epoch(
    open_epoch: int | None, sent: Sent, answer: Taken | None
) -> None:
    assert judge(THREE, open_epoch, sent, 0) is answer


def test_an_empty_log_begins_with_a_segment_before_which_all_is_published() -> None:
    held = Held(epoch=2)
    assert judge(held, 2, Sent(2, place(4, 0), True, 99), 5) is None
    assert judge(held, 2, Sent(2, place(6, 0), True, 99), 5) is Taken.GAP
    assert judge(held, 2, Sent(2, place(4, 1), False, 0), 5) is Taken.GAP


def test_published_segments_are_freed_but_the_last() -> None:
    assert [one.first_offset for one in freed(THREE, 4).segments] == [4]
    assert freed(THREE, 3) == THREE
    assert [one.first_offset for one in freed(THREE, 9).segments] == [4]
    assert freed(THREE, 9, kept=[0]) == THREE
