"""What it would be to do without guards of leaderless streams."""

from collections.abc import Sequence
from typing import Any, Final

from bottomless_server.coordination.base import Room
from bottomless_server.coordination.memory import Watched
from simulation.links import LinkedCoordination

TROUBLES: Final = "leaderless"

_watch: Final = LinkedCoordination.watch


def unwatched_tails(
    coordination: LinkedCoordination, redis_keys: Sequence[str], room: Room | None = None
) -> Watched:
    """A transaction is not told that others changed a tail meanwhile."""
    watched = _watch(coordination, redis_keys, room)
    kept = [
        (key, writes)
        for key, writes in zip(watched.redis_keys, watched.writes, strict=True)
        if not key.startswith("bottomless:tail:")
    ]
    return watched._replace(
        redis_keys=[key for key, _ in kept], writes=[writes for _, writes in kept]
    )


def nothing_undecided(*_: Any) -> bool:
    return False
