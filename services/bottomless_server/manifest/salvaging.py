"""Find one stream in the bucket, and give it a root of the new generation: the I/O of a rebuild.

What is decided from what is found stands in `core/salvage.py`. Nothing is deleted here, and no
object is changed: groups and a root are put under new uids. After a crash at any moment they
are objects that no record names; the next rebuild ignores them, and dooms the root.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.consumers import ConsumersSnapshot, decode_snapshot
from bottomless.formats.keys import (
    RootKey,
    fragment_key,
    group_key,
    parse_consumers_key,
    parse_fragment_key,
    parse_registry_key,
    parse_root_key,
    root_key,
    root_prefix,
    stream_prefix,
)
from bottomless.formats.manifest import decode_node
from bottomless.formats.stream_record import decode_registry
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import TIMESTAMP_MIN
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import Uid, parse_uid
from bottomless.model.stream import Intent, StreamRecord
from bottomless.stores.objects import put_object
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.core import salvage
from bottomless_server.manifest.core.doomed import parse_doomed
from bottomless_server.manifest.core.events import PutGroup, PutRoot
from bottomless_server.manifest.core.planning import make_plan
from bottomless_server.manifest.resolver import empty_root, look_under

log = structlog.get_logger(__name__)

_STRAY_COUNT_MAX: Final = 10_000
"""Objects of unknown standing that are doomed at once; garbage collection finds the others."""


class Salvaged(NamedTuple):
    """A stream as the bucket shows it."""

    record: StreamRecord
    readable: bool
    """Whether its manifest was found; if not, nothing of it is doomed."""
    fragment_count: int
    """Fragments that were in the bucket and in no manifest, and are in it now."""
    doomed: tuple[str, ...]
    """Keys of objects of unknown standing."""


class _Run(NamedTuple):
    fragments: tuple[FragmentInfo, ...]
    strays: tuple[str, ...]


async def find_registry(drive: Drive, prefix: str) -> StreamRecord | None:
    """What the newest sound registry object below a prefix says; None if there is none.

    Raises:
        DriveUnavailable, DriveRefused
    """
    keys = [facts.object_key async for facts in drive.list(f"{prefix}stream.")]
    for object_key in sorted(keys, key=lambda key: parse_registry_key(key) or 0, reverse=True):
        version = parse_registry_key(object_key)
        try:
            record = decode_registry(await drive.get(object_key))
        except (ObjectMissing, Corrupt):
            log.exception("a registry object cannot be read", object_key=object_key)
            continue
        mine = stream_prefix(record.stream_id, record.tenant) == prefix
        if mine and record.registry_version == version:
            return record
        log.error("a registry object is not what its key says", object_key=object_key)
    return None


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
            snapshot = decode_snapshot(await drive.get(object_key))
        except (ObjectMissing, Corrupt):
            log.exception("a snapshot of consumers cannot be read", object_key=object_key)
            continue
        if snapshot.stream_id == record.stream_id:
            return snapshot, parse_uid(object_key.split(".")[-2])
    return None


async def salvage_stream(context: Context, registry: StreamRecord, generation: int) -> Salvaged:
    """Find a stream's manifest, extend it, and put it as a root of `generation`.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
    """
    drive, prefix = context.drive, stream_prefix(registry.stream_id, registry.tenant)
    listing = drive.list(root_prefix(registry.stream_id, registry.tenant))
    keys = [key async for facts in listing if (key := parse_root_key(facts.object_key))]
    ranked = salvage.rank_roots(keys, generation - 1)
    version = max((key.version for key in keys), default=0)
    found = await _best_root(drive, registry, ranked.candidates)
    root = None if found is None else found[1]
    before = salvage.record_before(registry, root, version, generation)
    end = salvage.End(0, 0, TIMESTAMP_MIN) if root is None else salvage.End.of(root)
    run = await _run_from(context, before, prefix, end)
    if root is None:
        # One run from 0 with nothing left over is the whole stream; anything else is a part of it.
        lost = ranked.candidates[0] if ranked.candidates else None
        missing = lost is not None or await _has_groups(drive, prefix)
        if run.strays or (missing and not run.fragments):
            record = salvage.record_without_root(before, lost)
            log.critical(
                "the manifest of a stream is missing",
                stream_id=record.stream_id,
                left_over_count=len(run.strays),
                left_over=run.strays[:10],
            )
            return Salvaged(record, False, 0, ())
        if not run.fragments:
            return Salvaged(before, True, 0, ())
    record = await _put_root(context, before, root or empty_root(before), run.fragments)
    if found is None:
        return Salvaged(record, True, len(run.fragments), ())
    worse = ranked.candidates[ranked.candidates.index(found[0]) :]
    old_roots = [
        root_key(record.stream_id, *key, tenant=record.tenant) for key in (*ranked.others, *worse)
    ]
    doomed = (*old_roots, *run.strays)[:_STRAY_COUNT_MAX]
    return Salvaged(record, True, len(run.fragments), doomed)


async def _best_root(
    drive: Drive, record: StreamRecord, candidates: tuple[RootKey, ...]
) -> tuple[RootKey, Node] | None:
    """The best root that is whole; where none is, the best that can be read."""
    readable: salvage.Candidate | None = None
    for rank in salvage.equals(candidates):
        whole: list[salvage.Candidate] = []
        for key in rank:
            node = await _read_root(drive, record, key)
            if node is None:
                continue
            readable = readable or salvage.Candidate(key, node)
            if await _is_whole(drive, record, node):
                whole.append(salvage.Candidate(key, node))
        if whole:
            return salvage.best_of(whole, home_known=record.home is not None)
    if readable is not None:
        log.critical("objects that a manifest names are missing", stream_id=record.stream_id)
    return readable


async def _read_root(drive: Drive, record: StreamRecord, key: RootKey) -> Node | None:
    object_key = root_key(record.stream_id, *key, tenant=record.tenant)
    for _ in range(2):
        # Once more where it does not verify: it may have been damaged on the way only.
        try:
            node = decode_node(await drive.get(object_key))
        except ObjectMissing:
            break
        except Corrupt as error:
            log.warning("a root does not verify", object_key=object_key, error=str(error))
            continue
        if salvage.is_root_of(node, record, key):
            return node
        break
    log.critical("a root cannot be believed", object_key=object_key)
    return None


async def _is_whole(drive: Drive, record: StreamRecord, root: Node) -> bool:
    """Whether everything that a root itself names is there; groups answer for what is below."""
    prefix = stream_prefix(record.stream_id, record.tenant)
    for kind, place in ((EntryKind.FRAGMENT, "data/"), (EntryKind.GROUP, "metadata/")):
        wanted = salvage.named_directly(root, kind)
        entries = root.entries[root.entries["kind"] == kind]
        if not wanted:
            continue
        first, last = int(entries["first_offset"].min()), int(entries["first_offset"].max())
        there = {uid async for uid in _uids_between(drive, f"{prefix}{place}", first, last)}
        if not wanted <= there:
            return False
    return True


async def _uids_between(drive: Drive, place: str, first: int, last: int) -> AsyncIterator[Uid]:
    """Uids of the fragments or groups in one place whose keys begin with these offsets."""
    async for facts in drive.list(place, f"{place}{first:020d}"):
        doomed = parse_doomed(facts.object_key.encode("ascii"))
        if doomed is None or doomed.first_offset is None or doomed.uid is None:
            # Numbers sort before all words that stand in the same place.
            break
        if doomed.first_offset > last:
            break
        yield doomed.uid


async def _has_groups(drive: Drive, prefix: str) -> bool:
    async for facts in drive.list(f"{prefix}metadata/"):
        doomed = parse_doomed(facts.object_key.encode("ascii"))
        return doomed is not None and doomed.height > 0
    return False


async def _run_from(context: Context, record: StreamRecord, prefix: str, end: salvage.End) -> _Run:
    """Sound fragments that go on from `end` without a hole, and the others from there on."""
    chosen: list[FragmentInfo] = []
    strays: list[str] = []
    async for first_offset, uids in _fragments_from(context.drive, prefix, end.next_offset):
        extending = None
        if first_offset == end.next_offset:
            intents = [Intent(uid, first_offset, "") for uid in uids]
            found = [(await look_under(context, record, intent)).fragment for intent in intents]
            extending = end.extended_by([fragment for fragment in found if fragment is not None])
        if extending is not None:
            chosen.append(extending)
            end = end.after(extending)
        if len(strays) < _STRAY_COUNT_MAX:
            strays += [
                fragment_key(record.stream_id, first_offset, uid, record.tenant)
                for uid in uids
                if extending is None or uid != extending.uid
            ]
    return _Run(tuple(chosen), tuple(strays))


async def _fragments_from(
    drive: Drive, prefix: str, offset: int
) -> AsyncIterator[tuple[int, list[Uid]]]:
    """First offsets of fragments from `offset` on, in order, and the uids at each."""
    first_offset, uids = -1, list[Uid]()
    async for facts in drive.list(f"{prefix}data/", f"{prefix}data/{offset:020d}"):
        key = parse_fragment_key(facts.object_key)
        if key is None:
            continue
        if key.first_offset != first_offset:
            if uids:
                yield first_offset, uids
            first_offset, uids = key.first_offset, []
        uids.append(key.uid)
    if uids:
        yield first_offset, uids


async def _put_root(
    context: Context, before: StreamRecord, root: Node, run: tuple[FragmentInfo, ...]
) -> StreamRecord:
    """Put the stream's root of the new generation; returns the record that names it."""
    settings = context.settings
    plan = make_plan(before, root, run, None, settings.manifest_fanout, context.new_uid)
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
    return salvage.record_after(before, plan.publish.pointer, plan.root)


def _key_of(put: PutGroup | PutRoot, record: StreamRecord) -> str:
    if isinstance(put, PutGroup):
        node = put.group.node
        return group_key(node.stream_id, node.first_offset, node.uid, node.height, record.tenant)
    node = put.root.node
    named = (node.generation, node.epoch, node.version, node.uid)
    return root_key(node.stream_id, *named, tenant=record.tenant)
