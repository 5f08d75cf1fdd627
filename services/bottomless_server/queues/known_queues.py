"""Which queue has which name: what the ledger said, so that most requests need no look into it."""

from collections import OrderedDict
from typing import Final

COUNT_MAX: Final = 10_000


class KnownQueues:
    """Ids of queues by tenant and name, the last used ones. A deletion is said here at once."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, tenant: str, name: str) -> bytes | None:
        queue_id = self._ids.get((tenant, name))
        if queue_id is not None:
            self._ids.move_to_end((tenant, name))
        return queue_id

    def put(self, tenant: str, name: str, queue_id: bytes) -> None:
        self._ids[tenant, name] = queue_id
        if len(self._ids) > COUNT_MAX:
            self._ids.popitem(last=False)

    def forget(self, tenant: str, name: str) -> None:
        self._ids.pop((tenant, name), None)
