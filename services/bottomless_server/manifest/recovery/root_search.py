"""Find the root of a stream that a rebuild believes, and what goes on from its end.

This is the reading part of `tree/core/rebuild_decision.py`, which says what is believed and why. Nothing is
put here and nothing is deleted, so a crash at any moment changes nothing.

A drive beside drive 0 that is away is passed over where the newest root is whole, is the only one of
its version, and names nothing there itself (`may_pass_over`). Then that root is what was published, and
whatever lies on the drive after its end was not: the node that appended it has it still, or WAL objects
do. That it lies there is not forgotten; it is looked at when the drive is back (`mutators/unseen.py`).
In all other cases the stream waits for the drive.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import numpy as np
import structlog

from bottomless.drives.base import Drive, ObjectMissing
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.keys import (
    FragmentPlace,
    RootKey,
    fragment_place,
    root_key,
    stream_prefix,
)
from bottomless.formats.manifest import decode_node
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.limits import TIMESTAMP_MIN
from bottomless.model.manifest import Entries, EntryKind, Node, no_entries
from bottomless.model.names import Uid, uid_from_bytes
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.other_drives import drives_of
from bottomless_server.manifest.tree.core import rebuild_decision
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, parse_delete_target
from bottomless_server.manifest.tree.core.rebuild_decision import RootCandidate, RootSeen
from bottomless_server.manifest.tree.core.root_agreement import agrees, may_be_adopted, names_after
from bottomless_server.manifest.tree.resolver import look_under
from bottomless_server.tree.retention import cut_front, find_floor

log = structlog.get_logger(__name__)

STRAY_COUNT_MAX: Final = 10_000
"""Objects that nobody can vouch for and that are queued for deletion at once; garbage collection finds the others."""


class Run(NamedTuple):
    """The fragments that lie in the bucket from the end of a root on."""

    fragments: tuple[FragmentInfo, ...]
    """The sound fragments that go on from the end, without a hole."""
    strays: tuple[FragmentPlace, ...]
    """Where all other fragments lie."""
    unlike: tuple[FragmentPlace, ...]
    """Pick the strays that are no copy of a chosen fragment: they may be parts of what is lost."""


class FoundRoot(NamedTuple):
    best: RootCandidate | None
    """The root that is believed; None where none can be read."""
    run: Run
    damaged: bool
    """Whether something is missing that was published, or a newer root cannot be read."""
    unseen: tuple[int, ...] = ()
    """The numbers of the drives that were passed over, rising."""


async def find_root(
    context: Context, registry: StreamRecord, candidates: tuple[RootKey, ...]
) -> FoundRoot:
    """The newest root that is whole, or that nothing may take the place of.

    Raises:
        DriveUnavailable, DriveRefused: also where a drive is away that may not be passed over.
    """
    away = await _away(context, registry)
    found = await _find_root(context, registry, candidates, frozenset(away))
    for error in away.values():
        if not may_pass_over(found, candidates):
            raise error
    return found._replace(unseen=tuple(away))


async def _away(context: Context, record: StreamRecord) -> dict[int, StoreError]:
    """Why drives cannot be looked at now, by number; of those on which the stream may have something."""
    found: dict[int, StoreError] = {}
    for number in await drives_looked_at(context, record):
        if number != DEFAULT_NUMBER:
            try:
                await context.drives.marked(number).look()
            except StoreError as error:
                found[number] = error
    return found


@guard("what a drive that is away may decide")
def may_pass_over(found: FoundRoot, candidates: Sequence[RootKey]) -> bool:
    """Whether a root is believed whatever lies on drives that are away.

    It is if it is the newest one, nobody else tried to publish in its place, and all is there that it
    names: then it is what was published, to its end and no further.
    """
    newest = rebuild_decision.equals(candidates)[:1]
    alone = bool(newest) and len(newest[0]) == 1
    return alone and found.best is not None and found.best.key == newest[0][0] and not found.damaged


async def _find_root(
    context: Context,
    registry: StreamRecord,
    candidates: tuple[RootKey, ...],
    away: frozenset[int],
) -> FoundRoot:
    home_known = registry.home is not None
    best: RootSeen | None = None
    passed, unread, deposed = no_entries(), False, list[RootSeen]()
    for rank in rebuild_decision.equals(candidates):
        readable = {key: await _seen(context, registry, key) for key in rank}
        found = [one for one in readable.values() if one is not None]
        if best is None:
            unread = unread or len(found) < len(rank)
            owners = [key.epoch for key, one in readable.items() if one is None]
            deposed += [one for one in found if is_deposed(one, owners)]
            found = [one for one in found if not is_deposed(one, owners)]
        for seen in rebuild_decision.in_order(found, home_known=home_known):
            one = await floored(context, registry, seen, found)
            if best is None:
                best = one
            elif may_take_its_place(one, best, passed):
                older = await cut_as(context, registry, one, best)
                names = names_after(passed, best.found.root, one.found.root.next_offset)
                if older is not None and await takes_its_place(
                    context, registry, older, best, names, away
                ):
                    best, passed = older, names
            if not best.missing:
                run = await run_from(context, registry, best.found, passed, away)
                return FoundRoot(best.found, run, unread)
    if best is None:
        # Better than nothing: what it was planned for is in it.
        best = next(iter(rebuild_decision.in_order(deposed, home_known=home_known)), None)
    if best is None:
        return FoundRoot(None, await run_from(context, registry, None, passed, away), unread)
    if best.missing:
        log.critical(
            "objects that a manifest names are missing",
            stream_id=registry.stream_id,
            uids=sorted(best.missing)[:10],
        )
    run = await run_from(context, registry, best.found, passed, away)
    return FoundRoot(best.found, run, damaged=True)


@guard("roots of a deposed owner, beside one that cannot be read")
def is_deposed(one: RootSeen, unread: Sequence[int]) -> bool:
    """Whether a later owner has put a root of the same version that cannot be read; `unread` has the
    epochs of those. Then this one was never published: see `rebuild_decision.may_be_published`."""
    return one.found.key.epoch < max(unread, default=0)


def may_take_its_place(older: RootSeen, best: RootSeen, passed: Entries) -> bool:
    """Whether an older root names nothing but what `best` and those that were passed over do."""
    entries = older.found.root.entries
    one_version = older.found.key.version == best.found.key.version
    return agrees(best.found.root.entries, entries, one_version=one_version) and agrees(
        passed, entries, one_version=False
    )


@guard("the highest floor of one version, also where something is missing")
async def floored(
    context: Context, registry: StreamRecord, one: RootSeen, rank: Sequence[RootSeen]
) -> RootSeen:
    """A root with the highest floor that one of its version and epoch has; as it is where it cannot be cut
    there, since a floor is worth less than records.

    Raises:
        DriveUnavailable, DriveRefused: of a group on the way.
    """
    highest = rebuild_decision.highest_floor(one, rank)
    return await cut_as(context, registry, one, highest) or one


@guard("the floor of a newer root, in the place of an older one's")
async def cut_as(
    context: Context, registry: StreamRecord, older: RootSeen, best: RootSeen
) -> RootSeen | None:
    """An older root without what is below the floor of the newer one; None where it cannot be cut there.

    What is below was removed for ever, and may be deleted already. Groups tell nothing of that: they
    stay for as long as anything that they name.

    Raises:
        DriveUnavailable, DriveRefused: of a group on the way.
    """
    root, floor = older.found.root, best.found.root.first_offset
    if floor <= root.first_offset:
        return older
    if floor > root.next_offset:
        return None
    try:
        cut = await context.groups.descend(registry.tenant, root, find_floor(root, floor))
    except (ObjectMissing, Corrupt) as error:
        log.warning("a root cannot be cut", stream_id=registry.stream_id, error=str(error))
        return None
    if cut.floor != floor:
        return None
    return older._replace(found=RootCandidate(older.found.key, cut_front(root, cut).root))


@guard("what an older root would give up")
async def takes_its_place(
    context: Context,
    registry: StreamRecord,
    older: RootSeen,
    best: RootSeen,
    names: Entries,
    away: frozenset[int] = frozenset(),
) -> bool:
    """Whether less is missing by an older root, and nothing is lost by it that is there.

    `names` is what newer roots name after its end.
    """
    root = older.found.root
    home_known = registry.home is not None
    if not best.is_there_after(root.next_offset, home_known=home_known):
        return len(older.missing) < len(best.missing)
    if older.missing:
        return False
    run = await run_from(context, registry, older.found, names, away)
    return best.is_proved_by(root, run.fragments)


async def _seen(context: Context, record: StreamRecord, key: RootKey) -> RootSeen | None:
    node = await _read_root(context.drive, record, key)
    if node is None:
        return None
    return RootSeen(RootCandidate(key, node), await objects_there(context, record, node))


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
        if rebuild_decision.is_root_of(node, record, key):
            return node
        break
    log.critical("a root cannot be believed", object_key=object_key)
    return None


async def objects_there(context: Context, record: StreamRecord, root: Node) -> frozenset[Uid]:
    """The uids that a root itself names and whose objects are there, each on the drive and under the
    copy that its entry says; groups answer for what is below.

    What it names on a drive that is lost counts as there: that it is gone says nothing against the root,
    and an older one would give up what was published after it, and its offsets a second time."""
    prefix = stream_prefix(record.stream_id, record.tenant)
    fragments = root.entries[root.entries["kind"] == EntryKind.FRAGMENT]
    groups = root.entries[root.entries["kind"] == EntryKind.GROUP]
    places = [
        (number, "data/", fragments[fragments["drive"] == number])
        for number in np.unique(fragments["drive"]).tolist()
    ]
    there: set[Uid] = set()
    lost = await context.drive_states.lost([number for number, _, _ in places])
    for number, place, entries in (*places, (DEFAULT_NUMBER, "metadata/", groups)):
        if len(entries) == 0:
            continue
        wanted = {uid_from_bytes(entry["uid"].tobytes()): int(entry["copy"]) for entry in entries}
        if number in lost:
            there.update(wanted)
            continue
        first, last = int(entries["first_offset"].min()), int(entries["first_offset"].max())
        drive = context.drives.of(number)
        async for one in _objects_between(drive, f"{prefix}{place}", first, last):
            if one.uid is not None and wanted.get(one.uid) == one.copy:
                there.add(one.uid)
    return frozenset(there)


async def _objects_between(
    drive: Drive, place: str, first: int, last: int
) -> AsyncIterator[DeleteTarget]:
    """The fragments or groups in one place whose keys begin with these offsets."""
    async for facts in drive.list(place, f"{place}{first:020d}"):
        target = parse_delete_target(facts.object_key.encode("ascii"))
        if target is None or target.first_offset is None or target.uid is None:
            # Numbers sort before all words that stand in the same place.
            break
        if target.first_offset > last:
            break
        yield target


async def run_from(
    context: Context,
    record: StreamRecord,
    found: RootCandidate | None,
    names: Entries,
    away: frozenset[int] = frozenset(),
) -> Run:
    """Sound fragments that go on from a root's end without a hole, and the others from there on, on all
    drives where the stream may have some, but those that are `away`.

    `names` is what newer roots name from there on.

    Raises:
        DriveUnavailable, DriveRefused: what is there cannot be told now.
    """
    end = (
        rebuild_decision.TreeEnd(0, 0, TIMESTAMP_MIN)
        if found is None
        else rebuild_decision.TreeEnd.of(found.root)
    )
    chosen: list[FragmentInfo] = []
    strays: list[FragmentPlace] = []
    unlike: list[FragmentPlace] = []
    async for objects in _fragments_from(context, record, end.next_offset, away):
        extending, under = None, list[FragmentInfo]()
        if objects[0].first_offset == end.next_offset:
            under = await _sound(context, record, objects)
            extending = end.extended_by([one for one in under if may_be_adopted(names, one)])
        taken = None
        if extending is not None:
            chosen.append(extending)
            taken, end = _place_of(record, extending), end.after(extending)
        if len(strays) < STRAY_COUNT_MAX or not unlike:
            copies = {_place_of(record, one) for one in under if extending and same(one, extending)}
            places = [FragmentPlace(one.drive, one.object_key) for one in objects]
            others = [place for place in places if place != taken]
            strays += others
            unlike += [place for place in others if place not in copies]
    return Run(tuple(chosen), tuple(strays), tuple(unlike))


async def _sound(
    context: Context, record: StreamRecord, objects: Sequence[DeleteTarget]
) -> list[FragmentInfo]:
    """Pick the objects that are whole fragments, as the manifest keeps them."""
    found = []
    for one in objects:
        assert one.uid is not None
        assert one.first_offset is not None
        intent = Intent(one.uid, one.first_offset, "", one.drive)
        found.append((await look_under(context, record, intent, one.copy)).fragment)
    return [one for one in found if one is not None]


def _place_of(record: StreamRecord, info: FragmentInfo) -> FragmentPlace:
    return fragment_place(record.stream_id, info, record.tenant)


def same(one: FragmentInfo, other: FragmentInfo) -> bool:
    """Whether two fragments hold the same records: one is the copy that a rebuild made of the other
    before it died, or a move, or both were put for one run of chunks."""
    return _content(one) == _content(other)


def _content(fragment: FragmentInfo) -> FragmentInfo:
    """The fragment without its uid, without what follows from the uid, without its place, and without
    its filters, which the configuration decides about.
    """
    bare = fragment._replace(uid=Uid("0" * 32), size=0, index_size=0, crc=0, drive=0, copy=0)
    return bare._replace(filter_presence=Presence(0), filter_blocks=b"", filters_size=0)


@guard("all drives in the look of a rebuild")
async def drives_looked_at(context: Context, record: StreamRecord) -> list[int]:
    """The numbers of the drives on which a rebuild looks for fragments that no root names."""
    return await drives_of(context, record)


async def _fragments_from(
    context: Context, record: StreamRecord, offset: int, away: frozenset[int]
) -> AsyncIterator[list[DeleteTarget]]:
    """What has the key of a fragment from `offset` on, on any drive: all of one first offset together,
    in the order of these."""
    prefix = stream_prefix(record.stream_id, record.tenant)
    async with AsyncExitStack() as closing:
        listings = []
        for number in await drives_looked_at(context, record):
            if number in away:
                continue
            listing = _listed(context.drives.of(number), number, prefix, offset)
            closing.push_async_callback(listing.aclose)
            listings.append(listing)
        heads = [await anext(listing, None) for listing in listings]
        while waiting := [head.first_offset for head in heads if head is not None]:
            first = min(each for each in waiting if each is not None)
            found = list[DeleteTarget]()
            for at, listing in enumerate(listings):
                while (head := heads[at]) is not None and head.first_offset == first:
                    found.append(head)
                    heads[at] = await anext(listing, None)
            yield found


async def _listed(
    drive: Drive, number: int, prefix: str, offset: int
) -> AsyncGenerator[DeleteTarget, None]:
    async for facts in drive.list(f"{prefix}data/", f"{prefix}data/{offset:020d}"):
        target = parse_delete_target(facts.object_key.encode("ascii", "replace"), number)
        if target is not None and target.first_offset is not None and not target.height:
            yield target
