"""Calls that look after stored data: retention, trim, the manifest, operations, admin.

Most of them answer with an operation: work that was accepted and continues by itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from bottomless.client.address import (
    check_stream,
    drive_lost_path,
    drive_path,
    evacuation_path,
    gap_path,
    lease_path,
    operation_path,
    owner_path,
    replica_path,
    stream_path,
    takeover_path,
)
from bottomless.client.wire import Wire, members, number_in, understood
from bottomless.errors import Outcome, Unavailable
from bottomless.model.backoff import backoff

FINISHED: Final = frozenset({"succeeded", "failed"})
"""The states of an operation that are final."""

_POLL_SECONDS: Final = 0.05
_POLL_SECONDS_MAX: Final = 2.0


class UpkeepCalls(Wire):
    """The calls of `openapi/manifest.yaml` about stored records."""

    async def preview_retention(
        self, name: str, retention: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Show what retention would remove now, by the stream's or by another configuration."""
        value = {} if retention is None else {"retention": retention}
        return await self._send_json("POST", f"{stream_path(name)}/retention/preview", value)

    async def evaluate_retention(self, name: str) -> dict[str, Any]:
        """Remove now what the configuration does not keep; returns an operation."""
        return await self._send_json("POST", f"{stream_path(name)}/retention/evaluate", {})

    async def trim(
        self,
        name: str,
        before_offset: int,
        *,
        allow_empty: bool = False,
        stream_id: str | None = None,
    ) -> dict[str, Any]:
        """Remove whole fragments below `before_offset`; returns an operation."""
        value = {"before_offset": before_offset, "allow_empty": allow_empty}
        asked = value if stream_id is None else {**value, "expect_stream_id": stream_id}
        return await self._send_json("POST", f"{stream_path(name)}/trim", asked)

    async def manifest(
        self, name: str, *, depth: int = 1, group: str | None = None
    ) -> dict[str, Any]:
        """Show the root of a stream's tree, or one of its groups, with `depth` levels below it."""
        query: dict[str, int | str] = {"depth": depth}
        if group is not None:
            query["group"] = group
        return members(await self._send("GET", f"{stream_path(name)}/manifest", query))

    async def verify_manifest(self, name: str, *, checksums: bool = False) -> dict[str, Any]:
        """Compare the tree with the objects; returns an operation."""
        value = {"checksums": checksums}
        return await self._send_json("POST", f"{stream_path(name)}/manifest/verify", value)

    async def collect_garbage(
        self, *, dry_run: bool, minimum_age: str | None = None, stream: str | None = None
    ) -> dict[str, Any]:
        """Look for objects that nothing names, and delete them unless `dry_run`.

        Returns an operation.

        `minimum_age` is a duration such as `7d`: younger objects are left alone.
        """
        value: dict[str, Any] = {"dry_run": dry_run}
        if minimum_age is not None:
            value["minimum_age"] = minimum_age
        if stream is not None:
            value["stream"] = check_stream(stream)
        return await self._send_json("POST", "/v1/admin/gc", value)

    async def rebuild(self) -> dict[str, Any]:
        """Build coordination anew from the object store; returns an operation."""
        return await self._send_json("POST", "/v1/admin/rebuild", {})

    async def describe_wal(self) -> dict[str, Any]:
        """Show the writers that have WAL objects of leaderless streams, and what keeps the oldest."""
        return members(await self._send("GET", "/v1/admin/wal"))

    async def list_drives(self) -> list[dict[str, Any]]:
        """List the drives on which fragments may lie: `name`, `number` and `state` of each, by number."""
        items: list[dict[str, Any]] = members(await self._send("GET", "/v1/drives"))["items"]
        return items

    async def register_drive(self, drive: str) -> dict[str, Any]:
        """Register a drive that the settings of the servers name, so that it is used; tells what it is.

        Raises:
            InvalidRequest: `drive-unknown`, the settings name none such.
            Exists: `drive-in-use`, the store is another drive already.
        """
        return await self._send_json("POST", "/v1/admin/drives", {"name": drive})

    async def retire_drive(self, drive: str) -> dict[str, Any]:
        """Retire a drive on which nothing lies any more; returns an operation.

        It fails with `drive-in-use`, and says which stream uses the drive, if one does.

        Raises:
            InvalidRequest: `drive-unknown`, no drive of this name is registered.
        """
        return await self._send_json("DELETE", drive_path(drive))

    async def lose_drive(self, drive: str) -> dict[str, Any]:
        """Say that a drive will never be back; returns an operation, whose result says what was lost.

        What streams have on it becomes gaps, of which reads tell, and nothing waits for the drive any
        more. It cannot be undone.

        Raises:
            InvalidRequest: `drive-unknown`, no drive of this name is registered; or it is `default`,
                which is never given up.
            Exists: `drive-in-use`, the drive is there.
        """
        return await self._send_json("POST", drive_lost_path(drive), {"confirm": drive})

    async def queue_store(self) -> dict[str, Any]:
        """Show what lies on the disk of the node of queues that answers, which a proxy chooses."""
        return members(await self._send("GET", "/v1/admin/queue-store"))

    async def compact_queue_store(self) -> int:
        """Have message files with a gap compacted soon, on the node that answers; tells how many."""
        value = await self._send_json("POST", "/v1/admin/queue-store/compact", {})
        with understood(Outcome.UNKNOWN):
            return number_in(value, "scheduled")

    async def take_over_queues(self, tenant: str, *, expect_home: str) -> dict[str, Any]:
        """Make the node that answers the home of a tenant's queues; shows the home and its term.

        What only the lost home held is given up. `expect_home` is the id of the data directory that is given up. Queues are created anew.

        Raises:
            Fenced: `home-live`: the home has not been silent for long enough, or is another one.
        """
        value = {"tenant": tenant, "accept_loss": True, "expect_home": expect_home}
        return await self._send_json("POST", "/v1/admin/queues/takeover", value)

    async def take_over(
        self, name: str, *, expect_home: str, node: str | None = None
    ) -> dict[str, Any]:
        """Give up what only a lost home held; returns an operation.

        With `node` that member of a stream with replicas goes on with what it holds, without a gap.

        Raises:
            Fenced: `home-live`, or `in-sync-live`: the home lives, or a node that has everything;
                `not-in-sync`: the node is no member, does not live, or holds too little.
        """
        value: dict[str, Any] = {"accept_loss": True, "expect_home": expect_home}
        if node is not None:
            value["node"] = node
        return await self._send_json("POST", takeover_path(name), value)

    async def replicas(self, name: str) -> dict[str, Any]:
        """Show which nodes hold a stream, the owner first, and which of them have everything."""
        return members(await self._send("GET", f"{stream_path(name)}/replicas"))

    async def change_owner(self, name: str, node: str) -> dict[str, Any]:
        """Have another node own a stream that it holds; returns an operation.

        Raises:
            Fenced: `not-in-sync`: the node does not have everything, or does not live.
        """
        return await self._send_json("POST", owner_path(name), {"node": node})

    async def add_replica(self, name: str, node: str) -> dict[str, Any]:
        """Have another node hold a stream; returns an operation, which ends when it has everything.

        `replicas` of the configuration becomes at least the number of nodes that hold the stream.

        Raises:
            Fenced: `not-in-sync`: the node does not live.
            InvalidRequest: 9 nodes hold it already, or it has no replicas.
        """
        return await self._send_json("PUT", replica_path(name, node), repeatable=True)

    async def remove_replica(self, name: str, node: str) -> dict[str, Any]:
        """Have a node hold a stream no more; returns an operation.

        `replicas` of the configuration becomes the number of nodes that are left.

        Raises:
            Fenced: `home-live`: the node is the owner.
        """
        return await self._send_json("DELETE", replica_path(name, node))

    async def list_nodes(self) -> list[dict[str, Any]]:
        """List the ingest nodes: `node`, `url`, `zone`, `release`, `state` and `left` of each."""
        items: list[dict[str, Any]] = members(await self._send("GET", "/v1/nodes"))["items"]
        return items

    async def evacuate_node(self, node: str) -> dict[str, Any]:
        """Have other nodes hold all that a node holds of streams with replicas; returns an operation.

        Nothing is put on the node any more until it stops.

        Raises:
            NotFound: there is no such node.
        """
        return await self._send_json("POST", evacuation_path(node), {})

    async def rebalance_nodes(self) -> dict[str, Any]:
        """Spread the streams with replicas over the nodes that live, each by one step; returns an operation."""
        return await self._send_json("POST", "/v1/admin/rebalance", {})

    async def accept_gap(self, name: str, next_offset: int) -> dict[str, Any]:
        """Give up the offsets before `next_offset`, where the owner's log begins.

        Returns an operation.
        """
        value = {"accept_loss": True, "next_offset": next_offset}
        return await self._send_json("POST", gap_path(name), value)

    async def take_lease(
        self,
        name: str,
        first_offset: int,
        *,
        next_offset: int | None = None,
        ttl_seconds: int | None = None,
        holder: str = "",
    ) -> dict[str, Any]:
        """Protect a range from deletion until the lease expires; returns its id and its end.

        The range ends before `next_offset`.

        Raises:
            OffsetGone: `range-condemned`: some of it may be deleted already.
        """
        value: dict[str, Any] = {"first_offset": first_offset, "holder": holder}
        given = {"next_offset": next_offset, "ttl_seconds": ttl_seconds}
        value |= {member: number for member, number in given.items() if number is not None}
        return await self._send_json("POST", f"{stream_path(name)}/leases", value)

    async def renew_lease(
        self, name: str, lease_id: str, *, ttl_seconds: int | None = None
    ) -> dict[str, Any]:
        """Let a lease expire later.

        Raises:
            NotFound: `lease-not-found`: it has expired already.
        """
        value = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
        return await self._send_json("PUT", lease_path(name, lease_id), value, repeatable=True)

    async def return_lease(self, name: str, lease_id: str) -> None:
        """End a lease; what it protected may be deleted."""
        await self._send("DELETE", lease_path(name, lease_id))

    def list_operations(self, *, state: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """List the operations of the tenant, the newest first, also finished ones during seven days.

        `state` leaves out those in another one of `pending`, `running`, `succeeded` and `failed`. What an
        operation has done so far, and its result, `operation` shows.
        """
        return self._list("/v1/operations", {} if state is None else {"state": state})

    async def operation(self, operation_id: str) -> dict[str, Any]:
        """Show the state of an operation."""
        return members(await self._send("GET", operation_path(operation_id)))

    async def wait_for_operation(
        self, operation_id: str, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Wait until an operation is finished, and return it, succeeded or failed.

        Raises:
            Unavailable: it is not finished within `timeout_seconds`; it continues all the same.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        looks = 0
        while True:
            operation = await self.operation(operation_id)
            if operation["state"] in FINISHED:
                return operation
            pause = backoff(looks, _POLL_SECONDS, _POLL_SECONDS_MAX)
            if deadline is not None and time.monotonic() + pause > deadline:
                raise Unavailable(
                    "the operation is not finished yet",
                    facts={"operation_id": operation_id, "state": operation["state"]},
                )
            await asyncio.sleep(pause)
            looks += 1
