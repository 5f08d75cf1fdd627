"""What a stream has in object storage: the list of its fragments.

Spark plans from the list and reads objects by itself, so the list has no hole: each item
starts where the one before it ends, or the answer is an error and not a list.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np

from bottomless.drives.base import Drive
from bottomless.errors import Code, OffsetGone, WrongOffset
from bottomless.formats.fragment import HEADER_SIZE
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.filter import Filter
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.registry import RootState
from bottomless_server.reader.core.page import gap_reason
from bottomless_server.reader.core.page_token import PageToken, decode_token, encode_token
from bottomless_server.reader.core.scan import PassedOver, Scan, ScanBounds
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.presigned import PresignedUrls
from bottomless_server.reader.roots import Roots, Tree
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import NoOwnerAnswers, Tail

_UNBOUNDED: Final = ScanBounds(2**63, 2**31, float("inf"))
"""A page of a list is bounded by its items, of which each group that is looked into gives one."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    limit: int
    from_offset: int | None = None
    to_offset: int | None = None
    page_token: str | None = None
    locations: bool = False
    presigned: bool = False
    expect_stream_id: StreamId | None = None
    wanted: Filter | None = None
    """Only fragments that may hold what is asked for; of others it is said where they are."""


class Listing:
    def __init__(
        self,
        reader: PageReader,
        roots: Roots,
        tail: Tail,
        drive: Drive,
        *,
        secret: bytes,
        url_seconds: int,
        drives: DriveTable | None = None,
    ) -> None:
        """All fragments are on `drive` if there is no table of drives."""
        self._reader = reader
        self._roots = roots
        self._tail = tail
        self._drives = drives or DriveTable.of_one(drive)
        self._secret = secret
        self._urls = {
            number: PresignedUrls(self._drives.of(number), url_seconds)
            for number in self._drives.numbers
        }

    async def fragments(self, name: FullName, query: ListQuery) -> dict[str, Any]:
        """One page of the fragment list.

        Raises:
            NotFound, InvalidRequest, OffsetGone, WrongOffset, Unavailable, Corrupt
        """
        if query.presigned:
            self._urls[DEFAULT_NUMBER].check()
        token = None
        if query.page_token is not None:
            token = decode_token(query.page_token, name.tenant, self._secret)

        async def act(stream: StreamFacts) -> dict[str, Any]:
            return await self._fragments(stream, query, token)

        return await self._reader.with_stream(name, query.expect_stream_id, act)

    async def _fragments(
        self, stream: StreamFacts, query: ListQuery, token: PageToken | None
    ) -> dict[str, Any]:
        state, committed_next = await self._root(stream)
        first_offset, stored_next = state.first_offset, state.published_next
        next_offset = max(committed_next, stored_next)
        if token is None:
            begin = first_offset if query.from_offset is None else query.from_offset
            end = stored_next if query.to_offset is None else min(query.to_offset, stored_next)
        elif token.stream_id == stream.stream_id:
            begin, end = token.next_offset, token.end_offset
        else:
            raise WrongOffset(
                "the page token is of another stream of this name", code=Code.STREAM_REPLACED
            )
        if begin < first_offset:
            raise OffsetGone(
                "the range begins with records that were removed by retention or trim",
                code=Code.OFFSET_TRIMMED,
                facts={"first_offset": first_offset, "next_offset": next_offset},
            )
        tree = await self._roots.tree(stream, state)
        items, continues = await self._items(tree, begin, end, query.limit, query.wanted)
        fragments = [item for item in items if isinstance(item, FragmentInfo)]
        extras = await self._extras(stream, fragments, query)
        following = None
        if continues < end:
            following = encode_token(
                PageToken(stream.stream_id, end, continues), stream.tenant, self._secret
            )
        return {
            "stream_id": stream.stream_id,
            "manifest_version": state.version,
            "first_offset": first_offset,
            "next_offset": next_offset,
            "object_store_next_offset": stored_next,
            "fragments": [
                _fragment_item(stream.name.name, item) | next(extras)
                if isinstance(item, FragmentInfo)
                else item
                for item in items
            ],
            "next_page_token": following,
        }

    async def _root(self, stream: StreamFacts) -> tuple[RootState, int]:
        """The root, at least as new as the owner knows it, and where the owner says that the stream ends:
        0 where no owner answers, since all of the list is published."""
        try:
            bounds = await self._tail.bounds(stream)
        except NoOwnerAnswers:
            return await self._roots.refreshed(stream.stream_id), 0
        return await self._roots.current(stream.stream_id, bounds.version), bounds.committed_next

    async def _items(
        self, tree: Tree, begin: int, end: int, limit: int, wanted: Filter | None
    ) -> tuple[list[FragmentInfo | dict[str, Any]], int]:
        """Fragments and gaps that hold an offset of the range, and where the next page begins."""
        items: list[FragmentInfo | dict[str, Any]] = []
        position = begin
        scan = None if wanted is None else Scan(wanted, _UNBOUNDED)
        async for leaf in self._roots.leaves_under(tree, begin, scan):
            first_offset, next_offset = _range_of(leaf)
            if position >= end or len(items) == limit:
                break
            # Only the first may begin before what was asked for.
            assert first_offset == position or not items, "the manifest has a hole"
            if isinstance(leaf, PassedOver):
                items.append(_skipped_item(leaf))
            elif leaf["kind"] == EntryKind.GAP:
                items.append(_gap_item(first_offset, next_offset, int(leaf["reason"])))
            else:
                items.append(fragment_info(leaf))
            position = next_offset
        assert position >= end or len(items) == limit, "the manifest ends early"
        return items, position

    async def _extras(
        self, stream: StreamFacts, fragments: Sequence[FragmentInfo], query: ListQuery
    ) -> Iterator[dict[str, Any]]:
        """Make what the query wants of each fragment beside its facts: its place, a URL, or
        nothing.
        """
        places = [fragment_place(stream.stream_id, info, stream.tenant) for info in fragments]
        extras: list[dict[str, Any]] = [{} for _ in places]
        if query.locations:
            used = {place.drive for place in places}
            stores = {number: asdict(self._drives.of(number).location) for number in used}
            extras = [
                {"store": stores[place.drive], "object_key": place.object_key} for place in places
            ]
        if query.presigned:
            urls = await self._urls_of(places)
            extras = [extra | url for extra, url in zip(extras, urls, strict=True)]
        return iter(extras)

    async def _urls_of(self, places: Sequence[FragmentPlace]) -> list[dict[str, Any]]:
        """A URL for each place, from the drive on which it is.

        Raises:
            InvalidRequest: one of the drives makes no such URLs.
            DriveUnavailable: one of the drives is not known.
        """
        made: list[dict[str, Any]] = []
        for number, run in groupby(places, key=lambda place: place.drive):
            self._drives.of(number)
            self._urls[number].check()
            made += await self._urls[number].of([place.object_key for place in run])
        return made


