"""Streams by name: their ids and owners as the manifest service says, remembered for seconds.

What is not there is never remembered: a stream can be read as soon as it was created.
"""

from dataclasses import dataclass
from typing import NamedTuple

from cachetools import TTLCache

from bottomless.model.names import StreamId, StreamName, parse_stream_id
from bottomless.model.stream import StreamState
from bottomless.stores.streams import stream_not_found
from bottomless_server.reader.ports import Asked

_STREAM_COUNT_MAX = 10_000
"""Names remembered; some hundred bytes each."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    stream_id: StreamId
    name: StreamName
    epoch: int
    owner_url: str | None


class Found(NamedTuple):
    stream: StreamFacts
    remembered: bool
    """It may be out of date: an answer that does not fit it is a reason to ask again."""


class Streams:
    def __init__(self, manifest: Asked, ttl_ms: int) -> None:
        self._manifest = manifest
        self._known: TTLCache[StreamName, StreamFacts] = TTLCache(_STREAM_COUNT_MAX, ttl_ms / 1000)

    async def find(self, name: StreamName) -> Found:
        """The stream behind a name.

        Raises:
            NotFound: there is none.
        """
        if (known := self._known.get(name)) is not None:
            return Found(known, remembered=True)
        answer = await self._manifest.call("GET", f"/internal/v1/streams/by-name/{name}")
        members = answer.body
        if members["state"] != StreamState.ACTIVE:
            raise stream_not_found()
        stream = StreamFacts(
            stream_id=parse_stream_id(members["stream_id"]),
            name=name,
            epoch=members["epoch"],
            owner_url=members["owner_url"],
        )
        self._known[name] = stream
        return Found(stream, remembered=False)

    def forget(self, name: StreamName) -> None:
        self._known.pop(name, None)
