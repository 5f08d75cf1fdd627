"""Tell heartbeats that wait of a change of their group, whichever process made it.

What changes here is told at once. What others change is found by asking for the groups of those who
wait, all together and several times a second; so who waits costs no question of its own.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog

from bottomless.errors import StoreError
from bottomless.model.names import Reference
from bottomless_server.coordination.base import Coordination
from bottomless_server.manifest.common.metrics import GroupCounts
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.groups import group_key

log = structlog.get_logger(__name__)

WAITING_COUNT_MAX: Final = 20_000
"""Heartbeats that may wait at once; who comes then is answered at once, and comes again."""
_LOOK_SECONDS: Final = 0.25
_PAGE_COUNT: Final = 100


class _Place(NamedTuple):
    scope: str
    group: Reference


class _Watched:
    def __init__(self) -> None:
        self.count = 0
        """How many wait."""
        self.value: bytes | None = None
        """The group as it was found last."""
        self.known = False
        self.version = 0
        self.ended = False
        self.changed = asyncio.Event()

    def tell(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()


class Wait:
    """One who waits for changes of a group; None in place of the group never waits."""

    def __init__(self, watched: _Watched | None) -> None:
        self._watched = watched
        self._seen = 0 if watched is None else watched.version

    async def until(self, deadline: float) -> bool:
        """Wait for a change since the last time, or since the beginning; false if there is none until
        `deadline`, a time of the loop."""
        watched = self._watched
        if watched is None or watched.ended:
            return False
        if watched.version == self._seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await watched.changed.wait()
        changed, self._seen = watched.version != self._seen, watched.version
        return changed


class GroupWatch:
    """All who wait in this process, by their group."""

    def __init__(self, coordination: Coordination, counts: GroupCounts) -> None:
        self._coordination = coordination
        self._counts = counts
        self._watched: dict[_Place, _Watched] = {}
        """Only of groups for which somebody waits."""
        self._ended = False

    def end(self) -> None:
        """Let nobody wait any more: the process is about to stop."""
        self._ended = True
        for watched in self._watched.values():
            watched.ended = True
            watched.tell()

    def tell(self, scope: str, group: Reference) -> None:
        """Tell of a change that this process made."""
        watched = self._watched.get(_Place(scope, group))
        if watched is not None:
            watched.tell()

    @contextmanager
    def watching(self, scope: str, group: Reference) -> Iterator[Wait]:
        """Watch a group from now on. Where too many wait, and where the process is about to stop,
        nobody waits."""
        if self._ended or self._counts.waiting >= WAITING_COUNT_MAX:
            yield Wait(None)
            return
        place = _Place(scope, group)
        watched = self._watched.setdefault(place, _Watched())
        watched.count += 1
        self._counts.waiting += 1
        try:
            yield Wait(watched)
        finally:
            self._counts.waiting -= 1
            watched.count -= 1
            if not watched.count:
                del self._watched[place]

    async def run(self) -> None:
        """Look for changes of others for ever."""
        await endless("manifest-group-watch", self._look_once)

    async def _look_once(self) -> float:
        try:
            await self.look()
        except StoreError as error:
            # Who waits asks by itself when its time is over.
            log.debug("changes of consumer groups were not looked for", error=str(error))
        return _LOOK_SECONDS

    async def look(self) -> None:
        """Tell those who wait of what has changed since the last look.

        Raises:
            Unavailable
        """
        places = list(self._watched)
        for start in range(0, len(places), _PAGE_COUNT):
            page = places[start : start + _PAGE_COUNT]
            values = await self._coordination.get_many([group_key(*place) for place in page])
            for place, value in zip(page, values, strict=True):
                watched = self._watched.get(place)
                if watched is None:
                    continue
                # Also at the first look: what changed just before it was seen by nobody.
                if not watched.known or watched.value != value:
                    watched.tell()
                watched.value, watched.known = value, True
