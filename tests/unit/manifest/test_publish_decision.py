"""The keeper's stories: what happens, and what it wants done."""

from dataclasses import replace

from support.manifest import Uids, a_fragment, a_record

from bottomless.model.manifest import Node
from bottomless.model.stream import EpochStart, Intent, StreamRecord
from bottomless_server.manifest.tree.core.events import (
    Action,
    Event,
    Failed,
    FragmentsRegistered,
    Publish,
    PublishAt,
    Published,
    PutGroup,
    PutRoot,
    Refuse,
    Resolved,
    TimeReached,
    Why,
)
from bottomless_server.manifest.tree.core.publication import publish_in
from bottomless_server.manifest.tree.core.publish_decision import Keeper, PublishBounds
from bottomless_server.manifest.tree.resolver import empty_root

BOUNDS = PublishBounds(fanout=2, debounce_ms=50, debounce_count=4, held_count_max=6)


class Story:
    """A keeper whose stream expects fragments of ten records."""

    def __init__(self, bounds: PublishBounds = BOUNDS, **changes: object) -> None:
        intents = tuple(
            Intent(a_fragment(first, first + 10).uid, first, "s1") for first in range(0, 200, 10)
        )
        self.record = a_record(uploader="s1", intents=intents, **changes)
        self.keeper = Keeper(self.record, empty_root(self.record), bounds, Uids())

    def tell(self, event: Event, now: int = 0) -> list[Action]:
        actions = self.keeper.handle(event, now)
        if not any(isinstance(action, Publish) for action in actions):
            self.keeper.check()
        return actions

    def register(self, *firsts: int, now: int = 0, session: str = "s1") -> list[Action]:
        fragments = tuple(a_fragment(first, first + 10) for first in firsts)
        return self.tell(FragmentsRegistered(session, fragments), now)

    def publish(self, now: int) -> StreamRecord:
        """Let the time come, and what is planned be published."""
        (publish,) = [a for a in self.tell(TimeReached(), now) if isinstance(a, Publish)]
        record = publish_in(self.keeper.record, publish)
        self.tell(Published(record), now)
        return record


def test_a_fragment_at_the_end_is_published_after_the_debounce() -> None:
    story = Story()

    assert story.register(0, now=5) == [PublishAt(55)]
    assert story.tell(TimeReached(), 54) == []
    put, publish = story.tell(TimeReached(), 55)

    assert isinstance(put, PutRoot)
    assert isinstance(publish, Publish)
    assert publish.next_offset == 10
    assert publish.uids == {a_fragment(0, 10).uid}
    assert publish.pointer.version == story.record.version + 1


def test_a_hole_holds_back_later_fragments_until_it_closes() -> None:
    story = Story()

    assert story.register(10, now=0) == []
    assert story.register(20, now=1) == []
    assert story.register(0, now=2) == [PublishAt(52)]
    assert story.publish(52).published_next == 30
    assert story.keeper.idle


def test_a_full_run_is_published_at_once() -> None:
    story = Story()
    story.register(10, 20, 30)

    actions = story.register(0)

    assert [type(action) for action in actions] == [PutGroup, PutRoot, Publish]


def test_groups_are_put_before_the_root_that_names_them() -> None:
    story = Story()
    story.register(10, 20, 30)

    group, root, _ = story.register(0)

    assert isinstance(group, PutGroup)
    assert isinstance(root, PutRoot)
    assert root.root.node.entries["height"].tolist() == [1, 0, 0]


def test_the_timer_is_set_again_while_fragments_remain() -> None:
    story = Story()
    story.register(0)
    (_, publish) = story.tell(TimeReached(), 50)
    assert isinstance(publish, Publish)

    record = publish_in(story.record, publish)
    story.keeper.handle(Published(record), 60)

    assert story.register(10, now=61) == [PublishAt(111)]


def test_a_failed_publish_is_tried_again_with_the_same_objects() -> None:
    story = Story()
    story.register(0)
    first = story.tell(TimeReached(), 50)

    assert story.tell(Failed(), 60) == [PublishAt(160)]
    assert story.tell(TimeReached(), 160) == first
    assert story.tell(Failed(), 170) == [PublishAt(370)]


