"""Tell manifest from time to time what is fetched of fragments, so that what is read often is promoted.

What is told is of an hour, by one reader. Nothing is kept for a telling that does not arrive: what is
fetched of the same fragment after it is told with what was fetched before. A reader that dies
forgets what it has counted, and promotions come later.
"""

from collections.abc import Callable, Iterable, Iterator

import structlog

from bottomless.errors import StoreError
from bottomless.formats.keys import fragment_of_key
from bottomless_server.protocol.fetched import (
    FETCHED,
    FETCHED_COUNT_MAX,
    FragmentFetched,
    encode_fetched,
)
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.reader.core.heat import Fetched, Heat
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)


class HeatTelling:
    """What one process counts, and its word to manifest; `run` it once."""

    def __init__(
        self, heat: Heat, manifest: PeerPort, interval_ms: int, elapsed: Callable[[], int]
    ) -> None:
        """`elapsed` is the time of a clock that never goes back, in ms."""
        self._heat = heat
        self._manifest = manifest
        self._interval_ms = interval_ms
        self._elapsed = elapsed
        self.told_count = 0
        """Fragments that manifest was told of, each time."""
        self.lost_count = 0
        """Fragments of which it could not be told."""

    @property
    def fragment_count(self) -> int:
        """Fragments that are counted now."""
        return len(self._heat)

    def note(self, object_key: str, drive: int, size: int) -> None:
        """Count bytes that have just been fetched of an object."""
        self._heat.add(object_key, drive, size, self._elapsed())

    async def run(self) -> None:
        """Tell for ever."""
        await endless("reader-heat", self._tell_once)

    async def _tell_once(self) -> float:
        await self.tell()
        return self._interval_ms / 1000

    async def tell(self) -> None:
        """Tell what was fetched since the last time; what manifest does not take is dropped."""
        taken = self._heat.take(self._elapsed(), FETCHED_COUNT_MAX)
        if not taken:
            return
        try:
            await self._manifest.call("POST", FETCHED, body=encode_fetched(_named(taken)))
        except StoreError as error:
            # A release before this one does not know the question; one that is away is asked again.
            self.lost_count += len(taken)
            log.info("what was fetched was not told", fragments=len(taken), error=str(error))
        else:
            self.told_count += len(taken)


def _named(fetched: Iterable[Fetched]) -> Iterator[FragmentFetched]:
    for one in fetched:
        fragment = fragment_of_key(one.object_key)
        assert fragment is not None, "nothing else is counted"
        yield FragmentFetched(*fragment, one.drive, one.size)
