"""Fragments: immutable objects that hold whole chunks of one stream and one epoch."""

import re
from enum import IntFlag
from typing import NamedTuple

from bottomless.errors import Code, NotFound
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId, Uid

_FRAGMENT_ID = re.compile(r"([0-9]{20})-([0-9a-f]{32})", re.ASCII)


class Presence(IntFlag):
    """What is known of the values of one column in a fragment, a chunk or below an entry."""

    KNOWN = 1
    """Anything is known at all. A table of a fragment leaves this bit out: it is always known."""
    SOME = 2
    """Some record has a value."""
    NONE = 4
    """Some record has none."""


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
    version: int = 1
    """1, or 2 where the fragment has filters."""


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
    filters_size: int = 0
    """Bytes of filters between the chunks and the index; 0 in a fragment of version 1."""
    filters_crc: int = 0

    @property
    def version(self) -> int:
        """1, or 2 where the fragment has filters."""
        return 2 if self.filters_size else 1

    @property
    def filters_position(self) -> int:
        """The byte of the object at which the chunks end, and the filters start if there are any."""
        return self.index_position - self.filters_size


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
    filter_presence: Presence = Presence(0)
    """What is known of filter values in it; 0 for nothing, which is what version 1 says."""
    filter_blocks: bytes = b""
    """The filter of its filter values as an entry has it; empty where there is none."""
    filters_size: int = 0
    """Bytes of the filters before the index; 0 where there are none, or nobody has said how many."""
    drive: int = 0
    """The number of the drive on which the object lies."""
    copy: int = 0
    """Number of the copy, as its key has it; 0 for the object that was put first."""

    @property
    def fragment_id(self) -> str:
        """The public id of the fragment: its first offset in 20 digits, `-`, and its uid."""
        return f"{self.first_offset:020d}-{self.uid}"

    @property
    def index_position(self) -> int:
        """The byte of the object at which the index starts."""
        return self.size - self.index_size

    @property
    def version(self) -> int:
        """The version of the object: 2 if it has filters, else 1."""
        return 2 if self.filter_presence else 1


def parse_fragment_id(text: str) -> tuple[int, Uid]:
    """Split a public fragment id into first offset and uid.

    Raises:
        NotFound: `fragment-not-found`: no fragment can have such an id.
    """
    match = _FRAGMENT_ID.fullmatch(text)
    if match is None or int(match[1]) > OFFSET_MAX:
        raise NotFound("there is no such fragment", code=Code.FRAGMENT_NOT_FOUND)
    return int(match[1]), Uid(match[2])
