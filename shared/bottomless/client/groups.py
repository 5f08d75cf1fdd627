"""Calls about consumer groups: programs that share a stream."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from bottomless.client.address import check_reference, group_path, member_path, stream_path
from bottomless.client.encoding import JSON
from bottomless.client.wire import Wire, members


class GroupCalls(Wire):
    """The calls of `openapi/manifest.yaml` about consumer groups."""

    def list_groups(
        self, name: str, *, unreadable: Callable[[dict[str, Any]], object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List the consumer groups of a stream, in the order of their names.

        `unreadable` is called with the `group` and `code` of each that the server cannot read.
        """
        return self._list(f"{stream_path(name)}/groups", unreadable=unreadable)

    async def describe_group(self, name: str, group: str) -> dict[str, Any]:
        """Show a consumer group: its members, what each holds, and how far it has come.

        Raises:
            NotFound: `group-not-found`: nobody has joined a group of this name.
        """
        return members(await self._send("GET", group_path(name, group)))

    async def activate_member(
        self, name: str, group: str, member: str, *, partition: int = 0
    ) -> dict[str, Any]:
        """Have a stream go to the member of this name, once its holder has released it.

        Raises:
            NotFound: `group-not-found`; `member-expired`: no member has this name.
        """
        value = {"partition": partition, "member": check_reference(member)}
        path = f"{group_path(name, group)}/activate"
        return await self._send_json("POST", path, value, repeatable=True)

    async def delete_group(self, name: str, group: str) -> None:
        """Delete a consumer group that nobody is in; what it has stored stays.

        Raises:
            NotFound: `group-not-found`.
            WrongOffset: `group-not-empty`.
        """
        await self._send("DELETE", group_path(name, group))

    async def join_group(
        self, name: str, group: str, member: str, *, lease_ms: int, strategy: str | None = None
    ) -> dict[str, Any]:
        """Join a consumer group once; `group` of the client does all that a member has to do.

        Who has the name of a member takes its place, so the same again is safe.

        Raises:
            WrongOffset: `group-mismatch`.
            Overloaded: `quota-exceeded`.
        """
        value: dict[str, Any] = {"member": check_reference(member), "lease_ms": lease_ms}
        if strategy is not None:
            value["strategy"] = strategy
        path = f"{group_path(name, group)}/members"
        return await self._send_json("POST", path, value, repeatable=True)

    async def send_heartbeat(
        self,
        name: str,
        group: str,
        member_id: str,
        *,
        holding: Mapping[int, int],
        released: Mapping[int, int],
        wait_ms: int = 0,
    ) -> dict[str, Any]:
        """Send one heartbeat, which is not repeated; `holding` and `released` are generations by
        the number of the partition.

        Raises:
            NotFound: `member-expired`.
        """
        path = f"{member_path(name, group, member_id)}/heartbeat"
        value = {
            "holding": {str(number): generation for number, generation in holding.items()},
            "released": {str(number): generation for number, generation in released.items()},
        }
        answer = await self._send(
            "POST",
            path,
            {"wait_ms": wait_ms},
            content=orjson.dumps(value),
            type_sent=JSON,
            retry_seconds=0,
        )
        return members(answer, changes=True)

    async def leave_group(self, name: str, group: str, member_id: str) -> None:
        """Leave a consumer group: what the member holds goes to others at once.

        Raises:
            NotFound: `member-expired`.
        """
        await self._send("DELETE", member_path(name, group, member_id), retry_seconds=2)
