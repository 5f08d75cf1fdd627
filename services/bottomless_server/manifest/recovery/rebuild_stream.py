"""Find one stream in the bucket, and give it a root of the new generation: the I/O of a rebuild.

What is decided from what is found stands in `tree/core/rebuild_decision.py`. Nothing is deleted here, and no
object is changed: fragments, groups and a root are put under new uids. After a crash at any moment they
are objects that no record names; the next rebuild ignores them, and puts the root into the delete queue.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.consumers import ConsumersSnapshot, decode_snapshot
from bottomless.formats.keys import (
    FragmentPlace,
    fragment_place,
    group_key,
    parse_consumers_key,
    parse_fragment_key,
    parse_root_key,
    root_key,
    root_prefix,
    stream_prefix,
)
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import Node
from bottomless.model.names import Uid, parse_uid
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.other_drives import drives_of
from bottomless_server.manifest.recovery.adopted_copies import copy_run
from bottomless_server.manifest.recovery.root_search import STRAY_COUNT_MAX, Run, find_root
from bottomless_server.manifest.recovery.wal_end import restored_end, with_run
from bottomless_server.manifest.recovery.wal_producers import find_known
from bottomless_server.manifest.recovery.wal_scan import FoundWal
from bottomless_server.manifest.tree.core import rebuild_decision
from bottomless_server.manifest.tree.core.delete_queue import parse_delete_target
from bottomless_server.manifest.tree.core.events import PutGroup, PutRoot
from bottomless_server.manifest.tree.core.planning import plan_publish
from bottomless_server.manifest.tree.resolver import empty_root
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.read_again import read_again
from bottomless_server.stores.rebuild_step import RebuildStep

log = structlog.get_logger(__name__)


_NOBODY: Final[Mapping[KnownName, NewKnown]] = {}


class RebuiltStream(NamedTuple):
    """A stream as the bucket shows it, and what a rebuild made of it."""

    record: StreamRecord
    fragment_count: int
    """Fragments that were in the bucket and in no manifest, and are in it now."""
    to_delete: tuple[str, ...]
    """Keys of roots that nobody can vouch for: they go into the delete queue."""
    readable: bool = True
    """Whether its manifest was found; if not, nothing of it is deleted."""
    known: Mapping[KnownName, NewKnown] = _NOBODY
    """What a leaderless stream knows of producers and keys."""
    damaged: bool = False
    """Whether part of what was published is missing; then nothing of it is deleted either."""
    strays: tuple[FragmentPlace, ...] = ()
    """Fragments that nobody can vouch for: they go into the delete queues of their drives."""


async def find_consumers(
    drive: Drive, record: StreamRecord
) -> tuple[ConsumersSnapshot, Uid] | None:
    """The newest sound snapshot of consumers' offsets.

    Raises:
        DriveUnavailable, DriveRefused
    """
    prefix = f"{stream_prefix(record.stream_id, record.tenant)}metadata/consumers."
    keys = [facts.object_key async for facts in drive.list(prefix)]
    for object_key in sorted(keys, key=lambda key: parse_consumers_key(key) or 0, reverse=True):
        if parse_consumers_key(object_key) is None:
            continue
        try:
            snapshot = await read_again(partial(_snapshot, drive, object_key))
        except (ObjectMissing, Corrupt):
            log.exception("a snapshot of consumers cannot be read", object_key=object_key)
            continue
        if snapshot.stream_id == record.stream_id:
            return snapshot, parse_uid(object_key.split(".")[-2])
    return None


async def _snapshot(drive: Drive, object_key: str) -> ConsumersSnapshot:
    return decode_snapshot(bytes(await drive.get(object_key)))


async def rebuild_stream(
    context: Context, registry: StreamRecord, step: RebuildStep, wal: FoundWal
) -> RebuiltStream:
    """Find a stream's manifest, extend it, and put it as a root of the rebuild's generation.

    `wal` is what the WAL objects say; of a local stream they say nothing.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
        Unavailable: the step is not what goes on.
    """
    generation = step.generation
    if not registry.config.leaderless:
        # What nobody can read says nothing of it.
        wal = FoundWal()
    drive, prefix = context.drive, stream_prefix(registry.stream_id, registry.tenant)
    listing = drive.list(root_prefix(registry.stream_id, registry.tenant))
    keys = [key async for facts in listing if (key := parse_root_key(facts.object_key))]
    ranked = rebuild_decision.rank_roots(keys, generation - 1)
    best, run, damaged, unseen = await find_root(context, registry, ranked.candidates)
    await step.check(context.coordination)
    root = None if best is None else best.root
    before = replace(rebuild_decision.record_before(registry, root, generation), unseen=unseen)
    if root is None:
        # One run from 0 with nothing left over is the whole stream; anything else is a part of it.
        # A rebuild that died before it put the root has left copies of the run: they are no part.
        lost = ranked.candidates[0] if ranked.candidates else None
        missing = lost is not None or await _has_groups(drive, prefix)
        # What an attempt of before has made of WAL objects is made once more.
        unlike = [one for one in run.unlike if not _is_noted(wal, registry, one.object_key)]
        if unlike or (missing and not run.fragments):
            noted_next = wal.noted_next(registry.stream_id)
            known_next = await _known_next(context, registry, run, noted_next)
            record = rebuild_decision.record_without_root(before, lost, known_next)
            log.critical(
                "the manifest of a stream is missing",
                stream_id=record.stream_id,
                left_over_count=len(unlike),
                left_over=[one.object_key for one in unlike[:10]],
            )
            return RebuiltStream(record, 0, (), readable=False)
        if not run.fragments and not wal.has(registry.stream_id):
            return RebuiltStream(before, 0, ())
    adopted = await copy_run(context, before, run.fragments)
    grown = with_run(root or empty_root(before), adopted)
    count = len(adopted)
    if wal.has(registry.stream_id):
        grown, made, lost_some = await restored_end(context, before, grown, wal)
        count, damaged = count + made, damaged or lost_some
    known = _NOBODY
    if before.config.leaderless:
        known = await find_known(context, before, grown)
    record = await _put_root(context, before, grown)
    if best is None or damaged:
        # Nobody can tell what is needed to mend it. Garbage collection comes, a day later.
        return RebuiltStream(record, count, (), damaged=damaged, known=known)
    worse = ranked.candidates[ranked.candidates.index(best.key) :]
    old_roots = [
        root_key(record.stream_id, *key, tenant=record.tenant) for key in (*ranked.others, *worse)
    ]
    copied = {one.uid for one in run.fragments} - {one.uid for one in adopted}
    originals = [
        fragment_place(record.stream_id, one, record.tenant)
        for one in run.fragments
        if one.uid in copied
    ]
    to_delete = tuple(old_roots)[:STRAY_COUNT_MAX]
    # What is a stray now may continue what lies on a drive that was not seen.
    others = () if unseen else run.strays
    strays = (*originals, *others)[: STRAY_COUNT_MAX - len(to_delete)]
    return RebuiltStream(record, count, to_delete, known=known, strays=strays)


async def _known_next(context: Context, registry: StreamRecord, run: Run, noted_next: int) -> int:
    """After the last offset that anything speaks of, by the keys of what nobody can put together."""
    prefix = stream_prefix(registry.stream_id, registry.tenant)
    known_next = max([noted_next, *(one.next_offset for one in run.fragments)])
    places = [(number, "data/") for number in await drives_of(context, registry)]
    for number, place in (*places, (DEFAULT_NUMBER, "metadata/")):
        async for facts in context.drives.of(number).list(f"{prefix}{place}"):
            target = parse_delete_target(facts.object_key.encode("ascii"), number)
            if target is not None and target.first_offset is not None:
                known_next = max(known_next, target.first_offset)
    return known_next


def _is_noted(wal: FoundWal, record: StreamRecord, object_key: str) -> bool:
    key = parse_fragment_key(object_key)
    return key is not None and wal.covers(record.stream_id, key.first_offset)


async def _has_groups(drive: Drive, prefix: str) -> bool:
    async for facts in drive.list(f"{prefix}metadata/"):
        target = parse_delete_target(facts.object_key.encode("ascii"))
        return target is not None and target.height > 0
    return False


async def _put_root(context: Context, before: StreamRecord, root: Node) -> StreamRecord:
    """Put the stream's root of the new generation; returns the record that names it."""
    settings = context.settings
    plan = plan_publish(before, root, (), None, settings.manifest_fanout, context.new_uid)
    for action in plan.actions:
        if not isinstance(action, PutGroup | PutRoot):
            continue
        sealed = action.group if isinstance(action, PutGroup) else action.root
        await put_object(
            context.drive,
            _key_of(action, before),
            [sealed.data],
            sealed.crc,
            deadline_seconds=settings.manifest_put_seconds,
        )
    return rebuild_decision.record_after(before, plan.publish.pointer, plan.root)


def _key_of(put: PutGroup | PutRoot, record: StreamRecord) -> str:
    if isinstance(put, PutGroup):
        node = put.group.node
        return group_key(node.stream_id, node.first_offset, node.uid, node.height, record.tenant)
    node = put.root.node
    named = (node.generation, node.epoch, node.version, node.uid)
    return root_key(node.stream_id, *named, tenant=record.tenant)
