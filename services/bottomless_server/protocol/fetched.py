"""What readers fetch of fragments, as they tell manifest, which promotes what is read often.

Contract: openapi/internal.yaml, tag `manifest`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from bottomless.model.drive import NUMBER_MAX
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.protocol.paths import INTERNAL

FETCHED: Final = f"{INTERNAL}/fetched"
FETCHED_COUNT_MAX: Final = 256
"""Fragments that one request tells of."""


class FragmentFetched(NamedTuple):
    """What one reader has fetched of a fragment within an hour."""

    stream_id: StreamId
    first_offset: int
    """The first offset of the fragment."""
    drive: int
    """The number of the drive from which it was fetched."""
    size: int
    """Bytes, of the same ranges as often as they were fetched."""


class _Fetched(ClosedBody):
    stream_id: str
    first_offset: Annotated[int, Field(ge=0, le=OFFSET_MAX)]
    drive: Annotated[int, Field(ge=0, le=NUMBER_MAX)]
    bytes: Annotated[int, Field(ge=1, le=OFFSET_MAX)]


class FetchedTold(ClosedBody):
    """A reader tells what it has fetched."""

    fragments: Annotated[list[_Fetched], Field(max_length=FETCHED_COUNT_MAX)]

    def by_stream(self) -> dict[StreamId, list[FragmentFetched]]:
        """What was told, by stream.

        Raises:
            InvalidRequest: something is not the id of a stream.
        """
        found: dict[StreamId, list[FragmentFetched]] = {}
        for one in self.fragments:
            stream_id = parse_stream_id(one.stream_id)
            fetched = FragmentFetched(stream_id, one.first_offset, one.drive, one.bytes)
            found.setdefault(stream_id, []).append(fetched)
        return found


def encode_fetched(fragments: Iterable[FragmentFetched]) -> dict[str, Any]:
    """Say what was fetched of fragments, `FETCHED_COUNT_MAX` at most."""
    return {
        "fragments": [
            {
                "stream_id": one.stream_id,
                "first_offset": one.first_offset,
                "drive": one.drive,
                "bytes": min(one.size, OFFSET_MAX),
            }
            for one in fragments
        ]
    }
