"""Every order of events of leaderless streams, within the bounds of some stories, to the end."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from support.guards import remove

from bottomless_server.coordination.base import Changes
from model.leaderless_search import Found, Search
from model.leaderless_state import Story
from model.leaderless_stories import STORIES
from model.leaderless_variants import (
    believed,
    held_first,
    index_first,
    record_to_come,
    same_number,
    without_those_before,
)


def searched(story: Story, title: str) -> Found:
    found = Search(story).run()
    print(f"{title}: {found.states:,} states, {found.steps:,} steps, {found.seconds:.1f} CPU s")
    for label in found.story:
        print(f"    {label}")
    return found


@pytest.mark.parametrize("title", STORIES)
def test_no_order_of_events_breaks_what_must_hold(title: str) -> None:
    found = searched(STORIES[title], title)
    assert found.violation is None
    assert found.states > 100, "nothing was searched"


class Removed(NamedTuple):
    """A guard, what stands in its place, and the story that misses it."""

    name: str
    variant: Callable[..., Any]
    title: str
    violation: str


REMOVED: Final = [
    Removed(
        "the state of the tail in the EXEC of a commit",
        lambda _: None,
        "a fence",
        "it commits after a fence was answered",
    ),
    Removed(
        "the settled sequence in the EXEC of a commit",
        lambda *_: False,
        "a vacuum beside a writer that stands still",
        "an entry names an object that is deleted",
    ),
    Removed(
        "what is settled, read before what is held",
        held_first,
        "a vacuum beside a writer that stands still",
        "an entry names an object that is deleted",
    ),
    Removed(
        "what is settled, read before what is held",
        without_those_before,
        "a loss after objects are gone",
        "what was noted is not brought back",
    ),
    Removed(
        "what is settled, read before the index in a release",
        index_first,
        "all that reclaims",
        "an entry names an object that nothing holds",
    ),
    Removed(
        "a new attempt before a lost commit is taken for none",
        lambda *_: Changes(),
        "lost commits of one stream",
        "nobody expects it",
    ),
    Removed(
        "a number of its own for each attempt",
        same_number,
        "lost commits of one stream",
        "what was acknowledged is not there",
    ),
    Removed(
        "the stream record in the EXEC of a prune",
        record_to_come,
        "prunes",
        "it prunes what nobody published",
    ),
    Removed(
        "the instance, looked at again after what is held",
        believed,
        "a loss during what reclaims",
        "offsets that were seen are given again",
    ),
    Removed(
        "a commit that nobody knows of is not settled",
        lambda _, sequence: sequence,
        "notes",
        "offsets that were seen are given again",
    ),
    Removed(
        "notes that are durable nowhere do not count as noted",
        lambda settled, _: settled,
        "more notes than fit into an object",
        "offsets that were seen are given again",
    ),
    Removed(
        "a note of the very pieces that an entry names",
        lambda notes, sequence, _: sequence in {one for one, _ in notes},
        "repeats before notes",
        "what was noted is not brought back",
    ),
    Removed(
        "what is not noted before a loss, taken for undecided",
        lambda *_: False,
        "notes",
        "offsets that were seen are given again",
    ),
    Removed(
        "offsets after what was not decided before a loss",
        lambda next_offset: next_offset,
        "notes",
        "offsets that were seen are given again",
    ),
]


@pytest.mark.parametrize("removed", REMOVED, ids=lambda one: f"{one.name}: {one.title}")
def test_each_guard_that_is_taken_away_is_missed(
    removed: Removed, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, removed.name, removed.variant)
    found = searched(STORIES[removed.title], removed.name)
    assert removed.violation in str(found.violation)


@pytest.mark.parametrize("watched", ["bottomless:tail:", "bottomless:wal-instance:"])
def test_a_late_exec_that_does_not_watch_what_it_read_is_missed(watched: str) -> None:
    """Must fail: the tail, or the instance, is read and not watched."""
    story = STORIES["lost commits of one stream"]._replace(unwatched=watched)
    assert searched(story, watched).violation is not None
