"""Bytes of WAL objects from the memory of the nodes that put them, while they still have them.

A short cut for who reads the newest records: nobody waits for it long, and whatever is wrong with a
node or with its answer, the bytes are in object storage.
"""

from typing import Final

from cachetools import LRUCache, TTLCache

from bottomless.errors import Corrupt, NotFound, StoreError
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination, CoordinationUnavailable
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.wal import WalBytesAsked, wal_bytes
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.stores.wal import instance_key, readable

LEFT_OUT_SECONDS: Final = 5.0
"""A node that fails is not asked for so long."""
_INSTANCE_COUNT_MAX: Final = 10_000
"""Instances of which is remembered where they are, some hundred bytes each."""
_NODE_COUNT_MAX: Final = 1_000
"""Nodes that are left out at a time."""


class WalNodes:
    def __init__(self, coordination: Coordination, peers: PeersPort, wait_ms: int) -> None:
        """`wait_ms` is how long an answer may take; 0: no node is asked."""
        self._coordination = coordination
        self._peers = peers
        self._seconds = wait_ms / 1000
        self._urls: LRUCache[Uid, str] = LRUCache(_INSTANCE_COUNT_MAX)
        self._without: TTLCache[Uid, None] = TTLCache(
            _INSTANCE_COUNT_MAX, LEFT_OUT_SECONDS, timer=loop_time
        )
        """Instances of which nobody says where they are."""
        self._left_out: TTLCache[str, None] = TTLCache(
            _NODE_COUNT_MAX, LEFT_OUT_SECONDS, timer=loop_time
        )
        self._dropped: LRUCache[Uid, int] = LRUCache(_INSTANCE_COUNT_MAX)
        """The latest object of an instance that its node said it had not: nor has it earlier ones."""
        self._looking: SingleFlight[Uid, str | None] = SingleFlight(linger_seconds=0)
        self.read_count = 0
        """Ranges that came from nodes."""
        self.failure_count = 0
        """Questions to nodes that failed, or took too long."""
        self.look_count = 0
        """Questions to coordination for where an instance is."""

    async def read(
        self, instance: Uid, sequence: int, start: int, size: int
    ) -> bytes | memoryview | None:
        """A range of an object, whole; None where its node does not give it."""
        if not self._seconds or sequence <= self._dropped.get(instance, -1):
            return None
        url = await self._url_of(instance)
        if url is None or url in self._left_out:
            return None
        try:
            answer = await self._peers.at(url).fetch(
                wal_bytes(instance, sequence),
                params=WalBytesAsked(start, size).params(),
                timeout_seconds=self._seconds,
            )
        except NotFound:
            self._dropped[instance] = max(sequence, self._dropped.get(instance, -1))
            return None
        except (StoreError, ValueError):
            self._leave_out(url)
            return None
        if len(answer.data) != size:
            self._leave_out(url)
            return None
        self.read_count += 1
        return answer.data

    def distrust(self, instance: Uid) -> None:
        """Leave out the node of an instance, of which came what is damaged."""
        url = self._urls.get(instance)
        if url is not None:
            self._leave_out(url)

    def _leave_out(self, url: str) -> None:
        self.failure_count += 1
        self._left_out[url] = None

    async def _url_of(self, instance: Uid) -> str | None:
        url = self._urls.get(instance)
        if url is not None or instance in self._without:
            return url
        return await self._looking.join(instance, lambda: self._look(instance))

    async def _look(self, instance: Uid) -> str | None:
        self.look_count += 1
        try:
            value = await self._coordination.get(instance_key(instance))
        except CoordinationUnavailable:
            return None
        record = None if value is None else readable(decode_instance, value)
        if record is None or isinstance(record, Corrupt) or record.url is None:
            self._without[instance] = None
            return None
        self._urls[instance] = record.url
        return record.url
