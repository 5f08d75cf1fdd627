"""Calls about queues as a whole."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import orjson

from bottomless.client.address import check_queue, queue_path
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import Outcome

_MERGE_PATCH: Final = "application/merge-patch+json"


class Redriven(NamedTuple):
    """What became of the dead letters of a queue."""

    moved: int
    """So many were published anew."""
    left: int
    """So many ready messages are still there, wherever they came from."""


class QueueCalls(Wire):
    """The calls of `openapi/queues.yaml` about queues."""

    async def create_queue(
        self, queue: str, config: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Create a queue; repeating it with the same configuration changes nothing.

        `config` has the members that the API has, such as `visibility_ms`, `max_deliveries` and
        `dead_letter`; docs/queues.md says what each does.

        Raises:
            Exists: `queue-exists`: there is a queue of this name with another configuration.
        """
        return await self._send_json("PUT", queue_path(queue), config or {}, repeatable=True)

    def queues(self, *, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        """List every queue whose name starts with `prefix`, in the order of their names."""
        return self._list("/v1/queues", {"prefix": prefix} if prefix else {})

    async def queue(self, queue: str) -> dict[str, Any]:
        """Describe a queue and what is in it; the answer also has the `etag` that a change can name.

        Raises:
            NotFound: `queue-not-found`.
        """
        answer = await self._send("GET", queue_path(queue))
        return {**members(answer), "etag": answer.headers.get("ETag", "")}

    async def update_queue(
        self, queue: str, patch: Mapping[str, Any], *, etag: str = "*"
    ) -> dict[str, Any]:
        """Change a queue's configuration by a merge patch, if its etag is still `etag`.

        The default `*` changes it whatever its etag is. It counts for what happens from then on.

        Raises:
            WrongOffset: `etag-mismatch`: somebody has changed it meanwhile.
        """
        answer = await self._send(
            "PATCH",
            queue_path(queue),
            content=orjson.dumps(patch),
            type_sent=_MERGE_PATCH,
            headers={"If-Match": etag},
        )
        return {**members(answer, changes=True), "etag": answer.headers.get("ETag", "")}

    async def delete_queue(self, queue: str, *, if_empty: bool = False) -> None:
        """Delete a queue with all that is in it, in flight too; its name is free at once.

        Raises:
            Exists: `queue-in-use`, dead letters of another queue go there; with `if_empty` also
                `queue-not-empty`.
        """
        query = {"if_empty": "true"} if if_empty else {}
        await self._send("DELETE", queue_path(queue), query)

    async def purge_queue(self, queue: str, *, state: Literal["all", "damaged"] = "all") -> int:
        """Remove all messages of a queue, in flight too, or the damaged ones; tells how many.

        It is not repeated where its outcome is unknown: new messages may have come meanwhile.
        """
        value = await self._send_json("POST", f"{queue_path(queue)}/purge", {"state": state})
        with understood(Outcome.UNKNOWN):
            return number_in(value, "purged")

    async def redrive(self, queue: str, *, limit: int = 1000, to: str | None = None) -> Redriven:
        """Publish dead letters anew, the oldest ready ones, each where it was before it came here.

        With `to` all go to that queue. At most `limit` are moved; ask again until none was. Without
        `to`, messages that came from no other queue stay, and count as `left`.

        Raises:
            NotFound: `queue-not-found`, and which.
        """
        asked: dict[str, Any] = {"limit": limit}
        if to is not None:
            asked["to"] = check_queue(to)
        value = await self._send_json("POST", f"{queue_path(queue)}/redrive", asked)
        with understood(Outcome.UNKNOWN):
            return Redriven(number_in(value, "moved"), number_in(value, "left"))
