"""Check a stream's manifest and what it names: an operation that changes nothing.

Each step walks from where the last one ended, on the root as it is then, so that a stream may
be written and trimmed meanwhile. A fault counts only if the manifest still leads there when it
was found: what retention removed in between is gone by right, and so is what was moved.

- nodes: checksums, that entries follow each other, and that an entry says of its group what
  the group says of itself
- sums: of a group that no cut has touched they are those of its entries. A group's object
  does not know of later cuts, so of one that was cut only the root's entry is held against
  what is live below it.
- fragments: each exists with its size; with `checksums`, all bytes are read;
  one on a drive that stays away is told as `drive-away`: nobody has looked at it
- filters: an entry says no less of its group than the group's own entries; with `checksums`, no
  value of a fragment is missing from its filters
- of a partition, the super object that a rebuild would know it by (`super_faults.py`)
- the tail of a leaderless stream comes last (`leaderless/tail_check.py`)

After a crash the step that was under way is done again.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.errors import Code, Corrupt, StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.fragment import FOOTER_SIZE, decode_footer, decode_stored_filters
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import GIB, MIB
from bottomless.model.manifest import Entries, EntryKind, Node, fragment_info
from bottomless.model.names import StreamId, uid_from_bytes
from bottomless.model.stream import StreamRecord
from bottomless_server.core.filter_check import FilterCheck
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.tail_check import check_tail_page
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, described
from bottomless_server.manifest.streams.away_drives import LOOK_AGAIN_MS, AwayDrives
from bottomless_server.manifest.streams.super_faults import super_faults
from bottomless_server.manifest.streams.tier_description import DriveNames, drive_names
from bottomless_server.manifest.tree.core.adoption_check import footer_piece
from bottomless_server.manifest.tree.reachability import load_group
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores.operations import Operation
from bottomless_server.tree.filters import filter_of, says_enough
from bottomless_server.tree.retention import SUMMED, Totals, totals
from bottomless_server.tree.search import at_offset

VERIFY: Final = "verify"

FAULT_COUNT_MAX: Final = 100
"""Faults that a report names; more are counted only."""
STEP_COUNT: Final = 256
_WALK_COUNT_MAX: Final = 5
"""So often a step looks for faults that it does not find again."""
_STEP_BYTES: Final = GIB
"""Fragments and, where they are read, bytes of one step."""
_AT_ONCE: Final = 8
_PIECE_SIZE: Final = 8 * MIB
_AWAY: Final = "drive-away"
_AWAY_NOTED: Final = "_away"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it should be, in a range of offsets."""

    kind: str
    first_offset: int
    next_offset: int
    object_id: str | None = None
    drive: str | None = None
    """Name of the drive of a fragment; None of anything else, and of a drive that the settings do not have."""
    copy: int = 0
    """Number of the copy of a fragment that was moved, else 0. Another copy at the same offsets is another fault."""

    def goes_on(self, next_offset: int, drive: str | None) -> bool:
        """Whether it begins where another one ends (exclusive), on the same drive."""
        return self.first_offset == next_offset and self.drive == drive

    def described(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "first_offset": self.first_offset,
            "last_offset": self.next_offset - 1,
            "id": self.object_id,
            "drive": self.drive,
            "copy": f"{self.copy:016x}" if self.copy else None,
        }


class _Away(Exception):
    """A drive is away, and is waited for."""

    def __init__(self, error: StoreError) -> None:
        self.error = error


def _joined(found: Iterable[Fault]) -> Iterator[Fault]:
    """Tell of neighbours that nobody has looked at as one."""
    held: Fault | None = None
    for fault in found:
        if (
            held is not None
            and held.kind == fault.kind == _AWAY
            and fault.goes_on(held.next_offset, held.drive)
        ):
            held = Fault(_AWAY, held.first_offset, fault.next_offset, drive=held.drive)
            continue
        if held is not None:
            yield held
        held = fault
    if held is not None:
        yield held


def register_verify(operations: Operations) -> None:
    async def run(context: Context, operation: Operation) -> Again | Done:
        return await _VerifyStep(context, operation).run()

    operations.register(VERIFY, run, long=True)


