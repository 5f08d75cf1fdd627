"""The manifest of a stream for people to look at, and its verification.

Contract: openapi/manifest.yaml.
"""

import re
from typing import Any, Final

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt, InvalidRequest, NotFound
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.manifest import EntryKind, GapReason, Node, fragment_info
from bottomless.model.names import FullName, Uid, uid_from_bytes
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import StreamRecord
from bottomless_server.core.preconditions import matches
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import path_to
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.streams.tier_description import drive_names
from bottomless_server.manifest.streams.verify import VERIFY
from bottomless_server.manifest.tree.reachability import load_group
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.runtime.http.app import (
    header,
    integer,
    json_response,
    negotiate,
    parse_query,
)
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.tree.retention import UNKNOWN_TIME

ENTRY_COUNT_MAX: Final = 10_000
"""The most entries of one answer. A node is always whole; its groups are opened while there is room."""
_DEPTH_MAX: Final = 8
_GROUP: Final = re.compile(r"([0-9]{20})-([0-9a-f]{32})", re.ASCII)


class _Verify(ClosedBody):
    checksums: bool = False
    """Whether all bytes of all fragments are read."""


def add_tree_routes(
    api: FastAPI, context: Context, registry: Registry, operations: Operations
) -> None:
    async def get(request: Request) -> Response:
        query = parse_query(request.scope, {"depth": integer(1, _DEPTH_MAX), "group": _group})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        name = full_name_of(request.scope, request.path_params["s"])
        record, root = await load_root(context, await registry.find(name))
        headers = {
            "etag": f'"{record.stream_id}.m{root.version}"',
            "stream-id": record.stream_id,
            "cache-control": "no-cache",
        }
        if matches(header(request.scope, b"if-none-match"), headers["etag"]):
            return Response(status_code=304, headers=headers)
        view = _View(context, record, name, root)
        return json_response(await view.of(query.get("depth", 1), query.get("group")), 200, headers)

    async def verify(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        record = await registry.find(full_name_of(request.scope, request.path_params["s"]))
        asked = await read_closed_body(request, _Verify, optional=True)
        operation = await operations.begin_for(
            record, VERIFY, arguments={"checksums": asked.checksums}
        )
        return accepted(operation)

    api.add_api_route("/v1/streams/{s}/manifest", get, methods=["GET"])
    api.add_api_route("/v1/streams/{s}/manifest/verify", verify, methods=["POST"])


class _View:
    """One answer about one committed root."""

    def __init__(self, context: Context, record: StreamRecord, name: FullName, root: Node) -> None:
        self._drive = context.drive
        self._drives = drive_names(context, record)
        self._record = record
        self._name = name.name
        self._root = root
        self._room = ENTRY_COUNT_MAX

    async def of(self, depth: int, group: tuple[int, Uid] | None) -> dict[str, Any]:
        """The answer for the root or a group, with the groups below it to a depth.

        Raises:
            NotFound: the manifest does not lead to this group.
            Unavailable, Corrupt
        """
        pointer, node = self._record.root, self._root
        size = 0 if pointer is None else pointer.size
        if group is not None:
            node, size = await self._find(*group)
        entries = await self._entries(node, depth)
        return {
            "stream_id": self._record.stream_id,
            "version": self._root.version,
            "epoch": self._root.epoch,
            "generation": self._root.generation,
            "uid": node.uid if pointer is not None else None,
            "height": node.height,
            "first_offset": node.first_offset,
            "next_offset": node.next_offset,
            "size_bytes": size,
            "entries": entries,
        }

    async def _find(self, first_offset: int, uid: Uid) -> tuple[Node, int]:
        offset = max(first_offset, self._root.first_offset)
        try:
            path = await path_to(self._drive, self._record.tenant, self._root, offset)
            for entry in path:
                same = uid_from_bytes(entry["uid"].tobytes()) == uid
                if same and entry["kind"] == EntryKind.GROUP:
                    return await self._load(entry), int(entry["object_size"])
        except ObjectMissing as error:
            raise _missing() from error
        raise NotFound("the manifest does not lead to such a group", code=Code.NOT_FOUND)

    async def _load(self, entry: np.void) -> Node:
        try:
            return await load_group(self._drive, self._record.tenant, self._root, entry)
        except ObjectMissing as error:
            raise _missing() from error

    async def _entries(self, node: Node, depth: int) -> list[dict[str, Any]]:
        """The entries of a node, and of the groups in it while depth and room last."""
        # What lies below the floor in a group is not part of the manifest any more.
        live = node.entries[node.entries["next_offset"] > np.uint64(self._root.first_offset)]
        self._room -= len(live)
        shown = []
        for entry in live:
            item = self._item(entry)
            # Its number of entries is bounded by its size.
            opens = depth > 1 and entry["kind"] == EntryKind.GROUP
            if opens and int(entry["object_size"]) // entry.nbytes <= self._room:
                item["entries"] = await self._entries(await self._load(entry), depth - 1)
            shown.append(item)
        return shown

    def _item(self, entry: np.void) -> dict[str, Any]:
        first, end = int(entry["first_offset"]), int(entry["next_offset"])
        item = {"first_offset": first, "last_offset": end - 1}
        if entry["kind"] == EntryKind.GAP:
            reason = GapReason(int(entry["reason"])).name.lower().replace("_", "-")
            return {"kind": "gap", "reason": reason, **item}
        item |= {"records": int(entry["record_count"]), "bytes": int(entry["byte_size"])}
        times = {
            "first_timestamp": _shown(int(entry["first_timestamp"])),
            "last_timestamp": _shown(int(entry["last_timestamp"])),
        }
        drive = int(entry["drive"])
        where = {"drive": self._drives.name(drive), "tier": self._drives.tier(drive)}
        if entry["kind"] == EntryKind.FRAGMENT:
            info = fragment_info(entry)
            path = f"/v1/streams/{self._name}/fragments/{info.fragment_id}"
            return {
                "kind": "fragment",
                "id": info.fragment_id,
                **item,
                **times,
                **where,
                "epoch": info.epoch,
                "crc32c": f"{info.crc:08x}",
                "href": path,
            }
        group_id = f"{first:020d}-{uid_from_bytes(entry['uid'].tobytes())}"
        return {
            "kind": "group",
            "id": group_id,
            "height": int(entry["height"]),
            **item,
            "fragments": int(entry["fragment_count"]),
            **times,
            **where,
            "size_bytes": int(entry["object_size"]),
            "children_url": f"/v1/streams/{self._name}/manifest?group={group_id}",
        }


def _shown(timestamp: int) -> str | None:
    return None if timestamp == UNKNOWN_TIME else format_timestamp(timestamp)


def _group(value: str) -> tuple[int, Uid]:
    """Height and uid of a group, from its id in a query.

    Raises:
        InvalidRequest
    """
    match = _GROUP.fullmatch(value)
    if match is None or int(match[1]) > OFFSET_MAX:
        raise InvalidRequest("must be the id of a group, as an entry shows it")
    return int(match[1]), Uid(match[2])


def _missing() -> Corrupt:
    return Corrupt("a group of the manifest is missing", code=Code.DATA_MISSING)
