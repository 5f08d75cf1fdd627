"""Names of queues, as the ledger said them, so that most requests need no look into it."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bottomless.errors import Code, NotFound
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.rounds.rounds import Rounds

T = TypeVar("T")
COUNT_MAX: Final = 10_000


class KnownQueues:
    """Ids of queues by tenant and name, the last used ones."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._ids: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, tenant: str, name: str) -> bytes | None:
        """The id of a queue, if it is known."""
        queue_id = self._ids.get((tenant, name))
        if queue_id is not None:
            self._ids.move_to_end((tenant, name))
        return queue_id

    def put(self, tenant: str, name: str, queue_id: bytes) -> None:
        """Learn an id."""
        self._ids[tenant, name] = queue_id
        if len(self._ids) > COUNT_MAX:
            self._ids.popitem(last=False)

    def forget(self, tenant: str, name: str) -> None:
        """Forget an id: the queue is deleted, or perhaps it is."""
        self._ids.pop((tenant, name), None)

    async def id_of(self, tenant: str, name: str) -> bytes:
        """The id of a queue.

        Raises:
            NotFound: `queue-not-found`.
        """
        queue_id = self.get(tenant, name)
        if queue_id is None:
            row = await self._rounds.look(lambda look: look.ledger.queue_named(tenant, name))
            if row is None:
                raise queue_not_found()
            queue_id = row.queue_id
            self.put(tenant, name, queue_id)
        return queue_id

    async def with_id(self, tenant: str, name: str, do: Callable[[bytes], Awaitable[T]]) -> T:
        """Do something with a queue; if it is another one of this name meanwhile, with that.

        `do` may be called several times: what it waits for in all has to be decided before.

        Raises:
            NotFound: `queue-not-found`.
        """
        queue_id = await self.id_of(tenant, name)
        while True:
            try:
                return await do(queue_id)
            except NotFound as error:
                # With facts it is of another queue, which a request names beside this one.
                if error.code is not Code.QUEUE_NOT_FOUND or error.facts:
                    raise
                self.forget(tenant, name)
                fresh = await self.id_of(tenant, name)
                if fresh == queue_id:
                    raise
                queue_id = fresh
