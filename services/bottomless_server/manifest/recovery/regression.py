"""Notice that coordination lost the bucket's generation, and serve nothing until it has it again.

An emptied store, or one from a backup, would let names be given away again and offsets be used
twice. So while it is like that, everything is refused with `coordination-regressed` except the
rebuild and the way to ask for its end, and but for the list of drives and the loss of one, which are in
the bucket: a rebuild may wait for a drive that will never be back. The loss is noticed at the start, by a look that repeats
at short intervals, and by every look-up that finds nothing (`stores/streams.py`).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, StoreError, Unavailable
from bottomless.formats.stream_record import LEADERLESS
from bottomless_server.core.regressed import REBUILD, coordination_lost, coordination_outdated
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.internal_key_routes import ROOT_PATH
from bottomless_server.protocol.paths import FAULT_POINTS
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.http.app import request_id_of, send_problem
from bottomless_server.stores.generation import check_generation, held_generation, is_regressed
from bottomless_server.stores.wal_check import check_wal

log = structlog.get_logger(__name__)

# The root key is in no store, and is what the rebuild is asked for with.
_SERVED: Final = ("/", "/v1/admin/rebuild", "/v1/drives", "/openapi.json", ROOT_PATH)
_SERVED_BELOW: Final = ("/v1/operations/", FAULT_POINTS)
_LOST: Final = re.compile(r"/v1/admin/drives/[^/]+/lost")


def is_served(path: str) -> bool:
    """Whether a path is answered while coordination is not to be believed."""
    return path in _SERVED or path.startswith(_SERVED_BELOW) or _LOST.fullmatch(path) is not None


class Regression:
    """Whether this process may serve what coordination says."""

    def __init__(self, context: Context, changed: Callable[[], Awaitable[None]]) -> None:
        """`changed` is told after each change, before anything is served that was not before."""
        self._context = context
        self._changed = changed
        self._looking = asyncio.Lock()
        self.generation = 0
        """The last on which bucket and coordination agreed."""
        self.regressed = False

    async def look(self) -> None:
        """Find out how it is, as at the start.

        Raises:
            Unavailable: `coordination-regressed`, and no rebuild can mend it: coordination is
                another bucket's, or newer than this one. Or not now.
            Corrupt
        """
        drive, coordination = self._context.drive, self._context.coordination
        try:
            self.generation = await check_generation(drive, coordination)
        except Unavailable as error:
            if error.code is not Code.COORDINATION_REGRESSED:
                raise
            if await is_regressed(drive, coordination) is None:
                raise
            self._enter()
            return
        await self._compare_wal()
        self.regressed = False
        self._context.streams.generation = self.generation

    async def _compare_wal(self) -> None:
        """Refuse an older copy of coordination, which has the generation of the bucket all the same.

        Raises:
            Unavailable: `coordination-regressed`: WAL objects prove it. Or not now.
        """
        if LEADERLESS not in self._context.served:
            return
        try:
            await check_wal(self._context.drive, self._context.coordination, self.generation)
        except Unavailable as error:
            if error.code is not Code.COORDINATION_REGRESSED:
                raise
            raise coordination_outdated("coordination is an older copy of itself") from error

    async def watch(self) -> None:
        """Look again and again."""
        await endless("manifest-generation", self._watch_once)

    async def _watch_once(self) -> float:
        await asyncio.sleep(self._context.settings.manifest_generation_check_ms / 1000)
        try:
            await self.look_again()
        except StoreError as error:
            log.warning("the generation cannot be looked at", error=str(error))
        return 0

    async def look_again(self) -> None:
        """Find out whether it is still as it was, and act on it.

        Raises:
            Unavailable, Corrupt: as `look`; then it is as before.
        """
        async with self._looking:
            if not self.regressed:
                if await held_generation(self._context.coordination) == self.generation:
                    return
                self._enter()
                await self._changed()
                return
            await self.look()
            if not self.regressed:
                log.info("coordination has the bucket's generation", generation=self.generation)
                await self._changed()

    def _enter(self) -> None:
        if not self.regressed:
            log.critical(
                "coordination was lost or went back; nothing is served until it is rebuilt",
                command=REBUILD,
            )
        self.regressed = True

    def problem(self) -> Unavailable | None:
        return coordination_lost() if self.regressed else None

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, refusing everything that needs what was lost."""

        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            problem = self.problem()
            path = scope.get("path", "")
            if problem is None or is_served(path):
                await app(scope, receive, send)
            else:
                await send_problem(send, problem, request_id_of(scope))

        return gate
