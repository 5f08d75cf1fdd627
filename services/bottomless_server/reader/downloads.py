"""Fragments as they are, byte ranges of them: for Spark and whoever reads objects through HTTP."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt, NotFound, StoreError
from bottomless.formats.keys import FragmentPlace, fragment_key, fragment_place
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import parse_fragment_id
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless.model.names import FullName, StreamId, Uid
from bottomless_server.drives.table import DriveTable, load_registry
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.core.byte_range import ByteRange
from bottomless_server.reader.page_reader import PageReader
from bottomless_server.reader.patience import Patience, patiently
from bottomless_server.reader.read_ahead import read_ahead
from bottomless_server.reader.roots import Roots
from bottomless_server.reader.streams import StreamFacts


class Download(NamedTuple):
    """One fragment object that may be read."""

    stream_id: StreamId
    fragment_id: str
    place: FragmentPlace
    size: int

    @property
    def etag(self) -> str:
        # An object never changes under its uid, so the uid is the strongest tag there is.
        return f'"{self.fragment_id.partition("-")[2]}"'


class Downloads:
    def __init__(
        self,
        reader: PageReader,
        roots: Roots,
        drives: DriveTable,
        blocks: Blocks,
        patience: Patience,
        *,
        piece_size: int,
        read_ahead_size: int,
    ) -> None:
        self._reader = reader
        self._roots = roots
        self._drives = drives
        self._blocks = blocks
        self._patience = patience
        self._piece_size = piece_size
        self._read_ahead_size = read_ahead_size

    async def open(
        self, name: FullName, fragment_id: str, stream_id: StreamId | None = None
    ) -> Download:
        """Find a fragment that the manifest names, or named until retention or trim passed it.

        Raises:
            NotFound: `fragment-not-found`, or the stream is not there.
        """
        first_offset, uid = parse_fragment_id(fragment_id)

        async def act(stream: StreamFacts) -> Download:
            return await self._open(stream, fragment_id, first_offset, uid)

        return await self._reader.with_stream(name, stream_id, act)

    async def pieces(
        self, download: Download, wanted: ByteRange
    ) -> AsyncGenerator[memoryview, None]:
        """The bytes of a range in order, some blocks ahead of the client."""
        ranges = _pieces_of(wanted, self._piece_size)

        async def get(piece: ByteRange) -> memoryview:
            # Who downloads verifies: a range of bytes has no checksum that could be looked at here.
            with self._patience.lasting():
                place = download.place
                data = await patiently(
                    lambda: self._blocks.fetch(place.object_key, *piece, place.drive)
                )
            return memoryview(data)

        async with read_ahead(get, ranges, self._read_ahead_size) as results:
            for piece in ranges:
                try:
                    data = await anext(results)
                except ObjectMissing as error:
                    raise _missing(download) from error
                if len(data) != piece.size:
                    raise _missing(download)
                yield data

    async def _open(
        self, stream: StreamFacts, fragment_id: str, first_offset: int, uid: Uid
    ) -> Download:
        stream_id = stream.stream_id
        state = await self._roots.current(stream_id)
        if first_offset >= state.published_next:
            # Perhaps in a root that was published since.
            state = await self._roots.refreshed(stream_id)
        if first_offset < state.first_offset:
            # Out of the stream, but there until its grace ends, for those who planned with it.
            place, size = await self._passed(stream, first_offset, uid)
            return Download(stream_id, fragment_id, place, size)
        tree = await self._roots.tree(stream, state)
        async for leaf in self._roots.leaves(tree, first_offset):
            if leaf["kind"] != EntryKind.FRAGMENT:
                break
            info = fragment_info(leaf)
            if info.uid == uid:
                place = fragment_place(stream_id, info, stream.tenant)
                return Download(stream_id, fragment_id, place, info.size)
            break
        raise _not_found()

    async def _passed(
        self, stream: StreamFacts, first_offset: int, uid: Uid
    ) -> tuple[FragmentPlace, int]:
        """Find a fragment that the manifest does not name any more: on which drive it lies, and under
        the number of which move, nobody says, so all drives are looked at.

        Raises:
            NotFound: `fragment-not-found`: it is on none of them.
            DriveUnavailable, DriveRefused: it is not on those that are there, and another one is away, or
                not known to this process.
            Corrupt: the registry of drives is damaged.
        """
        key = fragment_key(stream.stream_id, first_offset, uid, stream.tenant)
        with suppress(ObjectMissing):
            size = (await self._drives.of(DEFAULT_NUMBER).head(key)).size
            return FragmentPlace(DEFAULT_NUMBER, key), size
        unseen: StoreError | None = None
        for number in await self._numbers():
            try:
                async for facts in self._drives.of(number).list(key.removesuffix(".fragment")):
                    return FragmentPlace(number, facts.object_key), facts.size
            except StoreError as error:
                unseen = unseen or error
        raise unseen or _not_found()

    async def _numbers(self) -> list[int]:
        """The numbers of all drives on which something may be, as the registry says now: on one that was
        retired or lost since this process started nothing is."""
        registry = await load_registry(self._drives.of(DEFAULT_NUMBER))
        return [DEFAULT_NUMBER, *(one.number for one in registry.drives if not one.is_gone)]


class PiecesResponse(StreamingResponse):
    """Streams an async generator and closes it however the answer ends."""

    def __init__(
        self, pieces: AsyncGenerator[memoryview, None], status: int, headers: dict[str, str]
    ) -> None:
        super().__init__(pieces, status, headers, "application/octet-stream")
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await super().__call__(scope, receive, send)


def _pieces_of(wanted: ByteRange, size: int) -> list[ByteRange]:
    """The range in pieces that end where blocks end, so that each is a view of one block."""
    end = wanted.start + wanted.size
    edges = [wanted.start, *range((wanted.start // size + 1) * size, end, size), end]
    return [ByteRange(start, stop - start) for start, stop in pairwise(edges)]


def _not_found() -> NotFound:
    return NotFound("there is no such fragment", code=Code.FRAGMENT_NOT_FOUND)


def _missing(download: Download) -> Corrupt:
    return Corrupt(
        "a fragment that the manifest names is missing or cut short",
        code=Code.DATA_MISSING,
        facts={"fragment_id": download.fragment_id},
    )
