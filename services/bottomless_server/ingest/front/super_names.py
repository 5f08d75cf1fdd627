"""Super streams by their names: asked of manifest, and remembered for a moment.

What is remembered may be old, and does no harm for seconds: the owners of partitions refuse what was
divided by an older layout, and know streams by ids that are never used again. Whoever is refused
for that has the name forgotten, and the next request asks anew.

While manifest does not answer, what is remembered goes on, as long as coordination says that the name is
still that super stream's: its name may have been given to another one, while an owner that manifest does
not reach either goes on to take parts.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from cachetools import LRUCache

from bottomless.errors import Code, Unavailable
from bottomless.guards import guard
from bottomless.model.names import FullName, SuperId
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import ByNameAsked
from bottomless_server.protocol.supers import SuperSaid, decode_super_stream, super_by_name
from bottomless_server.runtime.base.single_flight import SingleFlight

_PARTITION_COUNT_MAX: Final = 100_000
"""Partitions of all super streams that are remembered; each is some hundreds of bytes."""
FRESH_SECONDS: Final = 5.0
"""How long nobody is asked again."""


class _Known(NamedTuple):
    said: SuperSaid
    asked_at: float


class SuperNames:
    """Asks manifest which super stream a name means; one question at a time for each name."""

    def __init__(
        self,
        manifest: PeerPort,
        monotonic: Callable[[], float],
        named: Callable[[FullName], Awaitable[SuperId | None]],
    ) -> None:
        """`named` says which super stream has a name, by coordination."""
        self._manifest = manifest
        self._monotonic = monotonic
        self._named = named
        self._known: LRUCache[FullName, _Known] = LRUCache(
            _PARTITION_COUNT_MAX, getsizeof=lambda known: len(known.said.partitions)
        )
        self._asking: SingleFlight[FullName, SuperSaid] = SingleFlight()

    async def find(self, name: FullName) -> SuperSaid:
        """The super stream that has a name, as it was within the last seconds; or as it was last, while
        manifest does not answer and the name is still its own.

        Raises:
            NotFound: there is none.
            Unavailable: manifest does not answer, and nothing that is remembered counts; outcome none.
        """
        known = self._known.get(name)
        if known is not None and self._monotonic() - known.asked_at < FRESH_SECONDS:
            return known.said
        try:
            return await self._asking.join(name, lambda: self._ask(name))
        except Unavailable as error:
            lost = error.code is not Code.PEER_UNAVAILABLE
            if known is None or lost or not await self._is_named_still(name, known.said):
                raise Unavailable(error.message, code=error.code, retry_after_seconds=1) from error
            return known.said

    @guard("the name of a super stream while manifest does not answer")
    async def _is_named_still(self, name: FullName, said: SuperSaid) -> bool:
        """Whether a name is still that of the super stream that is remembered, which is good for the
        next seconds then.

        Raises:
            CoordinationUnavailable
        """
        asked_at = self._monotonic()
        if await self._named(name) != said.super_id:
            self.forget(name)
            return False
        self.remember(name, said, asked_at)
        return True

    def remember(self, name: FullName, said: SuperSaid, asked_at: float) -> None:
        """Keep what manifest says of a name, which was asked for at this monotonic time."""
        self._known[name] = _Known(said, asked_at)

    def forget(self, name: FullName) -> None:
        """Ask anew when the name is used next."""
        self._known.pop(name, None)

    async def aclose(self) -> None:
        """End what is under way."""
        await self._asking.aclose()

    async def _ask(self, name: FullName) -> SuperSaid:
        asked_at = self._monotonic()
        params = ByNameAsked(name.tenant).params()
        try:
            answer = await self._manifest.call("GET", super_by_name(name), params=params)
        except Unavailable:
            raise
        except Exception:
            self.forget(name)
            raise
        said = decode_super_stream(answer.body)
        self.remember(name, said, asked_at)
        return said
