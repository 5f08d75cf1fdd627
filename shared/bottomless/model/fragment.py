"""Fragments: immutable objects that hold whole chunks of one stream and one epoch."""

import re
from typing import NamedTuple

from bottomless.errors import Code, NotFound
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId, Uid

_FRAGMENT_ID = re.compile(r"([0-9]{20})-([0-9a-f]{32})", re.ASCII)


class FragmentHeader(NamedTuple):
    """The first bytes of a fragment object: enough to find its place in a stream again.

    `next_offset` is exclusive; timestamps are in ms since 1970.
    """

    stream_id: StreamId
    uid: Uid
    first_offset: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int
    epoch: int
    record_count: int
    data_size: int
    """Bytes of chunks."""
    chunk_count: int


class FragmentFooter(NamedTuple):
    """The last bytes of a fragment object: where its index is, and the checksums. Sizes are in
    bytes.
    """

    index_position: int
    data_size: int
    index_size: int
    chunk_count: int
    index_crc: int
    data_crc: int


class FragmentInfo(NamedTuple):
    """What the manifest keeps about a fragment, and what a reader needs to open it.

    `next_offset` is exclusive; timestamps are in ms since 1970.
    """

    uid: Uid
    first_offset: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int
    epoch: int
    record_count: int
    size: int
    """Bytes of the whole object."""
    index_size: int
    """Bytes from the start of the index to the end of the object: index and footer."""
    crc: int
    """CRC-32C of the whole object."""

    @property
    def fragment_id(self) -> str:
        """The public id of the fragment: its first offset in 20 digits, `-`, and its uid."""
        return f"{self.first_offset:020d}-{self.uid}"

    @property
    def index_position(self) -> int:
        """The byte of the object at which the index starts."""
        return self.size - self.index_size


def parse_fragment_id(text: str) -> tuple[int, Uid]:
    """Split a public fragment id into first offset and uid.

    Raises:
        NotFound: `fragment-not-found`: no fragment can have such an id.
    """
    match = _FRAGMENT_ID.fullmatch(text)
    if match is None or int(match[1]) > OFFSET_MAX:
        raise NotFound("there is no such fragment", code=Code.FRAGMENT_NOT_FOUND)
    return int(match[1]), Uid(match[2])