def test_after_somebody_else_published_the_rest_is_applied_to_their_root() -> None:
    story, other = Story(), Story()
    story.register(0, 10)
    other.register(0)
    theirs = other.publish(50)
    story.tell(TimeReached(), 50)

    refused, rearmed = story.tell(Resolved(theirs, other.keeper.root), 60)

    assert refused == Refuse((a_fragment(0, 10),), Why.NO_INTENT)
    assert rearmed == PublishAt(110)
    assert story.publish(110).published_next == 20


def test_a_fragment_of_an_epoch_that_did_not_write_it_is_refused() -> None:
    story = Story(epoch=2, epochs=(EpochStart(1, 0), EpochStart(2, 5)))

    assert refused_for(story.register(0)) is Why.FENCED


def test_a_newer_epoch_refuses_what_was_taken_before() -> None:
    story = Story()
    story.register(0, 10)
    newer = replace(story.record, epoch=2, epochs=(EpochStart(1, 0), EpochStart(2, 10)))

    (refused,) = story.tell(Resolved(newer, root_of(story)), 10)

    assert refused == Refuse((a_fragment(10, 20),), Why.FENCED)


def test_an_old_session_is_refused() -> None:
    assert refused_for(Story().register(0, session="s0")) is Why.OLD_SESSION


def test_a_uid_that_left_the_intents_is_refused() -> None:
    story = Story()
    story.tell(Resolved(replace(story.record, intents=()), root_of(story)))

    assert refused_for(story.register(0)) is Why.NO_INTENT


def test_offsets_that_are_published_are_taken() -> None:
    story = Story()
    story.register(0)
    record = story.publish(50)
    other = Intent(a_fragment(0, 9).uid, 0, "s1")
    story.tell(Resolved(replace(record, intents=(other,)), story.keeper.root))

    assert refused_for(story.register(0)) is Why.TAKEN


def test_more_than_the_bound_are_refused_as_a_whole() -> None:
    story = Story()
    story.register(10, 20, 30, 40, 50)

    assert refused_for(story.register(60, 70)) is Why.FULL
    assert story.register(60) == []


def test_the_one_that_all_wait_for_is_taken_whatever_waits() -> None:
    """Refused, it would be tried for ever, and those that wait would never go."""
    story = Story()
    story.register(10, 20, 30, 40, 50, 60)

    assert refused_for(story.register(70)) is Why.FULL
    (publish,) = [action for action in story.register(0) if isinstance(action, Publish)]
    assert publish.next_offset == 70


def test_one_bad_fragment_refuses_the_request_and_changes_nothing() -> None:
    story = Story()

    assert refused_for(story.register(0, 205)) is Why.NO_INTENT
    assert story.keeper.idle


def test_registering_again_changes_nothing() -> None:
    story = Story()
    story.register(0)

    assert story.register(0, now=10) == []
    assert story.publish(50).published_next == 10


def test_epochs_that_ended_below_the_published_end_are_forgotten() -> None:
    story = Story(epoch=3, epochs=(EpochStart(1, 0), EpochStart(3, 10)))
    story.register(0)

    assert story.publish(50).epochs == (EpochStart(3, 10),)


def test_past_roots_are_remembered_newest_last() -> None:
    story = Story()
    uids = []
    for number in range(10):
        story.register(number * 10, now=number * 100)
        record = story.publish(number * 100 + 50)
        assert record.root is not None
        uids.append(record.root.uid)

    assert story.keeper.record.past_roots == tuple(uids[1:9])


def refused_for(actions: list[Action]) -> Why:
    (refuse,) = actions
    assert isinstance(refuse, Refuse)
    return refuse.why


def root_of(story: Story) -> Node:
    return story.keeper.root


def test_fragments_of_a_run_may_come_in_any_order() -> None:
    story = Story()
    for first in (30, 10, 20):
        story.register(first)

    (publish,) = [a for a in story.register(0) if isinstance(a, Publish)]

    assert publish.next_offset == 40
