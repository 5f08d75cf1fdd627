"""Tell an operator which WAL objects there are, and what keeps the oldest of each instance.

Objects are counted by a listing of the bucket; records and what is held are those of coordination. The
parts are read one after the other, so they may be of different moments. Nothing is changed.
"""

from typing import Any, Final, NamedTuple

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key
from bottomless.model.names import StreamId, Uid
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import shard_of
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores import wal

INSTANCE_COUNT_MAX: Final = 1_000
"""Instances that one answer describes; it counts all of them."""
_STREAM_COUNT_MAX: Final = 10
"""Streams that are named of those that may keep an object."""


class _Objects(NamedTuple):
    """The objects of one instance."""

    object_count: int = 0
    size: int = 0
    oldest: int | None = None
    """When the first of them was put, in ms since 1970, by the store's clock."""


async def describe_wal(context: Context) -> dict[str, Any]:
    """Describe all instances and their objects.

    Raises:
        Unavailable: not now.
        DriveUnavailable, DriveRefused
    """
    found = await wal.load_instances(context.coordination)
    objects = await _objects(context)
    instances = sorted({*found, *objects})
    return {
        "instance_count": len(instances),
        "objects": sum(one.object_count for one in objects.values()),
        "bytes": sum(one.size for one in objects.values()),
        "instances": [
            await _described(context, instance, found.get(instance), objects.get(instance))
            for instance in instances[:INSTANCE_COUNT_MAX]
        ],
    }


async def _objects(context: Context) -> dict[Uid, _Objects]:
    found: dict[Uid, _Objects] = {}
    async for facts in context.drive.list(WAL_PREFIX):
        key = parse_wal_key(facts.object_key)
        if key is None:
            continue
        count, size, oldest = found.get(key.instance, _Objects())
        oldest = facts.modified if oldest is None else min(oldest, facts.modified)
        found[key.instance] = _Objects(count + 1, size + facts.size, oldest)
    return found


async def _described(
    context: Context,
    instance: Uid,
    record: WalInstance | Corrupt | None,
    objects: _Objects | None,
) -> dict[str, Any]:
    count, size, oldest = objects or _Objects()
    told: dict[str, Any] = {
        "instance": instance,
        "state": "forgotten" if record is None else "unreadable",
        "objects": count,
        "bytes": size,
        "oldest_at": None if oldest is None else format_timestamp(oldest),
    }
    if not isinstance(record, WalInstance):
        return told
    lives = await context.coordination.get(wal.live_key(instance)) is not None
    return {
        **told,
        "state": "live" if lives else "dead",
        "url": record.url,
        "deleted": record.deleted,
        "settled": record.settled,
        "reserved": record.reserved,
        "keep_until": format_timestamp(record.keep_until) if record.keep_until else None,
        "held": await _oldest_held(context, instance),
    }


async def _oldest_held(context: Context, instance: Uid) -> dict[str, Any] | None:
    """What keeps the oldest object that is still needed; None where nothing is held."""
    shards: set[int] = set()
    sequence: int | None = None
    async for held, _ in wal.each_held(context.coordination, instance):
        if sequence is not None and held.sequence != sequence:
            break
        sequence = held.sequence
        shards.add(held.shard)
    if sequence is None:
        return None
    streams = await _streams(context, instance, sequence)
    kept = [stream_id for stream_id in streams if shard_of(stream_id) in shards]
    return {
        "sequence": sequence,
        "shards": sorted(shards),
        "stream_count": len(kept),
        "stream_ids": kept[:_STREAM_COUNT_MAX],
    }


async def _streams(context: Context, instance: Uid, sequence: int) -> list[StreamId]:
    try:
        return (await wal.load_directory(context.drive, instance, sequence)).stream_ids()
    except (Corrupt, ObjectMissing):
        return []
