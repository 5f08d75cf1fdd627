"""What an owner sends to the nodes that hold replicas of its streams: bytes, and how a log is opened.

Contract: openapi/internal.yaml, `take_replica_items` and `open_replica`. Both sides are nodes of one
deployment; a body of another version is refused.

A body holds items of many streams, so that many idle streams cost few requests. An item is at a
place and not at an offset, since a chunk without records has none. One that begins a segment says
where the segment before it ended: otherwise a chunk without records at that end could be missed,
as the offset at which the next segment begins does not tell of it.

```
body    magic "BLrp" | u8 version 1 | 3 reserved | u32 item count | u32 CRC-32C of these 12 | items
item    16 stream_id | u64 epoch | u64 segment_first | u64 position | u64 committed_next
        | u64 published_next | u64 manifest_version | u32 size | u8 flags | 3 reserved
        | u32 before | u32 CRC-32C of these 76 | `size` bytes of whole chunks
```
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import orjson

from bottomless.errors import Corrupt
from bottomless.formats.checks import VERSION, check, crc32c
from bottomless.formats.chunk import split_chunks
from bottomless.model.chunk import ChunkHeader
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId, stream_id_bytes, stream_id_from_bytes
from bottomless_server.protocol.paths import INTERNAL, STREAM
from bottomless_server.protocol.peer import said_by

OPEN: Final = f"{STREAM}/replica"
ITEMS: Final = f"{INTERNAL}/replica"
MEDIA_TYPE: Final = "application/octet-stream"
NODE_HEADER: Final = "bottomless-node"
"""Names the node that is meant: another one may have come up at its address, with a disk of its own."""
OPENING_SIZE_MAX: Final = 2**20
"""Bytes of the body of `open`."""
ITEM_COUNT_MAX: Final = 4_096
"""Items of one body."""
BODY_SIZE_MAX: Final = 352 * 2**20
"""Bytes of one body: the largest append that settings allow, 256 MiB, with what is known of producers
before it, and others that are gathered until a body has 16 MiB."""
END_COUNT_MAX: Final = 10_000
"""Epochs of one log, as `open` names them."""
_HEAD: Final = Struct("<4sB3xI")
_ITEM: Final = Struct("<16sQQQQQQIB3xI")
_CRC: Final = Struct("<I")
HEAD_SIZE: Final = _HEAD.size + _CRC.size
ITEM_SIZE: Final = _ITEM.size + _CRC.size
_MAGIC: Final = b"BLrp"
_BEGINS: Final = 1
_NUMBER_MAX: Final = 2**63 - 1
_NEXT_MAX: Final = OFFSET_MAX + 1
"""The end of a stream that has used all its offsets; a checkpoint holds no larger one."""
_WHAT: Final = "replica body"


class Place(NamedTuple):
    """A place in a log, between two chunks; places are ordered as the log is."""

    segment_first: int
    """The first offset of the segment."""
    position: int
    """Bytes from the segment's beginning; the first chunk follows on its header."""


NOWHERE: Final = Place(0, 0)
"""The end of an empty log: it begins at the segment that holds the published end."""


class EpochEnd(NamedTuple):
    """Where the chunks of an epoch end in a log."""

    epoch: int
    end: Place
    next_offset: int


class Opening(NamedTuple):
    """What an owner says of its log when it opens the logs that follow it."""

    epoch: int
    ends: tuple[EpochEnd, ...]
    """Every epoch of its log as it was at the claim, oldest first."""
    local_first: int
    """The first offset of its oldest segment, or its next offset if it has none."""
    published_next: int
    version: int
    """The version of the record, which grows with `published_next`."""
    shown: bool = True
    """Whether the owner has shown what it found at its claim: all that were in sync had it then."""


class Item(NamedTuple):
    """Chunks of one stream for those that follow its log; without bytes only the bounds."""

    stream_id: StreamId
    epoch: int
    """The epoch whose owner sends this; chunks may be of earlier ones."""
    place: Place
    """Where `data` begins in the owner's log."""
    committed_next: int
    published_next: int
    manifest_version: int
    begins: bool
    """Whether the segment begins here; then `place` is that of its first chunk."""
    before: int
    """Where the segment before ended, in bytes, if one begins here; 0 if there was none."""
    data: bytes | memoryview


class OpenSaid(NamedTuple):
    """What a follower answers to `open`."""

    refusal: str | None
    """`fenced` or `diverged`; None of a log that is open."""
    end: Place | None
    """Where the owner goes on; None of an empty log, and of one that is not open."""


