"""Streams by name: their ids and owners as the manifest service says, remembered for seconds.

What is not there is never remembered: a stream can be read as soon as it was created.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bottomless.errors import NotFound
from bottomless.model.names import FullName, StreamId
from bottomless.model.stream import StreamState
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import ByNameAsked, by_name, decode_stream
from bottomless_server.runtime.base.known_names import KnownNames
from bottomless_server.runtime.base.single_flight import SingleFlight

_STREAM_COUNT_MAX = 10_000
"""Names remembered; some hundred bytes each."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    stream_id: StreamId
    name: FullName
    epoch: int
    owner_url: str | None

    @property
    def tenant(self) -> str:
        """Under whose prefix its objects are."""
        return self.name.tenant


class Found(NamedTuple):
    stream: StreamFacts
    remembered: bool
    """It may be out of date: an answer that does not fit it is a reason to ask again."""


class WaitedOn:
    """The stream on which a request waits: it stays with it, whatever has its name by then."""

    def __init__(self) -> None:
        self._stream_id: StreamId | None = None

    def begin(self, stream: StreamFacts) -> None:
        """Its owner has said that the stream is there."""
        self._stream_id = stream.stream_id

    def check(self, stream: StreamFacts) -> None:
        """Look whether a request may go on with this stream.

        Raises:
            NotFound: its name is another stream's by now, of which nobody asked.
        """
        if self._stream_id not in (None, stream.stream_id):
            raise stream_not_found()


class Streams:
    def __init__(self, manifest: PeerPort, keep_ms: int, elapsed: Callable[[], int]) -> None:
        """An answer is good for `keep_ms`; `elapsed` is the time of a clock that never goes back,
        in ms."""
        self._manifest = manifest
        self._keep_ms = keep_ms
        self._elapsed = elapsed
        self._known: KnownNames[StreamFacts] = KnownNames(_STREAM_COUNT_MAX)
        self._asking: SingleFlight[FullName, StreamFacts] = SingleFlight(linger_seconds=0)

    async def find(self, name: FullName) -> Found:
        """The stream that has a name.

        Raises:
            NotFound: there is none.
        """
        known = self._known.get(name)
        if known is not None and self._elapsed() - known.asked_at < self._keep_ms:
            return Found(known.meaning, remembered=True)
        joined = name in self._asking
        try:
            stream = await self._asking.join(name, lambda: self._load(name))
        except NotFound:
            if not joined:
                raise
            # That question may be older than the stream, and this request is not.
            stream = await self._asking.join(name, lambda: self._load(name))
            joined = False
        return Found(stream, remembered=joined)

    def forget(self, name: FullName) -> None:
        """Have the next caller ask again what a name means."""
        self._known.forget(name)

    async def _load(self, name: FullName) -> StreamFacts:
        asked_at = self._elapsed()
        params = ByNameAsked(name.tenant).params()
        said = decode_stream((await self._manifest.call("GET", by_name(name), params=params)).body)
        if said.state is not StreamState.ACTIVE:
            raise stream_not_found()
        stream = StreamFacts(said.stream_id, name, said.epoch, said.owner_url)
        self._known.keep(name, stream, asked_at)
        return stream
