"""Calls about streams as a whole, and about how far their consumers have come."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from bottomless.client.wire import JSON, Wire, members, segment, stream_path

_MERGE_PATCH: Final = "application/merge-patch+json"


class StreamCalls(Wire):
    """What `openapi/manifest.yaml` says of streams and consumers."""

    def create_stream(self, name: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Declare a stream; the same again is the same stream."""
        return self._send_json("PUT", stream_path(name), config or {})

    def list_streams(self, *, prefix: str = "", state: str = "active") -> Iterator[dict[str, Any]]:
        """Every stream whose name starts so, in the order of their names."""
        return self._list("/v1/streams", {"state": state, **({"prefix": prefix} if prefix else {})})

    def describe(self, name: str) -> dict[str, Any]:
        """The stream, and beside its members the `etag` that a change can name."""
        answer = self._send("GET", stream_path(name))
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    def update_stream(
        self, name: str, patch: Mapping[str, Any], *, etag: str = "*"
    ) -> dict[str, Any]:
        """Change a configuration by a merge patch, if it is the one of the etag."""
        answer = self._send(
            "PATCH",
            stream_path(name),
            content=orjson.dumps(patch),
            type_sent=_MERGE_PATCH,
            headers={"If-Match": etag},
        )
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    def delete_stream(self, name: str, *, etag: str | None = None) -> dict[str, Any]:
        """Delete a stream; the operation that is answered sweeps what is left of it."""
        headers = {} if etag is None else {"If-Match": etag}
        return self._send_json("DELETE", stream_path(name), headers=headers)

    def list_consumers(self, name: str) -> Iterator[dict[str, Any]]:
        """The stored offsets of all consumers of a stream, in the order of their names."""
        return self._list(f"{stream_path(name)}/consumers")

    def consumer(self, name: str, consumer: str) -> dict[str, Any]:
        """A consumer's stored offset and its lag."""
        return members(self._send("GET", _consumer_path(name, consumer)))

    def commit(
        self, name: str, consumer: str, next_offset: int, *, allow_regression: bool = False
    ) -> dict[str, Any]:
        """Store the offset that a consumer continues with."""
        value = {"next_offset": next_offset, "allow_regression": allow_regression}
        return self._send_json("PUT", f"{_consumer_path(name, consumer)}/offset", value)

    def forget_consumer(self, name: str, consumer: str) -> None:
        """Delete a consumer's stored offset."""
        self._send("DELETE", f"{_consumer_path(name, consumer)}/offset", type_wanted=JSON)


def _consumer_path(name: str, consumer: str) -> str:
    return f"{stream_path(name)}/consumers/{segment(consumer)}"
