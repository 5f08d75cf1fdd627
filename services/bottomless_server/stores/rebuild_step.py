"""What ties the writes of a rebuild to the one operation that is still carried out.

A rebuild to a generation reads what is of earlier ones and writes what is of its own. Two
processes may work on it at once, without knowing: the lease of an operation runs out while its
holder is paused, or Valkey's clock steps ahead. And the operation may be over, or be gone, when
somebody goes on with it: the rebuild has ended, or Valkey's own data came back. So each
transaction of a rebuild watches two keys, and writes nothing unless

- coordination shows no generation, or one before that from which the rebuild began: so it is
  not the one that belongs to the bucket, and nothing of it is served; and
- the operation is there as it was when the step began.

Of two processes that do one and the same step both may write: a step comes to the same result
each time. As soon as one of them has noted its end, nothing of the other one is written.
"""

from dataclasses import dataclass

import orjson

from bottomless.errors import Corrupt, Unavailable
from bottomless.guards import guard
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.stores.operations import Operation, decode_operation, operation_key
from bottomless_server.stores.streams import GENERATION_KEY


@dataclass(frozen=True, slots=True)
class RebuildStep:
    """One step of a rebuild to a generation, as it began."""

    generation: int
    operation: Operation

    @property
    def watched(self) -> tuple[str, str]:
        """The keys that every transaction of this step watches."""
        return GENERATION_KEY, operation_key(self.operation.operation_id)

    @guard("the operation and the generation that each transaction of a rebuild watches")
    def require(self, found: Values) -> None:
        """Refuse to write where the watched keys show that this is not what goes on.

        Raises:
            Unavailable: coordination has the bucket's generation; or the operation was moved by
                somebody else, or is gone.
        """
        if is_intact(found[GENERATION_KEY], self.generation - 1):
            raise Unavailable("coordination has the bucket's generation")
        value = found[operation_key(self.operation.operation_id)]
        try:
            same = value is not None and decode_operation(value) == self.operation
        except Corrupt:
            same = False
        if not same:
            raise Unavailable("somebody else goes on with this rebuild, or it is over")

    async def write(self, coordination: Coordination, changes: Changes) -> None:
        """Write what depends on nothing else.

        Raises:
            Unavailable: as `require`.
        """

        def change(found: Values) -> tuple[Changes, None]:
            self.require(found)
            return changes, None

        await coordination.transact(self.watched, change)

    async def check(self, coordination: Coordination) -> None:
        """Ask once more before something is put into the bucket.

        What was listed before this returns was there before the rebuild ended.

        Raises:
            Unavailable: as `require`.
        """
        keys = self.watched
        self.require(dict(zip(keys, await coordination.get_many(keys), strict=True)))


def is_intact(held: bytes | None, generation: int) -> bool:
    """Whether `held`, the value of `GENERATION_KEY`, shows a generation of the bucket, or a later one."""
    return held is not None and int(orjson.loads(held)["generation"]) >= generation
