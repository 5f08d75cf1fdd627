"""Follow a stream as Arrow tables: while one page is used, the next one is on its way.

The position is that of the last whole page. A page that breaks off is asked for again, so nothing
comes twice and nothing is left out; at the end of the stream the server holds the request until
there is more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from bottomless.client.parameters import Parameter, query_of
from bottomless.client.place import Place
from bottomless.client.reads import ArrowPage, ReadCalls
from bottomless.client.retry import Backoff, jittered
from bottomless.client.transport import QueryValue
from bottomless.errors import StoreError

_WAIT_MS: Final = 20_000
"""A question waits for so long at the end of the stream."""


class FollowTableCalls(ReadCalls):
    """The call that follows a stream as tables, and so does not end by itself."""

    async def follow_tables(
        self,
        /,
        name: str,
        offset: Place,
        *,
        on_outage: Callable[[StoreError], None],
        **parameters: Parameter,
    ) -> AsyncIterator[ArrowPage]:
        """Give tables of the records from a place on, and then of those that are appended later.

        If the server cannot be reached at first, that is an error, as with any call. After that an
        outage is waited out, however long it lasts; `on_outage` is called with each. Tables may be
        empty.

        Raises:
            InvalidRequest: a list among `parameters` is empty.
            OffsetGone: retention or trim has passed the position, or the place where it begins.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has taken the name.
        """
        query: dict[str, QueryValue] = {"on_out_of_range": "error", **query_of(parameters)}
        page = await self._first(name, offset, query)
        for beginning in ("consumer", "default"):
            query.pop(beginning, None)
        # From now on this stream, whatever becomes of its name.
        query |= {
            "on_out_of_range": "error",
            "expect_stream_id": page.stream_id,
            "max_wait_ms": _WAIT_MS,
        }
        while True:
            # Before the one that is there is used: two are held, and the network does not rest.
            coming = asyncio.ensure_future(self._next(name, page.next_offset, query, on_outage))
            try:
                yield page
                page = await coming
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _first(self, name: str, offset: Place, query: dict[str, QueryValue]) -> ArrowPage:
        backoff = Backoff(self._retry_seconds)
        while True:
            try:
                return await self._read_arrow(name, offset, query, retry_seconds=0.0)
            except StoreError as error:
                pause = backoff.after(error) if error.retryable else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _next(
        self,
        name: str,
        offset: int,
        query: dict[str, QueryValue],
        on_outage: Callable[[StoreError], None],
    ) -> ArrowPage:
        failures = 0
        while True:
            try:
                return await self._read_arrow(name, offset, query, retry_seconds=0.0)
            except StoreError as error:
                if not error.retryable:
                    raise
                on_outage(error)
                pause = jittered(failures, error.retry_after_seconds)
                failures += 1
            await asyncio.sleep(pause)