class Taken(StrEnum):
    """What a follower answers to an item."""

    OK = "ok"
    NOT_OPEN = "not-open"
    FENCED = "fenced"
    GAP = "gap"
    STORAGE = "storage"


class Answer(NamedTuple):
    """What a follower says to an item, and the place at which its log ends."""

    taken: Taken
    end: Place


def encode_items(items: Sequence[Item]) -> list[bytes | memoryview]:
    """Make a body; returns its parts for one gathered write."""
    assert len(items) <= ITEM_COUNT_MAX
    parts: list[bytes | memoryview] = [_sealed(_HEAD.pack(_MAGIC, VERSION, len(items)))]
    for item in items:
        parts += (_item_header(item), item.data)
    return parts


def decode_items(body: bytes | memoryview) -> list[Item]:
    """Read a body; data of items is a view of it, whose chunks `chunks_of` verifies.

    Raises:
        Corrupt: it is damaged, cut short, too large, or of another version.
    """
    view = memoryview(body)
    check(_WHAT, HEAD_SIZE <= len(view) <= BODY_SIZE_MAX, "its size cannot be")
    magic, version, count = _HEAD.unpack_from(view)
    check(_WHAT, magic == _MAGIC, "it has another magic")
    check(_WHAT, version == VERSION, f"its version is {version}")
    _check_seal(view[:HEAD_SIZE], "head")
    check(_WHAT, bytes(view[5:8]) == bytes(3), "reserved bytes are not zero")
    check(_WHAT, count <= ITEM_COUNT_MAX, f"it has {count} items")
    items, position = [], HEAD_SIZE
    for _ in range(count):
        item = _decode_item(view[position:])
        items.append(item)
        position += ITEM_SIZE + len(item.data)
    check(_WHAT, position == len(view), "bytes follow its last item")
    return items


def chunks_of(item: Item) -> list[tuple[ChunkHeader, memoryview]]:
    """Get the chunks of an item in their order, each verified.

    Raises:
        Corrupt: one is damaged or cut short, or of a later epoch than its owner or the next chunk.
    """
    chunks, newest = list(split_chunks(item.data)), 0
    for header, _ in chunks:
        check(_WHAT, newest <= header.epoch <= item.epoch, "a chunk is of an epoch that cannot be")
        newest = header.epoch
    return chunks


def encode_opening(opening: Opening) -> bytes:
    """Make the body of `open`."""
    return orjson.dumps(
        {
            "epoch": opening.epoch,
            "ends": [[one.epoch, *one.end, one.next_offset] for one in opening.ends],
            "local_first": opening.local_first,
            "published_next": opening.published_next,
            "version": opening.version,
            "shown": opening.shown,
        }
    )


def decode_opening(body: bytes) -> Opening:
    """Read the body of `open`.

    Raises:
        Corrupt: a member is missing, unknown or not of its kind and range, epochs do not rise, or a
            later epoch ends before an earlier one.
    """
    told = _json(body)
    check(_WHAT, isinstance(told, dict) and set(told) == _MEMBERS, "its members are others")
    assert isinstance(told, dict)
    rows, shown = told.pop("ends"), told.pop("shown")
    check(_WHAT, isinstance(shown, bool), "it does not say what is shown")
    check(_WHAT, isinstance(rows, list) and len(rows) <= END_COUNT_MAX, "its ends are no list")
    ends = tuple(_end(row) for row in rows)
    numbers = {name: _number(value) for name, value in told.items()}
    opening = Opening(ends=ends, shown=shown, **numbers)
    for one, later in pairwise(ends):
        check(_WHAT, one.epoch < later.epoch, "its epochs do not rise")
        rises = one.end < later.end and one.next_offset <= later.next_offset
        check(_WHAT, rises, "an epoch ends before an earlier one")
    check(_WHAT, not ends or ends[-1].epoch < opening.epoch, "it has chunks of its own epoch")
    check(_WHAT, opening.local_first <= opening.published_next, "more is freed than published")
    offsets = [opening.published_next, *(one.next_offset for one in ends)]
    check(_WHAT, max(offsets) <= _NEXT_MAX, "an offset is too large")
    return opening


_MEMBERS: Final = set(Opening._fields)


def encode_open_said(said: OpenSaid) -> bytes:
    """Make the reply to `open`."""
    end = None if said.end is None else list(said.end)
    return orjson.dumps({"refusal": said.refusal, "end": end})