class _VerifyStep:
    def __init__(self, context: Context, operation: Operation) -> None:
        assert operation.stream_id is not None
        self._context = context
        self._stream_id = StreamId(operation.stream_id)
        self._checksums = bool(operation.arguments["checksums"])
        progress = operation.progress
        self._next: int | None = progress.get("next_offset")
        self._fragments = int(progress.get("fragments", 0))
        self._bytes = int(progress.get("bytes", 0))
        self._groups = int(progress.get("groups", 0))
        self._fault_count = int(progress.get("fault_count", 0))
        self._faults: list[Mapping[str, Any]] = list(progress.get("faults", ()))
        self._tail_next: int | None = progress.get("_tail_next")
        """Where the look at the tail goes on; None before it has begun."""
        self._entries: int | None = progress.get("tail_entries")
        self._before = dict(progress)
        self._away = AwayDrives(progress.get(_AWAY_NOTED, {}))
        self._tenant, self._drives = "", DriveNames({})

    async def run(self) -> Again | Done:
        record = await self._context.streams.load(self._stream_id)
        self._tenant, self._drives = record.tenant, drive_names(self._context, record)
        try:
            record, root = await load_root(self._context, record)
        except Corrupt as error:
            missing = error.code is Code.DATA_MISSING
            self._note([Fault("root-missing" if missing else "root-corrupt", 0, 1)])
            return Done(self._shown(None))
        if self._tail_next is not None:
            return await self._look_at_tail(record, root, self._tail_next)
        begins = self._next is None
        if begins:
            self._note([Fault(kind, 0, 1) for kind in await super_faults(self._context, record)])
        position = max(self._next or 0, root.first_offset)
        found = await self._faults_of_root(record, root) if begins else []
        if position < root.next_offset:
            try:
                position, more = await self._walk_of_now(record, root, position)
            except _Away as away:
                # The step is done again from where it began.
                waits = {**self._before, _AWAY_NOTED: self._away.noted()}
                due_at = self._context.clock() + LOOK_AGAIN_MS
                return Again(waits, due_at, described(away.error))
            found += more
        await self._note_lasting(found)
        self._next = position
        if position >= root.next_offset and record.config.leaderless:
            return await self._look_at_tail(record, root, root.next_offset)
        if position >= root.next_offset:
            return Done(self._shown(root))
        noted = {_AWAY_NOTED: self._away.noted()}
        return Again({**self._shown(root), **noted, "next_offset": position})

    async def _look_at_tail(self, record: StreamRecord, root: Node, position: int) -> Again | Done:
        page = await check_tail_page(self._context, record, position, checksums=self._checksums)
        self._entries = (self._entries or 0) + page.entry_count
        self._note([Fault(*fault) for fault in page.faults])
        if not page.more:
            return Done(self._shown(root))
        position_told = {"next_offset": self._next, "_tail_next": page.next_offset}
        return Again({**self._shown(root), **position_told})

    def _shown(self, root: Node | None) -> dict[str, Any]:
        return {
            **({} if self._entries is None else {"tail_entries": self._entries}),
            "sound": self._fault_count == 0,
            "version": None if root is None else root.version,
            "checksums": self._checksums,
            "fragments": self._fragments,
            "groups": self._groups,
            "bytes": self._bytes,
            "fault_count": self._fault_count,
            "faults": self._faults,
        }

    def _note(self, found: list[Fault]) -> None:
        if found and self._faults and self._fault_count == len(self._faults):
            last = self._faults[-1]
            # A release before this one noted no drive.
            ends = last["last_offset"] + 1, last.get("drive")
            if last["kind"] == found[0].kind == _AWAY and found[0].goes_on(*ends):
                # Told as one, so that it leaves room for others.
                first = Fault(_AWAY, last["first_offset"], found[0].next_offset, drive=ends[1])
                del self._faults[-1]
                self._fault_count -= 1
                found = [first, *found[1:]]
        self._fault_count += len(found)
        room = FAULT_COUNT_MAX - len(self._faults)
        self._faults += [fault.described() for fault in found[:room]]

    async def _note_lasting(self, found: list[Fault]) -> None:
        """Note those that are in what is readable even now."""
        if found:
            record = await self._context.streams.load(self._stream_id)
            _, root = await load_root(self._context, record)
            found = [fault for fault in found if fault.next_offset > root.first_offset]
        self._note(found)

    async def _faults_of_root(self, record: StreamRecord, root: Node) -> list[Fault]:
        found = []
        whole = Fault("root-bounds", root.first_offset, root.next_offset)
        if root.next_offset != record.published_next or record.condemned_next > root.first_offset:
            found.append(whole)
        entries = root.entries
        if len(entries) and int(entries["first_offset"][0]) < root.first_offset:
            try:
                live = await self._live_below(root, entries[0])
            except (ObjectMissing, Corrupt):
                return found  # The walk meets the same group, and says so.
            if live != totals(entries[:1]):
                found.append(_fault_of("group-sums", entries[0]))
        return found

    async def _live_below(self, root: Node, entry: np.void) -> Totals:
        """What is live in a group that was cut: down the left edge, one request for each height."""
        live, parent = Totals(), root
        while True:
            node = await load_group(self._context.drive, self._tenant, parent, entry)
            entries = node.entries[node.entries["next_offset"] > np.uint64(root.first_offset)]
            cut = len(entries) and int(entries["first_offset"][0]) < root.first_offset
            live = live.plus(totals(entries[1:] if cut else entries))
            if not cut:
                return live
            entry, parent = entries[0], node

    async def _walk_of_now(
        self, record: StreamRecord, root: Node, position: int
    ) -> tuple[int, list[Fault]]:
        """Walk from a position; of what is wrong it returns what is so still. What was moved to another drive,
        or is named by another group, is gone by right from where it was, once the grace is over."""
        before: list[Fault] = []
        counts = self._fragments, self._groups, self._bytes
        for _ in range(_WALK_COUNT_MAX):
            self._fragments, self._groups, self._bytes = counts
            end, found = await self._walk(root, position)
            if all(one.kind == _AWAY or one in before for one in found):
                break
            newest, root = await load_root(
                self._context, await self._context.streams.load(self._stream_id)
            )
            if newest.root == record.root:
                break
            record, before = newest, found
            position = max(position, root.first_offset)
            if position >= root.next_offset:
                return position, []
        # Of a manifest that changes all the time it is told what was found last.
        return end, found

    async def _walk(self, root: Node, position: int) -> tuple[int, list[Fault]]:
        """Go down to `position` and check what follows there in one node.

        Returns where it came to, and the faults.
        """
        node, floor = root, root.first_offset
        found: list[Fault] = []
        while True:
            entry = node.entries[at_offset(node, position)]
            if entry["kind"] != EntryKind.GROUP:
                return await self._check_run(node, position, found)
            first = max(int(entry["first_offset"]), floor)
            try:
                below = await load_group(self._context.drive, self._tenant, node, entry)
            except ObjectMissing:
                fault = _fault_of("group-missing", entry)
            except Corrupt:
                fault = _fault_of("group-corrupt", entry)
            else:
                if _is_of(entry, below):
                    if position == first:
                        # Once for each group, however many steps go through it.
                        self._groups += 1
                        found += _faults_of_sums(entry, below, floor)
                        if not says_enough(filter_of(entry, node.filters), below):
                            found.append(_fault_of("group-filter", entry))
                    node = below
                    continue
                fault = _fault_of("group-not-its-entry", entry)
            return int(entry["next_offset"]), [*found, fault]

    async def _check_run(
        self, node: Node, position: int, found: list[Fault]
    ) -> tuple[int, list[Fault]]:
        run = _bounded(node.entries[at_offset(node, position) :], self._checksums)
        fragments = [
            fragment_info(entry, node.filters)
            for entry in run
            if entry["kind"] == EntryKind.FRAGMENT
        ]
        room = asyncio.Semaphore(_AT_ONCE)

        async def check(info: FragmentInfo) -> Fault | None:
            async with room:
                return await self._check_fragment(info)

        checked = await asyncio.gather(*(check(info) for info in fragments))
        self._fragments += len(fragments)
        faults = [*found, *_joined(fault for fault in checked if fault is not None)]
        return int(run["next_offset"][-1]), faults

    async def _check_fragment(self, info: FragmentInfo) -> Fault | None:
        place = fragment_place(self._stream_id, info, self._tenant)
        drive = self._context.drives.of(place.drive)

        def fault(kind: str) -> Fault:
            lies_on = self._drives.name(place.drive)
            return Fault(
                kind, info.first_offset, info.next_offset, info.fragment_id, lies_on, info.copy
            )

        try:
            if (await drive.head(place.object_key)).size != info.size:
                return fault("fragment-size")
            if self._checksums:
                check = await self._filter_check(place, info) if info.version > 1 else None
                if await self._crc(place, info.size, check) != info.crc:
                    return fault("fragment-checksum")
                if check is not None and check.missing:
                    return fault("fragment-filter")
        except Corrupt:
            return fault("fragment-checksum")
        except ObjectMissing:
            return fault("fragment-missing")
        except (DriveUnavailable, DriveRefused) as error:
            if place.drive == DEFAULT_NUMBER:
                raise
            if self._away.waits_for(place.drive, self._context.clock()):
                raise _Away(error) from error
            return fault(_AWAY)
        return None

    async def _filter_check(self, place: FragmentPlace, info: FragmentInfo) -> FilterCheck:
        """A check of the filters of a fragment, which stand after what is checked.

        Raises:
            Corrupt: they are damaged.
            ObjectMissing, DriveUnavailable, DriveRefused
        """
        drive, piece = self._context.drives.of(place.drive), footer_piece(info.size)
        footer = decode_footer(await drive.get(place.object_key, *piece))
        data = await drive.get(place.object_key, footer.filters_position, footer.filters_size)
        self._bytes += FOOTER_SIZE + len(data)
        return FilterCheck(info, footer, decode_stored_filters(data, footer))

    async def _crc(self, place: FragmentPlace, size: int, check: FilterCheck | None = None) -> int:
        drive = self._context.drives.of(place.drive)
        crc: int | None = None
        for start in range(0, size, _PIECE_SIZE):
            piece = await drive.get(place.object_key, start, _PIECE_SIZE)
            self._bytes += len(piece)
            crc = crc32c(piece, crc)
            if check is not None:
                # Long enough for others to wait: values of a whole piece are hashed.
                await asyncio.to_thread(check.feed, piece)
        return crc or 0


