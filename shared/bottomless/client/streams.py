"""Calls about streams as a whole, and about how far their consumers have come."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson

from bottomless.client.address import consumer_path, stream_path
from bottomless.client.encoding import JSON
from bottomless.client.wire import Wire, members

_MERGE_PATCH: Final = "application/merge-patch+json"


class StreamCalls(Wire):
    """The calls of `openapi/manifest.yaml` about streams and consumers."""

    async def create_stream(
        self, name: str, config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Create a stream; repeating it with the same configuration changes nothing.

        `config` has the members that the API has: `retention`, `fragment`, `labels`, and `profile`,
        which is `"leaderless"` for a stream that no ingest node owns.

        Raises:
            Exists: `stream-exists`: there is a stream of this name with another configuration.
        """
        return await self._send_json("PUT", stream_path(name), config or {}, repeatable=True)

    def list_streams(
        self,
        *,
        prefix: str = "",
        state: str = "active",
        unreadable: Callable[[dict[str, Any]], object] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List every stream whose name starts with `prefix`, in the order of their names.

        Streams whose record the server cannot read are not among them: `unreadable` is called with
        the `name`, `stream_id` and `code` of each.
        """
        query = {"state": state, **({"prefix": prefix} if prefix else {})}
        return self._list("/v1/streams", query, unreadable=unreadable)

    async def describe(self, name: str) -> dict[str, Any]:
        """Describe a stream; the answer also has the `etag` that a change can name."""
        answer = await self._send("GET", stream_path(name))
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    async def update_stream(
        self, name: str, patch: Mapping[str, Any], *, etag: str = "*"
    ) -> dict[str, Any]:
        """Change a stream's configuration by a merge patch, if its etag is still `etag`.

        The default `*` changes it whatever its etag is.

        Raises:
            WrongOffset: `etag-mismatch`: somebody has changed it meanwhile.
        """
        answer = await self._send(
            "PATCH",
            stream_path(name),
            content=orjson.dumps(patch),
            type_sent=_MERGE_PATCH,
            headers={"If-Match": etag},
        )
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    async def fence(self, name: str) -> dict[str, Any]:
        """Stop the appends to a leaderless stream: after the answer none is stored by any node.

        Repeats of what was stored before are answered as ever, and everything can be read.

        Raises:
            InvalidRequest: `invalid-config`: it is not a leaderless stream.
        """
        return await self.update_stream(name, {"fenced": True})

    async def unfence(self, name: str) -> dict[str, Any]:
        """Let a leaderless stream take appends again that `fence` has stopped.

        Raises:
            InvalidRequest: `invalid-config`: it is not a leaderless stream.
        """
        return await self.update_stream(name, {"fenced": False})

    async def delete_stream(self, name: str, *, etag: str | None = None) -> dict[str, Any]:
        """Delete a stream; the operation in the answer removes what is left of it.

        Raises:
            WrongOffset: `etag-mismatch`: it is not the configuration that `etag` names any more.
        """
        headers = {} if etag is None else {"If-Match": etag}
        return await self._send_json("DELETE", stream_path(name), headers=headers)

    def list_consumers(
        self, name: str, *, unreadable: Callable[[dict[str, Any]], object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List the stored offsets of all consumers of a stream, in the order of their names.

        `unreadable` is called with the `consumer` and `code` of each that the server cannot read.
        """
        return self._list(f"{stream_path(name)}/consumers", unreadable=unreadable)

    async def describe_consumer(self, name: str, consumer: str) -> dict[str, Any]:
        """Show a consumer's stored offset and its lag, in records."""
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
        claim: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Store the offset with which a consumer continues.

        With `stream_id` only of that stream. `claim` is the id of a member of the consumer group of
        this name, with the generation by which it holds the stream.

        Raises:
            WrongOffset: `stream-replaced`, the name is that of another stream;
                `offset-regression`, a higher offset is stored and `allow_regression` is false;
                `consumer-fenced`, another member of the consumer group of this name holds it.
        """
        value: dict[str, Any] = {"next_offset": next_offset, "allow_regression": allow_regression}
        if stream_id is not None:
            value["expect_stream_id"] = stream_id
        if claim is not None:
            value["member_id"], value["generation"] = claim
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
