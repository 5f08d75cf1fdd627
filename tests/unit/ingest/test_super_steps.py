"""The steps of requests at one partition, beside the parts."""

import pytest

from bottomless.errors import Code, Overloaded, WrongOffset
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.places import Places
from bottomless_server.ingest.producers.super_requests import part_name
from bottomless_server.ingest.producers.super_steps import answer_to_step, changes, entries_of
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.protocol.parts import PartSaid, StepAsked, StepSaid

NOW, END = 1_000, 40
BOUNDS = TrackingBounds(producer_count_max=3, append_count_max=5, key_count_max=10, keep_ms=60_000)


def begin(first: int, last: int, epoch: int = 0) -> StepAsked:
    return StepAsked("begin", "p", epoch, first, last, 7, layout=1)


class Partition:
    """One partition, of which no part is stored."""

    def __init__(self, bounds: TrackingBounds = BOUNDS) -> None:
        self.tracking = Tracking(bounds)

    def do(self, asked: StepAsked) -> StepSaid:
        if changes(asked):
            places = Places(self.tracking)
            self.tracking.take_tracked(entries_of(self.tracking, asked, NOW, places, 1))
        return answer_to_step(self.tracking, asked, END, 1)


def test_a_request_goes_on_is_whole_and_is_followed_by_the_next() -> None:
    partition = Partition()
    assert partition.do(begin(0, 9)) == StepSaid("go-on")
    assert partition.do(begin(0, 9)._replace(step="complete")).last == 9
    assert partition.do(begin(0, 9)).state == "whole"
    follows = partition.do(begin(10, 12))
    assert (follows.state, follows.layout_before) == ("go-on", 1)
    with pytest.raises(WrongOffset):
        partition.do(begin(11, 12))


def test_a_step_that_is_done_again_writes_nothing_more() -> None:
    partition = Partition()
    for asked in (
        begin(0, 9)._replace(step="complete"),
        StepAsked("raise-parts", "p", 2, layouts=[1, 2], layout=2),
        StepAsked("raise-whole", "p", 2, highest=9, layout=2),
    ):
        partition.do(asked)
        places = Places(partition.tracking)
        assert not entries_of(partition.tracking, asked, NOW, places, 1)


def test_a_higher_epoch_is_raised_for_all_layouts_and_then_for_whole_requests() -> None:
    partition = Partition()
    assert partition.do(begin(0, 9, epoch=3)).state == "raise"
    assert partition.do(StepAsked("raise-parts", "p", 3, layouts=[1, 2], layout=2)).last is None
    said = partition.do(StepAsked("raise-whole", "p", 3, highest=14, layout=2))
    assert (said.epoch, said.last) == (3, 14)
    assert partition.do(begin(15, 19, epoch=3)).state == "go-on"


def test_names_that_one_step_brings_each_need_a_place() -> None:
    asked = StepAsked("raise-parts", "p", 1, layouts=[1, 2, 3], layout=3)
    assert len(Partition().do(asked).parts) == 0
    with pytest.raises(Overloaded) as raised:
        Partition(BOUNDS._replace(producer_count_max=2)).do(asked)
    assert raised.value.code is Code.QUOTA_EXCEEDED


def test_names_of_all_layouts_that_were_silent_give_way_to_another_producer() -> None:
    room, partition = TrackingRoom(1_000_000), Partition()
    room.join(partition.tracking, NOW)
    asked = StepAsked("raise-parts", "p", 1, layouts=[1, 2, 3], layout=3)
    partition.do(asked)
    other = asked._replace(producer_id="q")
    room.tell(room.elapsed + BOUNDS.keep_ms - 1)
    with pytest.raises(Overloaded):
        partition.do(other)
    assert len(partition.tracking.producers) == BOUNDS.producer_count_max
    room.tell(room.elapsed + 1)
    partition.do(other)
    assert [*partition.tracking.producers] == [part_name(layout, "q") for layout in (1, 2, 3)]


def test_a_part_that_is_not_remembered_is_told_without_its_place() -> None:
    asked = StepAsked("recall", "p", 0, 0, 9, 7, layouts=[1])
    assert Partition().do(asked).part == PartSaid(None, END, None, 0, 0, True)
