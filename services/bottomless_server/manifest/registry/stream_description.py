"""Describe streams as JSON: for the public, and for other services. Pure."""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from bottomless.formats.stream_record import LEADERLESS, REPLICAS
from bottomless.model.config import RetentionConfig, StreamConfig, encode_config
from bottomless.model.manifest import Node
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.protocol.registry import RootState


class ShownTail(NamedTuple):
    """The tail of a leaderless stream, and its oldest entry if it has one."""

    tail: Tail
    oldest: TailEntry | None


class Shown(NamedTuple):
    """What this server says of every stream."""

    default: RetentionConfig
    """Its own retention."""
    served: AbstractSet[str]
    """Features of streams that it serves. Members that only another one can have are left out."""


def describe(
    record: StreamRecord,
    root: Node,
    committed_next: int | None,
    shown: Shown,
    tail: ShownTail | None = None,
) -> dict[str, Any]:
    """The answer of PUT and GET on a stream; `tail` is None of a local one.

    `committed_next` is None where nobody knows it now: then `committed` and `next` are null.
    `committed` is also null of a stream that never had a record.
    """
    entries = root.entries
    return {
        "name": record.name,
        "stream_id": record.stream_id,
        "state": record.state.value,
        "created_at": format_timestamp(record.created_at),
        "config_version": record.config_version,
        **describe_replication(record.config, shown),
        **describe_config(record.config, shown),
        "offsets": {
            "first": root.first_offset,
            "committed": committed_next - 1 if committed_next else None,
            "next": committed_next,
        },
        "size_bytes": int(entries["byte_size"].sum()),
        "fragment_count": int(entries["fragment_count"].sum()),
        **({"tail": _describe_tail(tail)} if LEADERLESS in shown.served else {}),
    }


def _describe_tail(shown: ShownTail | None) -> dict[str, Any] | None:
    if shown is None:
        return None
    tail, oldest = shown
    return {
        "entries": tail.entry_count,
        "bytes": tail.size,
        "first_offset": tail.pruned_next,
        "oldest_timestamp": None if oldest is None else format_timestamp(oldest.timestamp),
    }


def describe_item(record: StreamRecord, shown: Shown) -> dict[str, Any]:
    """One stream of a list: what its record says, and nothing that others would have to be asked."""
    return {
        "name": record.name,
        "stream_id": record.stream_id,
        "state": record.state.value,
        "created_at": format_timestamp(record.created_at),
        "config_version": record.config_version,
        "etag": etag(record),
        **describe_replication(record.config, shown),
        **describe_config(record.config, shown),
    }


def describe_replication(config: StreamConfig, shown: Shown) -> dict[str, Any]:
    """How many nodes hold a stream, also where it is one, so that who changed it sees what it is now."""
    if config.leaderless or REPLICAS not in shown.served:
        return {}
    return {"replication": config.replication.model_dump(mode="json")}


def describe_config(config: StreamConfig, shown: Shown) -> dict[str, Any]:
    """A configuration with what follows from it; limits that nobody has set are null."""
    own = config.retention
    limited = own.max_age is not None or own.max_bytes is not None
    retention = own.with_default(shown.default)
    members = encode_config(config)
    if LEADERLESS in shown.served:
        members |= {"profile": config.profile, "fenced": config.fenced}
    return {
        **members,
        "retention": {
            "max_age": retention.max_age,
            "max_age_seconds": retention.age_limit_seconds,
            "max_bytes": retention.max_bytes,
            "source": "stream" if limited else "default",
        },
    }


def known_committed_next(record: StreamRecord) -> int | None:
    """Where the stream ends, as far as the record alone proves it.

    A stream that is not dirty has nothing beyond what is published: its owner says so in
    the record before it takes the first record beyond. Of a leaderless stream the record proves
    nothing, since appends change its tail alone.
    """
    return None if record.dirty or record.config.leaderless else record.published_next


def root_state(record: StreamRecord, root: Node) -> RootState:
    """Describe the root of a stream to other services."""
    return RootState(
        version=record.version,
        epoch=record.epoch,
        published_next=record.published_next,
        first_offset=root.first_offset,
        root=record.root,
        last_timestamp=record.last_timestamp,
    )


def etag(record: StreamRecord) -> str:
    return f'"{record.stream_id}.c{record.config_version}"'


def root_etag(record: StreamRecord) -> str:
    return f'"v{record.version}"'