def _fragment_item(name: StreamName, info: FragmentInfo) -> dict[str, Any]:
    return {
        "id": info.fragment_id,
        "first_offset": info.first_offset,
        "last_offset": info.next_offset - 1,
        "record_count": info.record_count,
        "size_bytes": info.size,
        "data_bytes": info.index_position - HEADER_SIZE,
        "index_position": info.index_position,
        "format": f"bottomless-fragment-{info.version}",
        "first_timestamp": _shown(info.first_timestamp),
        "last_timestamp": _shown(info.last_timestamp),
        "crc32c": f"{info.crc:08x}",
        "etag": f'"{info.uid}"',
        "href": f"/v1/streams/{name}/fragments/{info.fragment_id}",
    }


def _range_of(leaf: np.void | PassedOver) -> tuple[int, int]:
    if isinstance(leaf, PassedOver):
        return leaf.first_offset, leaf.next_offset
    return int(leaf["first_offset"]), int(leaf["next_offset"])


def _skipped_item(passed: PassedOver) -> dict[str, Any]:
    return {
        "skipped": True,
        "first_offset": passed.first_offset,
        "last_offset": passed.next_offset - 1,
        "fragments": passed.fragment_count,
        "bytes": passed.size,
    }


def _gap_item(first_offset: int, next_offset: int, reason: int) -> dict[str, Any]:
    return {"gap": gap_reason(reason), "first_offset": first_offset, "last_offset": next_offset - 1}


def _shown(timestamp: int) -> str:
    return format_timestamp(timestamp)
