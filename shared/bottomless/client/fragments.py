"""Calls about fragments: the objects that hold a stream, where they lie, and their bytes."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from bottomless.client.address import fragment_path, stream_path
from bottomless.client.encoding import OCTETS
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.transport import QueryValue
from bottomless.client.wire import LIST_PAGE_SIZE, Wire, members, understood
from bottomless.errors import Code, WrongOffset
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import parse_timestamp


class Fragment(NamedTuple):
    """One fragment of the list, and where its object lies if that was asked for.

    `next_offset` is exclusive; timestamps are in ms since 1970.
    """

    fragment_id: str
    first_offset: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int
    size: int
    """Bytes of the whole object."""
    index_position: int
    """Byte of the object at which index and footer start."""
    object_key: str | None
    store: Mapping[str, Any] | None
    """Kind (`file` or `s3`), root and endpoint of the store."""


class LeftOut(NamedTuple):
    """Consecutive fragments that certainly hold nothing of what was asked for.

    `next_offset` is exclusive.
    """

    first_offset: int
    next_offset: int
    fragment_count: int
    size: int
    """Bytes of their objects."""


class FragmentCalls(Wire):
    """The calls of `openapi/reader.yaml` about fragments."""

    async def fragments(
        self,
        name: str,
        *,
        first_offset: int,
        next_offset: int,
        locations: bool = False,
        stream_id: StreamId | None = None,
    ) -> AsyncIterator[Fragment]:
        """List every fragment that holds a record of the range, in order, page by page.

        The range ends before `next_offset`. The first and the last fragment may extend beyond it;
        records that object storage does not hold yet are in no fragment.

        Raises:
            WrongOffset: `stream-replaced`, the name is that of another stream than `stream_id`.
        """
        query = _range_query(first_offset, next_offset, locations=locations)
        async for item in self.list_fragments(name, query, stream_id=stream_id):
            # A gap has no object: nothing was ever stored under its offsets.
            if item.get("id") is not None:
                yield _fragment(item)

    async def fragments_for(
        self,
        /,
        name: str,
        *,
        first_offset: int,
        next_offset: int,
        locations: bool = False,
        stream_id: StreamId | None = None,
        **wanted: Parameter,
    ) -> AsyncIterator[Fragment | LeftOut]:
        """List every fragment of the range that may hold a record that is asked for, in order, and
        between them what certainly holds none.

        `filter`, `match_unfiltered` and `key` are those of `read`. Without an index of filters any
        fragment may hold one, and none is left out.

        Raises:
            InvalidRequest: a parameter names nothing.
            WrongOffset: `stream-replaced`, the name is that of another stream than `stream_id`.
        """
        query = _range_query(first_offset, next_offset, locations=locations)
        query |= query_of(wanted)
        async for item in self.list_fragments(name, query, stream_id=stream_id):
            if item.get("id") is not None:
                yield _fragment(item)
            elif item.get("skipped"):
                yield _left_out(item)

    async def list_fragments(
        self,
        name: str,
        query: Mapping[str, QueryValue] | None = None,
        *,
        stream_id: StreamId | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List the entries of the fragment list as the server answers them: gaps too, and with a
        filter what it leaves out.

        Raises:
            WrongOffset: `stream-replaced`, the name is that of another stream than `stream_id`.
        """
        asked: dict[str, QueryValue] = {"limit": LIST_PAGE_SIZE, **(query or {})}
        while True:
            value = members(await self._send("GET", f"{stream_path(name)}/fragments", asked))
            with understood():
                found, listed = value["stream_id"], list(value["fragments"])
            if stream_id not in (None, found):
                raise WrongOffset("another stream has taken the name", code=Code.STREAM_REPLACED)
            for item in listed:
                yield item
            token = value.get("next_page_token")
            if not token:
                return
            asked["page_token"] = token

    @asynccontextmanager
    async def fragment_bytes(
        self, name: str, fragment_id: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the object of one fragment; gives its bytes piece by piece."""
        path = fragment_path(name, fragment_id)
        async with self._open(path, {}, OCTETS) as answer:
            yield answer.pieces


def _range_query(first_offset: int, next_offset: int, *, locations: bool) -> dict[str, QueryValue]:
    query: dict[str, QueryValue] = {"from_offset": first_offset, "to_offset": next_offset}
    if locations:
        query["locations"] = "true"
    return query


def _left_out(item: Mapping[str, Any]) -> LeftOut:
    return LeftOut(item["first_offset"], item["last_offset"] + 1, item["fragments"], item["bytes"])


def _fragment(item: Mapping[str, Any]) -> Fragment:
    return Fragment(
        fragment_id=item["id"],
        first_offset=item["first_offset"],
        next_offset=item["last_offset"] + 1,
        first_timestamp=parse_timestamp(item["first_timestamp"]),
        last_timestamp=parse_timestamp(item["last_timestamp"]),
        size=item["size_bytes"],
        index_position=item["index_position"],
        object_key=item.get("object_key"),
        store=item.get("store"),
    )
