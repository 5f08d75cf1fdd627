"""What must hold at every moment: looked at past all services, without awaiting anything.

Numbers are those of architecture.md, section 7, of the agreed design: 2 and 6 (bounds), 4 (all
that the committed root names is there and is what was put), 7 (sums).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakSet

import pytest
from support.object_keys import group_key, root_key

from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_place
from bottomless.formats.manifest import decode_node
from bottomless.formats.stream_record import decode_record
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import TENANT_DEFAULT, StreamId, uid_from_bytes
from bottomless.model.stream import RootPointer, StreamRecord, StreamState
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.service import IngestService
from bottomless_server.node.owner import Claim
from bottomless_server.stores.streams import GENERATION_KEY, node_key, stream_key
from simulation.drives import AllDrives, place_name
from simulation.expected import Broken, Expected, past_gaps
from simulation.fences import Fences
from simulation.programs import Program

FENCED: Final[WeakSet[Claim]] = WeakSet()
"""Claims of which their node was told that somebody has the stream since."""


@contextmanager
def noting_fences() -> Iterator[None]:
    """Note what coordination tells owners, whatever they make of it."""
    real = Claim.note_fence

    def note_fence(claim: Claim) -> None:
        FENCED.add(claim)
        real(claim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claim, "note_fence", note_fence)
        yield


class Bounds(NamedTuple):
    """Of which none ever goes back."""

    floor: int
    published: int
    reserved: int
    epoch: int
    version: int
    condemned: int


@dataclass
class Manifest:
    """What a committed root leads to at or above its floor."""

    floor: int = 0
    next_offset: int = 0
    fragments: list[FragmentInfo] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    """Objects, by the names that all drives together have for them."""


class Watch:
    """Looks at one stream's record, objects and owners, as often as it is asked."""

    def __init__(
        self,
        expected: Expected,
        coordination: MemoryCoordination,
        drive: MemoryDrive | AllDrives,
        nodes: list[Program],
    ) -> None:
        self._expected = expected
        self._stream_id = StreamId(expected.stream_id)
        self._coordination = coordination
        self._drive = drive
        self._nodes = nodes
        self._before = Bounds(0, 0, 0, 0, 0, 0)
        self._read_of: bytes | None = None
        self._record: StreamRecord | None = None
        """As it was read last: it is looked at far more often than it changes."""
        self._root: RootPointer | None = None
        self.manifest = Manifest()
        self._synced: dict[str, tuple[int, int]] = {}
        self._verified: set[str] = set()
        self.copies: set[int] = set()
        """Moves of which a copy was named."""
        self._fences = Fences(self._stream_id, drive)
        self.look_count = 0

    def record(self) -> StreamRecord | None:
        value = self._coordination.peek(stream_key(self._stream_id))
        if value != self._read_of:
            self._read_of, self._record = value, None if value is None else decode_record(value)
        return self._record

    def home_without_lease(self) -> str | None:
        """The stream's home, if its lease is gone."""
        record = self.record()
        if record is None or record.home is None or record.state is not StreamState.ACTIVE:
            return None
        held = self._coordination.peek(node_key(record.home)) is not None
        return None if held else record.home

    def look(self) -> Manifest | None:
        """Raises:
        Broken: something does not hold.
        """
        self.look_count += 1
        if self._coordination.peek(GENERATION_KEY) is None:
            # It was lost. What comes back of it is looked at when the rebuild is over.
            self._forget()
            self._check_store()
            return self.manifest
        record = self.record()
        if record is None or record.state is not StreamState.ACTIVE:
            self._require(self._expected.deleted, "the record is gone, and nobody deleted it")
            return None
        self._expected.begun_at.update(one.first_offset for one in record.epochs)
        if record.root != self._root:
            before, self.manifest = self.manifest, self._load(record)
            self._root = record.root
            for gap in self.manifest.gaps:
                self._note_gap(gap, before)
        self._fences.note(record)
        self._check_store()
        self._check_bounds(record)
        for node in self._nodes:
            self._check_owner(node, record)
        return self.manifest

    def _note_gap(self, gap: tuple[int, int], before: Manifest) -> None:
        """What was on a drive that is lost, as the manifest said before, may be a gap; so may what a
        takeover accepted."""
        drive, (first, end) = self._drive, gap
        if isinstance(drive, AllDrives) and gap not in self._expected.gaps:
            for info in before.fragments:
                if (
                    info.drive in drive.lost
                    and first <= info.first_offset < info.next_offset <= end
                ):
                    kept = drive.whole(info.uid, info.size)
                    self._require(not kept, f"{info.first_offset} is given up, and whole: {kept}")
                    self._expected.lose_with_drive(info.first_offset, info.next_offset)
        # Gaps beside each other may have become one.
        while (after := past_gaps(self._expected.gaps, first)) != first:
            first = after
        if first < end:
            objection = self._objection(first, end)
            self._require(objection is None, objection or "")
        self._expected.lose(*gap)

    def reachable(self) -> set[str]:
        """Objects that the committed root leads to, and itself."""
        self.look()
        return self.manifest.keys

    def note_loss(self) -> None:
        """Coordination is lost at this moment."""

    def _forget(self) -> None:
        """Coordination is empty."""
        self._fences.forget()

    def _objection(self, first_offset: int, next_offset: int) -> str | None:
        """What is wrong with a gap that has just appeared."""
        return self._fences.objection(first_offset, next_offset)

    def _check_store(self) -> None:
        """Each look asks the store anew: what is reachable may not go while it is."""
        gone = [key for key in self.manifest.keys if not self._drive.has(key)]
        holds = not gone or self._expected.deleted
        self._require(holds, f"reachable, and deleted: {gone[:3]}")

    def _check_bounds(self, record: StreamRecord) -> None:
        now = Bounds(
            self.manifest.floor,
            record.published_next,
            record.reserved_next,
            record.epoch,
            record.version,
            record.condemned_next,
        )
        for name, before, after in zip(Bounds._fields, self._before, now, strict=True):
            self._require(before <= after, f"{name} went back from {before} to {after}")
        self._before = now
        given = self._given(record)
        self._require(now.floor <= now.published, f"{now}")
        self._require(now.published <= given, f"published beyond {given}: {now}")
        most = self._expected.trimmed_below
        if most is not None:
            # A gap is as old as the record before it, and one that nothing is before goes at once.
            most = past_gaps(self._expected.gaps, most)
        self._require(
            most is None or now.floor <= most, f"nobody asked for a floor above {most}: {now}"
        )
        self._require(now.condemned <= now.floor, f"condemned above the floor: {now}")
        end = self.manifest.next_offset
        self._require(end == now.published, f"the root ends at {end}, the record says {now}")
        acknowledged = self._expected.acknowledged_next
        self._require(acknowledged <= given, f"{acknowledged} beyond {now}")

    def _given(self, record: StreamRecord) -> int:
        """Offsets below it may have been given to records."""
        return record.reserved_next

    def _check_owner(self, node: Program, record: StreamRecord) -> None:
        """Of a node that believes to own the stream: what it shows is synced, reserved, dense."""
        service = node.service
        if not node.alive or not isinstance(service, IngestService) or not service.started:
            return
        if node.clock.asleep_since is not None:
            # It does nothing, whatever it believes.
            return
        appender = service.streams.find(self._stream_id)
        if appender is None or appender.stopped is not None or not appender.claim.held:
            return
        claim, log = appender.claim, appender.log
        self._require(claim not in FENCED, f"{node.name} was told that it is fenced, and goes on")
        if claim.epoch < record.epoch and node.ground.is_blind:
            return
        self._require(claim.epoch == record.epoch, f"{node.name} owns under {claim.epoch}")
        life = self._life(node, claim)
        _, before = self._synced.get(life, (claim.epoch, 0))
        self._require(before <= log.synced_next, f"{node.name}: its end went back from {before}")
        self._synced[life] = (claim.epoch, log.synced_next)
        self._require(log.synced_next <= record.reserved_next, f"{node.name} beyond reserved")
        self._require(
            log.committed_next <= log.synced_next, f"{node.name} shows what is not synced"
        )
        self._require(
            appender.published_next <= record.published_next, f"{node.name} heard of too much"
        )
        if log.segments:
            self._require(
                log.first_offset <= max(appender.published_next, log.segments[0].first_offset),
                f"{node.name} freed what is not published",
            )
            self._require(
                log.first_offset <= record.published_next or log.first_offset == claim.first_offset,
                f"{node.name} begins at {log.first_offset}, published {record.published_next}",
            )

    def _life(self, node: Program, claim: Claim) -> str:  # noqa: ARG002
        """In what the end of an owner's log never goes back."""
        return f"{node.name} {node.lives}"

    def _load(self, record: StreamRecord) -> Manifest:
        found = Manifest()
        root = record.root
        if root is None:
            return found
        key = root_key(self._stream_id, root.generation, root.epoch, root.version, root.uid)
        node = decode_node(self._read(found, key, root.size, root.crc))
        found.floor, found.next_offset = node.first_offset, node.next_offset
        self._walk(found, node)
        end = found.floor
        spans = [(info.first_offset, info.next_offset) for info in found.fragments]
        for first, following in sorted(spans + found.gaps):
            # A trim may end within a gap.
            self._require(first == end or (first < end == found.floor), f"a hole before {first}")
            end = following
        self._require(end == found.next_offset, f"fragments end at {end}, {found.next_offset}")
        return found

    def _walk(self, found: Manifest, node: Node) -> None:
        for entry in node.entries:
            if int(entry["next_offset"]) <= found.floor:
                continue
            if entry["kind"] == EntryKind.FRAGMENT:
                info = fragment_info(entry)
                found.fragments.append(info)
                self.copies.add(info.copy)
                place = fragment_place(self._stream_id, info, TENANT_DEFAULT)
                self._read(found, place_name(place), info.size, info.crc)
                continue
            if entry["kind"] == EntryKind.GAP:
                may_have_lost = self._expected.may_have_lost or self._has_lost_drives
                self._require(may_have_lost, "a gap, where nothing was lost")
                found.gaps.append((int(entry["first_offset"]), int(entry["next_offset"])))
                continue
            uid = uid_from_bytes(entry["uid"].tobytes())
            key = group_key(self._stream_id, int(entry["first_offset"]), uid, int(entry["height"]))
            size, crc = int(entry["object_size"]), int(entry["object_crc"])
            first = len(found.fragments)
            self._walk(found, decode_node(self._read(found, key, size, crc)))
            live = found.fragments[first:]
            self._require(
                node.height != 0
                or (
                    int(entry["fragment_count"]) == len(live)
                    and int(entry["byte_size"]) == sum(info.size for info in live)
                    and int(entry["record_count"]) == sum(info.record_count for info in live)
                ),
                f"the sums of a group are not those of what is in it: {key}",
            )

    def _read(self, found: Manifest, key: str, size: int, crc: int) -> bytes:
        found.keys.add(key)
        data = self._drive.peek(key)
        if data is None and self._drive.has(key):
            # Its drive is lost, which the manifest need not know yet.
            return b""
        if data is None:
            raise Broken(f"named, and not there: {key}")
        if key not in self._verified:
            self._require((len(data), crc32c(data)) == (size, crc), f"not what was put: {key}")
            self._verified.add(key)
        return data

    @property
    def _has_lost_drives(self) -> bool:
        return isinstance(self._drive, AllDrives) and bool(self._drive.lost)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"{self._expected.name}: {what}")