def _bounded(entries: Entries, reading: bool) -> Entries:
    """Take as many from the front as one step may check: up to a group, and at least one."""
    groups = entries["kind"] == EntryKind.GROUP
    end = int(np.argmax(groups)) if bool(np.any(groups)) else len(entries)
    end = min(end, STEP_COUNT)
    if reading:
        through = np.cumsum(entries["object_size"][:end])
        end = max(1, int(np.searchsorted(through, np.uint64(_STEP_BYTES), side="right")))
    return entries[:end]


def _is_of(entry: np.void, node: Node) -> bool:
    """Whether the group is the one that the entry means."""
    return (
        node.uid == uid_from_bytes(entry["uid"].tobytes())
        and node.height == int(entry["height"])
        and node.first_offset == int(entry["first_offset"])
        and node.next_offset == int(entry["next_offset"])
        and node.last_timestamp == int(entry["last_timestamp"])
    )


def _faults_of_sums(entry: np.void, node: Node, floor: int) -> list[Fault]:
    if node.first_offset < floor:
        return []
    summed = Totals(*(int(entry[name]) for name in SUMMED))
    return [] if summed == totals(node.entries) else [_fault_of("group-sums", entry)]


def _fault_of(kind: str, entry: np.void) -> Fault:
    first, uid = int(entry["first_offset"]), uid_from_bytes(entry["uid"].tobytes())
    return Fault(kind, first, int(entry["next_offset"]), f"{first:020d}-{uid}")
