"""Connections of one program to its stores: who uses one of coordination hears when it is another one.

The stores of all links are one. In all runs before leaderless streams nobody asked how often a program
had connected, since no local stream compares coordination with the bucket after that.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from support.fault_coordination import FaultCoordination
from support.fault_drive import FaultDrive
from support.wire import Lost, Wire

from bottomless.drives.base import DriveUnavailable
from bottomless.formats.keys import WAL_PREFIX
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.coordination.base import (
    Changes,
    CoordinationUnavailable,
    CoordinationUnknown,
)

_T = TypeVar("_T")
_PAGE_COUNT: Final = 100


class LinkedCoordination(FaultCoordination):
    """What a program connects to; a call that had no answer ends its connection, as in the real
    client, so that the next call is over a new one."""

    def __init__(self, store: FaultCoordination, clock: Callable[[], int], wire: Wire) -> None:
        super().__init__(clock, wire)
        self.share(store)
        self._store = store

    def write(self, changes: Changes) -> None:
        self._store.write(changes)

    async def _read(self, route: str, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await super()._read(route, work)
        except CoordinationUnavailable:
            self.connected_count += 1
            raise

    async def _change(self, route: str, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await super()._change(route, work)
        except (CoordinationUnavailable, CoordinationUnknown):
            self.connected_count += 1
            raise


class PagedDrive(FaultDrive):
    """A drive that lists WAL objects by the page, of which there are hundreds: what a store tells in
    one answer comes over the wire at once, or not at all."""

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        if not prefix.startswith(WAL_PREFIX):
            async for facts in super().list(prefix, after):
                yield facts
            return
        found = self._inner.list(prefix, after)

        async def page() -> list[ObjectFacts]:
            taken: list[ObjectFacts] = []
            while len(taken) < _PAGE_COUNT:
                facts = await anext(found, None)
                if facts is None:
                    break
                taken.append(facts)
            return taken

        while True:
            try:
                facts_of = await self._wire.carry("drive.list", page)
            except Lost as lost:
                raise DriveUnavailable("the store does not answer") from lost
            for one in facts_of:
                yield one
            if len(facts_of) < _PAGE_COUNT:
                return
