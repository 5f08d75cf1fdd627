"""Calls that read: pages as JSON or Arrow, and where a stream begins and ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bottomless.client.address import stream_path
from bottomless.client.encoding import ARROW
from bottomless.client.parameters import Parameter, query_of
from bottomless.client.place import Place, spec_of
from bottomless.client.record import Record, records_of
from bottomless.client.transport import QueryValue
from bottomless.client.wire import Wire, members, number_in, stranger, understood
from bottomless.errors import Unavailable
from bottomless.model.limits import PAGE_SIZE_MAX
from bottomless.model.names import StreamId

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # it comes without types
    import polars as pl
    import pyarrow as pa

_POLL_SECONDS: Final = 0.05


class Offsets(NamedTuple):
    """The bounds of a stream. All `next` bounds are exclusive."""

    stream_id: StreamId
    first_offset: int
    next_offset: int
    object_store_next_offset: int
    """The first offset that object storage does not hold yet."""


class Page(NamedTuple):
    """Records, and the offset at which to continue."""

    records: list[Record]
    next_offset: int
    up_to_date: bool
    gaps: Sequence[Mapping[str, int]] = ()
    """Offsets that the page skipped, since they were given up for good."""


class ArrowPage(NamedTuple):
    """Records as an Arrow table with `offset` and `timestamp` columns, unless only others were asked
    for, and where to continue."""

    table: "pa.Table"
    next_offset: int
    stream_id: StreamId
    up_to_date: bool
    gaps: Sequence[Mapping[str, int]] = ()
    """Offsets that the page skipped, since they were given up for good."""

    def to_pandas(self) -> "pd.DataFrame":
        """Convert the table to a pandas DataFrame; pandas must be installed.

        Raises:
            ModuleNotFoundError: it is not; the message says what to install.
        """
        try:
            return self.table.to_pandas()
        except ModuleNotFoundError as error:
            raise _missing(error, "to_pandas", "pandas") from error

    def to_polars(self) -> "pl.DataFrame":
        """Convert the table to a Polars DataFrame; Polars must be installed.

        Raises:
            ModuleNotFoundError: it is not; the message says what to install.
        """
        try:
            import polars as pl  # noqa: PLC0415  # not everybody has it
        except ModuleNotFoundError as error:
            raise _missing(error, "to_polars", "polars") from error

        frame = pl.from_arrow(self.table)
        assert isinstance(frame, pl.DataFrame)
        return frame


def _missing(error: ModuleNotFoundError, call: str, library: str) -> ModuleNotFoundError:
    """What is said where a library is not installed; what such a library misses itself stays as it is."""
    if error.name != library:
        return error
    sentence = f"{call}() needs {library}, which is not installed: pip install {library}"
    return ModuleNotFoundError(sentence, name=library)


class ReadCalls(Wire):
    """The calls of `openapi/reader.yaml` about records and offsets."""

    async def read(self, /, name: str, offset: Place, **parameters: Parameter) -> Page:
        """Read one page from a place on: an offset, an offset spec or a time.

        `parameters` are those of the API (docs/reading.md); `filter` and `key` may be lists, and keys
        bytes. With one of them a page can be empty and still have moved: read on until `up_to_date`.

        Raises:
            InvalidRequest: a list is empty.
            OffsetGone: retention or trim has passed the offset; with `on_out_of_range="clamp"` the
                page begins with the first record that is there.
        """
        query = {"on_out_of_range": "error", **query_of(parameters), "offset": spec_of(offset)}
        answer = await self._send("GET", f"{stream_path(name)}/records", query, bulk=True)
        value = members(answer)
        with understood():
            return Page(
                records_of(value["records"]),
                number_in(value, "next_offset"),
                value["up_to_date"],
                value.get("gaps") or (),
            )

    async def read_arrow(
        self,
        /,
        name: str,
        offset: Place,
        *,
        columns: str | Sequence[str] | None = None,
        **parameters: Parameter,
    ) -> ArrowPage:
        """Read one page from a place on as Arrow; its size is bounded in bytes.

        `columns` names the columns to send, by default all: `["value"]` costs the least.
        `parameters` are those of the API (docs/reading.md); `filter` and `key` may be lists, and keys
        bytes. With one of them a page can be empty and still have moved: read on until `up_to_date`.

        Raises:
            InvalidRequest: a list is empty.
            OffsetGone: retention or trim has passed the offset; with `on_out_of_range="clamp"` the
                page begins with the first record that is there.
        """
        return await self._read_arrow(name, offset, {**_named(columns), **query_of(parameters)})

    async def _read_arrow(
        self,
        name: str,
        offset: Place,
        parameters: Mapping[str, QueryValue],
        retry_seconds: float | None = None,
    ) -> ArrowPage:
        import pyarrow as pa  # noqa: PLC0415  # it takes longer to load than a question to ask

        query = {
            "offset": spec_of(offset),
            "max_bytes": PAGE_SIZE_MAX,
            "on_out_of_range": "error",
            **parameters,
        }
        answer = await self._send(
            "GET",
            f"{stream_path(name)}/records",
            query,
            type_wanted=ARROW,
            bulk=True,
            retry_seconds=retry_seconds,
        )
        try:
            with pa.ipc.open_stream(answer.body) as reader:
                table = reader.read_all()
            return ArrowPage(
                table,
                int(answer.headers["Page-Next-Offset"]),
                StreamId(answer.headers["Stream-Id"]),
                answer.headers["Stream-Up-To-Date"] == "true",
                _gaps_of(answer.headers.get("Page-Gaps", "")),
            )
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise stranger() from error

    async def arrow_pages(
        self,
        /,
        name: str,
        offset: Place,
        *,
        until_offset: int | None = None,
        columns: str | Sequence[str] | None = None,
        **parameters: Parameter,
    ) -> AsyncIterator[ArrowPage]:
        """Read page after page from a place on; each is asked for when it is wanted. `columns` names
        the columns to send, by default all.

        Without `until_offset` (exclusive) the pages end where the stream ended before the first was
        asked for. A page without records appears where it skipped a gap, which its `gaps` name.
        `parameters` such as `filter` and `key` may be lists.

        Raises:
            InvalidRequest: a list is empty.
            OffsetGone: retention or trim has passed the offset, before or on the way; nothing is
                left out silently.
            WrongOffset: `stream-replaced`, another stream has taken the name.
        """
        query: dict[str, QueryValue] = query_of(parameters)
        if until_offset is None:
            offsets = await self.offsets(name)
            until_offset = offsets.next_offset
            # The end is that of this stream, and would cut another one that takes the name now.
            query.setdefault("expect_stream_id", offsets.stream_id)
        query["until_offset"] = until_offset
        while True:
            page = await self._read_arrow(name, offset, {**_named(columns), **query})
            if page.table.num_rows or page.gaps:
                yield page
            # A gap at the end may reach beyond it.
            if page.next_offset == offset or page.next_offset >= until_offset or page.up_to_date:
                return
            # The first page may begin where there is something; the others where it ended.
            for start in ("consumer", "default"):
                query.pop(start, None)
            query |= {"on_out_of_range": "error", "expect_stream_id": page.stream_id}
            offset = page.next_offset

    async def resolve(self, /, name: str, spec: Place, **parameters: int | str) -> dict[str, Any]:
        """Find the offset at which a read from this place would start."""
        path = f"{stream_path(name)}/offsets/resolve"
        return members(await self._send("GET", path, {"spec": spec_of(spec), **parameters}))

    async def bounds(self, /, name: str, **parameters: int | str) -> dict[str, Any]:
        """Ask for everything that is known about a stream's offsets and times.

        With `wait_ms` and `after` the answer waits up to so many ms for the stream to grow beyond
        that offset.
        """
        return members(await self._send("GET", f"{stream_path(name)}/offsets", parameters))

    async def offsets(self, name: str) -> Offsets:
        """Ask where a stream begins and ends, in the log and in object storage."""
        value = await self.bounds(name)
        with understood():
            return Offsets(
                StreamId(value["stream_id"]),
                number_in(value, "first_offset"),
                number_in(value, "next_offset"),
                number_in(value, "object_store_next_offset"),
            )

    async def wait_until_stored(self, name: str, *, timeout_seconds: float) -> Offsets:
        """Wait until object storage holds everything that the stream has now.

        Raises:
            Unavailable: it did not within `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        wanted = (await self.offsets(name)).next_offset
        while True:
            offsets = await self.offsets(name)
            if offsets.object_store_next_offset >= wanted:
                return offsets
            if time.monotonic() > deadline:
                raise Unavailable(
                    "object storage did not have these records in time",
                    facts={
                        "object_store_next_offset": offsets.object_store_next_offset,
                        "wanted": wanted,
                    },
                )
            await asyncio.sleep(_POLL_SECONDS)


def _named(columns: str | Sequence[str] | None) -> dict[str, str]:
    if columns is None:
        return {}
    return {"columns": columns if isinstance(columns, str) else ",".join(columns)}


def _gaps_of(told: str) -> list[dict[str, int]]:
    """What a header says of gaps, as a page of JSON says it."""
    pairs = [one.split("-") for one in told.split(", ") if one]
    return [{"first_offset": int(first), "next_offset": int(last) + 1} for first, last in pairs]
