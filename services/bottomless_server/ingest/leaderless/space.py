"""Whether there is room for more: in coordination, and of what this node has put.

Every append takes room in coordination, until the fragment-uploader has made a fragment of it. A
coordination store that is full refuses every write, also those that make room, so appends are refused
well before that.
"""

from collections.abc import Iterable

from bottomless.errors import Code, Overloaded
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.stores.wal import held_key

_RETRY_SECONDS = 5
"""The fragment-uploader looks every second, and what it packs takes a moment."""


class WriterSpace:
    """What was seen when it was looked last."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self.fullness = 0.0
        """How full coordination is, of 1."""
        self.held_count = 0
        """Members that hold objects of this node's instances."""
        self.fullness_max = context.bounds.fullness_max
        self.held_count_max = context.bounds.held_count_max

    async def look(self, instances: Iterable[Uid]) -> None:
        """Look how much there is now.

        Raises:
            CoordinationUnavailable
        """
        coordination = self._context.coordination
        self.fullness = await coordination.fullness()
        counts = [await coordination.member_count(held_key(one)) for one in instances]
        self.held_count = sum(counts)

    def require(self) -> None:
        """Refuse an append where there is no room.

        Raises:
            Overloaded: `tail-bound`; nothing is stored.
        """
        if not has_room(self.fullness, self.fullness_max):
            raise _full("coordination is nearly full")
        if not has_room(self.held_count, self.held_count_max):
            raise _full("too much that this node took waits to be put into fragments")


@guard("the room that is left in coordination")
def has_room(found: float, most: float) -> bool:
    """Tell whether an append may be taken; what is there already counts."""
    return found < most


def _full(sentence: str) -> Overloaded:
    return Overloaded(sentence, code=Code.TAIL_BOUND, retry_after_seconds=_RETRY_SECONDS)
