"""Every guard of the manifest, with what it would be to do without it.

A guard that can be removed without the model noticing guards nothing, or the model is blind.
Each names the seed that is tried first: the one that notices it after the fewest steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest
from support.guards import guarded, remove

from bottomless.model.manifest import Node
from bottomless_server.manifest.common import failing_deletes
from bottomless_server.manifest.common.core import clock_trust
from bottomless_server.manifest.mutators import takeover
from bottomless_server.manifest.removal import deleter
from bottomless_server.manifest.tree.committer import publish_bounds
from bottomless_server.manifest.tree.core import planning, takeovers
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget
from bottomless_server.manifest.tree.core.events import EditAsked, PutGroup, PutRoot, TakeOver
from bottomless_server.manifest.tree.core.publish_decision import Keeper
from bottomless_server.manifest.tree.publish_attempts import Publisher
from bottomless_server.tree.retention import Cut, Edited, cut_front

Removal = Callable[[pytest.MonkeyPatch], None]

_STRAY_ROOTS: Final = "roots of lost attempts before what they name"


class Guard(NamedTuple):
    remove: Removal
    seed: int


def _always(*_: Any, **__: Any) -> bool:
    return True


def _without_version(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the version in the EXEC of a publish", _always)


def _without_epoch(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the epoch in the EXEC of a publish", _always)


def _without_intents(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the intents in the EXEC of a publish", _always)


def _without_floor(patch: pytest.MonkeyPatch) -> None:
    """The root begins where its first entry does, so that a group cut in part is whole again."""

    def cut(root: Node, cut: Cut) -> Edited:
        edited = cut_front(root, cut)
        if len(edited.root.entries) == 0:
            return edited
        first = int(edited.root.entries["first_offset"][0])
        return edited._replace(root=replace(edited.root, first_offset=first))

    patch.setattr(planning, "cut_front", cut)


def _without_reachability(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "reachability before a delete", lambda *_: False)


def _without_stray_roots_first(patch: pytest.MonkeyPatch) -> None:
    """What was given up goes, whatever root of a lost attempt names it."""

    async def none(*_: Any) -> None:
        pass

    remove(patch, _STRAY_ROOTS, none)


def _without_stray_roots_of(
    going: Callable[[DeleteTarget], bool],
) -> Removal:
    """They go before some of what they name alone."""

    def remove_some(patch: pytest.MonkeyPatch) -> None:
        whole = guarded(_STRAY_ROOTS)

        async def some(context: Any, record: Any, targets: Any) -> None:
            await whole(context, record, [one for one in targets if not going(one)])

        remove(patch, _STRAY_ROOTS, some)

    return remove_some


def _without_stray_roots_of_what_was_removed(patch: pytest.MonkeyPatch) -> None:
    """Nor the floor of their version, which is taken for theirs where it can be."""
    _without_stray_roots_of(lambda one: one.range is not None)(patch)

    async def as_it_is(_: Any, __: Any, one: Any, ___: Any) -> Any:
        return one

    remove(patch, "the highest floor of one version, also where something is missing", as_it_is)


def _without_leases(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "leases before condemning", lambda *_: None)


def _without_condemning(patch: pytest.MonkeyPatch) -> None:
    async def condemned(_: Any, __: Any, members: Any, ___: Any) -> Any:
        return members

    remove(patch, "condemning before a delete", condemned)


def _without_second_look(patch: pytest.MonkeyPatch) -> None:
    async def still(_: Any, __: Any, found: Any, ___: Any) -> Any:
        return found

    remove(patch, "the second look of a collection", still)


def _without_trust(patch: pytest.MonkeyPatch) -> None:
    """Whatever the wall clock says is believed."""
    patch.setattr(clock_trust.ClockTrust, "look", lambda *_: None)
    patch.setattr(clock_trust.ClockTrust, "earliest", lambda _, wall, *__: wall)


def _without_adoption(patch: pytest.MonkeyPatch) -> None:
    async def look(*_: Any) -> list[Any]:
        return []

    remove(patch, "what is adopted before a gap", look)


def _without_fence(patch: pytest.MonkeyPatch) -> None:
    """The root with the gap is put under an epoch that no record has yet, as it was once."""
    guarded = takeovers.fence

    async def take_over(context: Any, committer: Any, home: Any, epoch: int) -> None:
        fenced = guarded(committer.record, home, epoch, home_held=False)
        keeper = Keeper(
            fenced, committer.keeper.root, publish_bounds(context.settings), context.new_uid
        )
        publisher = Publisher(context)
        for action in keeper.handle(EditAsked(TakeOver(fenced.reserved_next)), 0):
            if isinstance(action, PutGroup | PutRoot):
                await publisher.put_node(action, fenced)
        await _take_over(context, committer, home, epoch)

    _take_over = takeover.take_over
    patch.setattr("model.takeovers.take_over", take_over)


def _without_what_an_older_root_gives_up(patch: pytest.MonkeyPatch) -> None:
    """Any older root is better than one with a hole."""

    async def takes(_: Any, __: Any, older: Any, *___: Any) -> bool:
        return not older.missing

    remove(patch, "what an older root would give up", takes)


def _without_what_newer_roots_name(patch: pytest.MonkeyPatch) -> None:
    """An older root may name whatever it likes where an object of a newer one is gone."""
    remove(patch, "what a newer root names at the same offsets", _always)


def _without_the_epoch_of_newer_roots(patch: pytest.MonkeyPatch) -> None:
    """Any fragment goes on from an older root, also one of an owner that was deposed."""
    remove(patch, "the epoch that a newer root names at the same offsets", _always)


def _without_putting_off(patch: pytest.MonkeyPatch) -> None:
    """What failed keeps its place at the front, and a page is what is due for the longest."""

    async def put_off(*_: Any) -> None:
        pass

    patch.setattr(failing_deletes.FailingDeletes, "put_off", put_off)
    patch.setattr(deleter, "fair_page", lambda dues, _, count: list(dues)[:count])


GUARDS: Final[dict[str, Guard]] = {
    "the version in the EXEC": Guard(_without_version, 0),
    "the epoch in the EXEC": Guard(_without_epoch, 0),
    "the intents in the EXEC": Guard(_without_intents, 7),
    "the floor in the root": Guard(_without_floor, 0),
    "the fence before a root of its epoch": Guard(_without_fence, 2),
    "what is adopted before a gap": Guard(_without_adoption, 0),
    "what an older root gives up": Guard(_without_what_an_older_root_gives_up, 0),
    "what a newer root names": Guard(_without_what_newer_roots_name, 0),
    "the epoch that a newer root names": Guard(_without_the_epoch_of_newer_roots, 0),
    "reachability before a delete": Guard(_without_reachability, 3),
    "roots of lost attempts go before what they name": Guard(_without_stray_roots_first, 8),
    "roots of lost attempts go before groups of theirs": Guard(
        _without_stray_roots_of(lambda one: one.height > 0 and one.range is None), 0
    ),
    "roots of lost attempts go before what was removed": Guard(
        _without_stray_roots_of_what_was_removed, 7
    ),
    "what failed waits, and pages are fair": Guard(_without_putting_off, 3),
    "leases before condemning": Guard(_without_leases, 0),
    "condemning before a delete": Guard(_without_condemning, 0),
    "the second look of a garbage collection": Guard(_without_second_look, 0),
    "a clock that is believed": Guard(_without_trust, 0),
}
