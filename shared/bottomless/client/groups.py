"""Calls about consumer groups: programs that share a stream, or the partitions of a super stream.

Streams and super streams share their names. Which of them has a name is found out by asking: first for
a stream, so that nobody who shares a stream pays for the question.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import orjson

from bottomless.client.address import check_reference, group_path, groups_path, member_path
from bottomless.client.encoding import JSON
from bottomless.client.wire import Wire, members
from bottomless.errors import Code, NotFound

T = TypeVar("T")


class GroupCalls(Wire):
    """The calls of `openapi/manifest.yaml` about consumer groups.

    Each takes the name of a stream or of a super stream.
    """

    async def list_groups(
        self, name: str, *, unreadable: Callable[[dict[str, Any]], object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """List the consumer groups of a stream, in the order of their names.

        `unreadable` is called with the `group` and `code` of each that the server cannot read.
        """

        async def begun(super_stream: bool) -> tuple[AsyncIterator[dict[str, Any]], Any]:
            path = groups_path(name, super_stream=super_stream)
            items = self._list(path, unreadable=unreadable)
            return items, await anext(items, None)

        items, first = await of_either(begun)
        if first is not None:
            yield first
        async for item in items:
            yield item

    async def describe_group(self, name: str, group: str) -> dict[str, Any]:
        """Show a consumer group: its members, what each holds, and how far it has come.

        Raises:
            NotFound: `group-not-found`: nobody has joined a group of this name.
        """

        async def described(super_stream: bool) -> dict[str, Any]:
            path = group_path(name, group, super_stream=super_stream)
            return members(await self._send("GET", path))

        return await of_either(described)

    async def activate_member(
        self, name: str, group: str, member: str, *, partition: int = 0
    ) -> dict[str, Any]:
        """Have a stream, or one partition of a super stream, go to the member of this name, once its
        holder has released it.

        Raises:
            NotFound: `group-not-found`; `member-expired`: no member has this name.
        """
        value = {"partition": partition, "member": check_reference(member)}

        async def activated(super_stream: bool) -> dict[str, Any]:
            path = f"{group_path(name, group, super_stream=super_stream)}/activate"
            return await self._send_json("POST", path, value, repeatable=True)

        return await of_either(activated)

    async def delete_group(self, name: str, group: str) -> None:
        """Delete a consumer group that nobody is in; what it has stored stays.

        Raises:
            NotFound: `group-not-found`.
            WrongOffset: `group-not-empty`.
        """

        async def deleted(super_stream: bool) -> None:
            await self._send("DELETE", group_path(name, group, super_stream=super_stream))

        await of_either(deleted)

    async def join_group(
        self,
        name: str,
        group: str,
        member: str,
        *,
        lease_ms: int,
        strategy: str | None = None,
        super_stream: bool = False,
    ) -> dict[str, Any]:
        """Join a consumer group once; `group` of the client does all that a member has to do.

        Who has the name of a member takes its place, so the same again is safe. `super_stream` says
        that the name is that of a super stream.

        Raises:
            WrongOffset: `group-mismatch`.
            Overloaded: `quota-exceeded`.
        """
        value: dict[str, Any] = {"member": check_reference(member), "lease_ms": lease_ms}
        if strategy is not None:
            value["strategy"] = strategy
        path = f"{group_path(name, group, super_stream=super_stream)}/members"
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
        super_stream: bool = False,
    ) -> dict[str, Any]:
        """Send one heartbeat, which is not repeated; `holding` and `released` are generations by
        the number of the partition.

        Raises:
            NotFound: `member-expired`.
        """
        path = f"{member_path(name, group, member_id, super_stream=super_stream)}/heartbeat"
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

    async def leave_group(
        self, name: str, group: str, member_id: str, *, super_stream: bool = False
    ) -> None:
        """Leave a consumer group: what the member holds goes to others at once.

        Raises:
            NotFound: `member-expired`.
        """
        path = member_path(name, group, member_id, super_stream=super_stream)
        await self._send("DELETE", path, retry_seconds=2)


async def of_either(ask: Callable[[bool], Awaitable[T]]) -> T:
    """Ask about a stream, and where the server knows none of that name about a super stream.

    Raises:
        NotFound: neither is there, and what the stream's answer says.
    """
    try:
        return await ask(False)
    except NotFound as error:
        if error.code is not Code.STREAM_NOT_FOUND:
            raise
        try:
            return await ask(True)
        except NotFound as other:
            if other.code is not Code.STREAM_NOT_FOUND:
                raise
            raise error from None
