"""Calls about streams as a whole, and about how far their consumers have come."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson

from bottomless.client.address import consumer_path, stream_path
from bottomless.client.encoding import JSON
from bottomless.client.wire import Wire, members

_MERGE_PATCH: Final = "application/merge-patch+json"


class StreamCalls(Wire):
    """What `openapi/manifest.yaml` says of streams and consumers."""

    async def create_stream(
        self, name: str, config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Declare a stream; the same again is the same stream."""
        return await self._send_json("PUT", stream_path(name), config or {}, repeatable=True)

    def list_streams(
        self,
        *,
        prefix: str = "",
        state: str = "active",
        unreadable: Callable[[dict[str, Any]], object] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Every stream whose name starts so, in the order of their names.

        Streams whose record the server cannot read are not among them: `unreadable` is called
        with the `name`, `stream_id` and `code` of each.
        """
        query = {"state": state, **({"prefix": prefix} if prefix else {})}
        return self._list("/v1/streams", query, unreadable=unreadable)

    async def describe(self, name: str) -> dict[str, Any]:
        """The stream, and beside its members the `etag` that a change can name."""
        answer = await self._send("GET", stream_path(name))
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    async def update_stream(
        self, name: str, patch: Mapping[str, Any], *, etag: str = "*"
    ) -> dict[str, Any]:
        """Change a configuration by a merge patch, if it is the one of the etag."""
        answer = await self._send(
            "PATCH",
            stream_path(name),
            content=orjson.dumps(patch),
            type_sent=_MERGE_PATCH,
            headers={"If-Match": etag},
        )
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    async def delete_stream(self, name: str, *, etag: str | None = None) -> dict[str, Any]:
        """Delete a stream; the operation that is answered sweeps what is left of it."""
        headers = {} if etag is None else {"If-Match": etag}
        return await self._send_json("DELETE", stream_path(name), headers=headers)

    def list_consumers(
        self, name: str, *, unreadable: Callable[[dict[str, Any]], object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The stored offsets of all consumers of a stream, in the order of their names.

        `unreadable` is called with the `consumer` and `code` of each that the server cannot read.
        """
        return self._list(f"{stream_path(name)}/consumers", unreadable=unreadable)

    async def describe_consumer(self, name: str, consumer: str) -> dict[str, Any]:
        """A consumer's stored offset and its lag."""
        return members(await self._send("GET", consumer_path(name, consumer)))

    async def commit(
        self,
        name: str,
        consumer: str,
        next_offset: int,
        *,
        allow_regression: bool = False,
        stream_id: str | None = None,
        retry_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Store the offset that a consumer continues with, of this stream if it is named.

        Raises:
            WrongOffset: `stream-replaced`, the name is another stream's; `offset-regression`.
        """
        value: dict[str, Any] = {"next_offset": next_offset, "allow_regression": allow_regression}
        if stream_id is not None:
            value["expect_stream_id"] = stream_id
        answer = await self._send(
            "PUT",
            f"{consumer_path(name, consumer)}/offset",
            content=orjson.dumps(value),
            type_sent=JSON,
            repeatable=True,
            retry_seconds=retry_seconds,
        )
        return members(answer, changes=True)

    async def forget_consumer(self, name: str, consumer: str) -> None:
        """Delete a consumer's stored offset."""
        await self._send("DELETE", f"{consumer_path(name, consumer)}/offset", type_wanted=JSON)