@said_by("a replica")
def decode_open_said(body: bytes) -> OpenSaid:
    """Read the reply to `open`.

    Raises:
        Unavailable: it is none.
    """
    told = _json(body)
    check(_WHAT, isinstance(told, dict) and set(told) == {"refusal", "end"}, "it is no answer")
    assert isinstance(told, dict)
    refusal, end = told["refusal"], told["end"]
    check(_WHAT, refusal in (None, *_REFUSALS), "its refusal is unknown")
    if end is None or refusal is not None:
        return OpenSaid(refusal, None)
    check(_WHAT, isinstance(end, list) and len(end) == 2, "its end is no place")
    return OpenSaid(None, Place(*map(_number, end)))


_REFUSALS: Final = ("fenced", "diverged")


def encode_answers(answers: Sequence[Answer]) -> bytes:
    """Make the reply to a body: one answer for each item, in their order."""
    return orjson.dumps([[answer.taken, *answer.end] for answer in answers])


def decode_answers(body: bytes, count: int) -> list[Answer]:
    """Read the reply to a body of `count` items.

    Raises:
        Corrupt: it has not one answer for each item, or one that cannot be.
    """
    told = _json(body)
    check(_WHAT, isinstance(told, list) and len(told) == count, "answers are missing")
    assert isinstance(told, list)
    return [_answer(row) for row in told]


def _item_header(item: Item) -> bytes:
    return _sealed(
        _ITEM.pack(
            stream_id_bytes(item.stream_id),
            item.epoch,
            *item.place,
            item.committed_next,
            item.published_next,
            item.manifest_version,
            len(item.data),
            _BEGINS if item.begins else 0,
            item.before,
        )
    )


def _decode_item(view: memoryview) -> Item:
    check(_WHAT, len(view) >= ITEM_SIZE, "it is cut short")
    _check_seal(view[:ITEM_SIZE], "item")
    stream_id, *numbers, size, flags, before = _ITEM.unpack_from(view)
    check(_WHAT, bytes(view[69:72]) == bytes(3), "reserved bytes are not zero")
    check(_WHAT, flags in (0, _BEGINS), f"its flags are {flags}")
    check(_WHAT, max(numbers) <= _NUMBER_MAX, "a number is too large")
    check(_WHAT, bool(flags) or before == 0, "it names a segment before and begins none")
    check(_WHAT, len(view) >= ITEM_SIZE + size, "it is cut short")
    epoch, segment_first, position, committed_next, published_next, version = numbers
    beyond = max(segment_first, committed_next, published_next) > _NEXT_MAX
    check(_WHAT, not beyond, "an offset is too large")
    return Item(
        stream_id=stream_id_from_bytes(stream_id),
        epoch=epoch,
        place=Place(segment_first, position),
        committed_next=committed_next,
        published_next=published_next,
        manifest_version=version,
        begins=bool(flags),
        before=before,
        data=view[ITEM_SIZE : ITEM_SIZE + size],
    )


def _sealed(fields: bytes) -> bytes:
    return fields + _CRC.pack(crc32c(fields))


def _check_seal(sealed: memoryview, what: str) -> None:
    end = len(sealed) - _CRC.size
    (crc,) = _CRC.unpack_from(sealed, end)
    check(_WHAT, crc == crc32c(sealed[:end]), f"the checksum of its {what} does not match")


def _json(body: bytes) -> object:
    try:
        told: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"{_WHAT} is corrupt: it is no JSON") from error
    return told


def _number(value: object) -> int:
    check(_WHAT, type(value) is int and 0 <= value <= _NUMBER_MAX, "a number is out of its range")
    assert isinstance(value, int)
    return value


def _end(row: object) -> EpochEnd:
    check(_WHAT, isinstance(row, list) and len(row) == 4, "an end has other members")
    assert isinstance(row, list)
    epoch, segment_first, position, next_offset = map(_number, row)
    return EpochEnd(epoch, Place(segment_first, position), next_offset)


def _answer(row: object) -> Answer:
    check(_WHAT, isinstance(row, list) and len(row) == 3, "an answer has other members")
    assert isinstance(row, list)
    check(_WHAT, isinstance(row[0], str) and row[0] in set(Taken), "an answer is unknown")
    return Answer(Taken(row[0]), Place(_number(row[1]), _number(row[2])))
