"""Every guard of drives and moves, with what it would be to do without it.

Each names the seed that is tried first: the one that notices it after the fewest steps.
"""

from typing import Any, Final

import pytest
from support.guards import remove

from bottomless.formats.keys import FragmentPlace
from bottomless.model.names import StreamId
from bottomless.model.tiers import Move
from bottomless_server.coordination.base import Coordination
from bottomless_server.manifest.removal.claims import Places
from bottomless_server.tree.relocate import Relocation
from model.guards import Guard
from model.shelves import HOT


def _without(name: str, seed: int, variant: Any) -> Guard:
    def removed(patch: pytest.MonkeyPatch) -> None:
        remove(patch, name, variant)

    return Guard(removed, seed)


def _nothing(*_: Any) -> None:
    pass


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


def _none(*_: Any) -> list[Any]:
    return []


async def _at_once(*_: Any) -> None:
    pass


async def _drive_0(*_: Any) -> list[int]:
    return [HOT]


def _all_of_it(move: Move, _: object) -> Relocation:
    return Relocation(*move[1:5], copy=move.copy, only=None)


async def _claimed(_: Coordination, wanted: Places) -> dict[StreamId, set[FragmentPlace]]:
    return {stream_id: set(places) for stream_id, places in wanted.items()}


GUARDS: Final[dict[str, Guard]] = {
    name: _without(name, seed, variant)
    for name, seed, variant in [
        ("the marker of a mount", 0, _nothing),
        ("a key of its own for each move", 0, lambda *_: 1),
        ("the drive in the deleter's look", 0, _yes),
        ("the move and its session in the EXEC of a relocation", 0, _yes),
        ("what a mover has copied", 0, _all_of_it),
        ("the leases of what was moved", 0, _no),
        ("the time that a move is left to its session", 3, _yes),
        ("promoted ranges", 0, _none),
        ("a claim before a delete", 5, _claimed),
        ("a drive that is retired takes nothing new", 0, _at_once),
        ("all drives before a gap", 0, _at_once),
        ("what a rebuild did not see is no garbage", 1, _no),
        ("all drives in the look of a rebuild", 0, _drive_0),
        ("the drives of a stream, in the bucket before anything is on them", 0, _at_once),
    ]
}
"""What a drive that is away may decide is held by its unit test alone: what was passed over is found when
the drive is back, also what continues it elsewhere, so these stories do not miss it."""
