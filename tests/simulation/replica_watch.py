"""What must hold at every moment of a stream that several nodes hold: of what is on their platters.

Whatever was acknowledged or shown, and is not published, lies synced on every node that the record
counts as in sync; and two logs that hold one epoch at one place hold the same bytes there.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.chunk import decode_header, decode_trailer, split_chunks, trailer_of
from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.chunk import AppendMode
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.ingest.log.layout import parse_segment_name, stream_dir
from bottomless_server.ingest.service import IngestService
from bottomless_server.node.owner import Claim
from bottomless_server.stores.streams import GENERATION_KEY
from simulation.expected import Expected
from simulation.invariants import Manifest, Watch
from simulation.programs import Ground, Program

_NOTHING: Final = (b"", ())
_EXEC_SECONDS: Final = 3.0
"""After so long no EXEC lands that somebody sent before."""


class Held(NamedTuple):
    """A chunk on a platter."""

    epoch: int
    segment_first: int
    position: int
    first_offset: int
    next_offset: int
    content: bytes


class ReplicaWatch(Watch):
    """Looks at one stream and at the disks of all nodes."""

    def __init__(self, expected: Expected, ground: Ground, nodes: list[Program]) -> None:
        super().__init__(expected, ground.coordination, ground.stored, nodes)
        self._ground = ground
        self._known: dict[NodeId, Program] = {}
        self._gone: dict[NodeId, float] = {}
        """Nodes whose disks are lost, and when."""
        self._parsed: dict[tuple[str, str], tuple[bytes, Sequence[Held]]] = {}
        self._was_deleting = False
        """Whether nodes may have removed its logs: where coordination is lost before the bucket knows of the
        deletion, which its caller is told, a rebuild brings the stream back."""
        self._told: StreamRecord | None = None
        """As it was when something of it was told last."""
        expected.on_told = self.note_told

    def look(self) -> Manifest | None:
        manifest = super().look()
        record = self.record()
        lost = self._coordination.peek(GENERATION_KEY) is None
        if lost or record is None:
            return manifest
        self._was_deleting |= record.state is StreamState.DELETING
        if self._was_deleting or record.state is not StreamState.ACTIVE or not record.members:
            return manifest
        self._note_nodes()
        self._tell_changes(record)
        logs = self._logs()
        self._check_places(logs.values())
        self._check_in_sync(record, logs)
        return manifest

    def note_told(self, producer_id: str, number: int) -> None:
        """A producer was told that its number is stored: then it lies on all that are in sync.

        Raises:
            Broken
        """
        self.look()
        record = self.record()
        if record is None or self._was_deleting or self._ground.is_blind:
            return
        for program in self._known.values():
            for one in self._log(program):
                if (producer_id, number) in _numbers(one.content):
                    self._expected.told.add((one.first_offset, one.next_offset))
        if record.members:
            self._check_in_sync(record, self._logs())

    def _life(self, node: Program, claim: Claim) -> str:
        # What was not shown may be cut while it follows another one.
        return f"{super()._life(node, claim)} {claim.epoch}"

    def note_lost_disk(self, program: Program) -> None:
        """All that a node had is gone, and it comes back as another one."""
        for node in [node for node, one in self._known.items() if one is program]:
            del self._known[node]
            self._gone[node] = self._ground.loop.now

    def lies_elsewhere(self, node: NodeId) -> bool:
        """Whether another node has all that counts, or the stream is clean."""
        record = self.record()
        if record is None or not record.dirty:
            return True
        return any(one != node and one in self._known for one in record.in_sync)

    def _tell_changes(self, record: StreamRecord) -> None:
        before, self._told = self._told, record
        if before is not None and record.in_sync == before.in_sync and record.home == before.home:
            return
        come = {*record.in_sync} - (set() if before is None else {*before.in_sync})
        since = self._ground.loop.now - _EXEC_SECONDS
        owner = None if record.home is None else self._known.get(record.home)
        # A process that stood still goes on with what it had decided before.
        woken = 0.0 if owner is None else self._ground.hindered.get(owner.name, 0.0)
        wrong = sorted(node for node in come if max(woken, self._gone.get(node, since)) < since)
        self._require(not wrong, f"counted in, though their disks are lost: {wrong}")
        names = sorted(self._known[one].name for one in record.in_sync if one in self._known)
        story = self._ground.story
        story.tell("record", f"{self._expected.name}, epoch {record.epoch}: in sync {names}")
        story.count(f"times {len(record.in_sync)} in sync")
        if before is None or not before.dirty:
            return
        if record.home != before.home:
            story.count("failovers" if record.epoch > before.epoch else "transfers")
        elif record.epoch == before.epoch:
            story.count("evictions", len({*before.in_sync} - {*record.in_sync}))
            story.count("admissions", len({*record.in_sync} - {*before.in_sync}))

    def _note_nodes(self) -> None:
        for node in self._nodes:
            service = node.service
            if node.alive and isinstance(service, IngestService) and service.started:
                self._known[service.lease.node.node_id] = node

    def _logs(self) -> dict[NodeId, list[Held]]:
        return {node: self._log(program) for node, program in self._known.items()}

    def _log(self, program: Program) -> list[Held]:
        """What lies on the platters of a node, in its order."""
        assert program.disk is not None
        directory = stream_dir(program.data_dir, self._stream_id)
        found: list[Held] = []
        for name, data in sorted(program.disk.on_platters(directory).items()):
            first = parse_segment_name(name)
            if first is None:
                continue
            before, held = self._parsed.get((program.name, name), _NOTHING)
            if before != data:
                held = list(_walked(first, data))
                self._parsed[program.name, name] = data, held
            found += held
        return found

    def _check_places(self, logs: Iterable[list[Held]]) -> None:
        by_place: dict[tuple[int, int, int], bytes] = {}
        for log in logs:
            for one in log:
                same = by_place.setdefault(one[:3], one.content)
                self._require(same == one.content, f"two logs differ at {one[:3]}")

    def _check_in_sync(self, record: StreamRecord, logs: dict[NodeId, list[Held]]) -> None:
        upto = max(self._expected.told_next, self._shown(record))
        if not record.dirty or upto <= record.published_next:
            return
        spans: dict[str, list[tuple[int, int, bytes]]] = {}
        for node in record.in_sync:
            if node not in self._known:
                continue
            name = self._known[node].name
            wanted = [
                one[3:]
                for one in logs[node]
                if one.first_offset < upto and one.next_offset > record.published_next
            ]
            whole = bool(wanted) and wanted[0][0] <= record.published_next
            whole = whole and all(one[1] == later[0] for one, later in pairwise(wanted))
            self._require(
                whole and wanted[-1][1] >= upto,
                f"{name} is in sync, and lacks some of {record.published_next} to {upto}: "
                f"{[one[:2] for one in wanted]}",
            )
            spans[name] = wanted
        for (one, mine), (other, theirs) in pairwise(spans.items()):
            self._require(mine == theirs, f"{one} and {other} are in sync, and differ")

    def _shown(self, record: StreamRecord) -> int:
        """Up to where the owner shows records, if this is its owner."""
        if self._ground.is_blind:
            return 0
        for node in self._nodes:
            service = node.service
            if not node.alive or not isinstance(service, IngestService) or not service.started:
                continue
            appender = service.streams.find(self._stream_id)
            if appender is None or appender.stopped is not None or not appender.claim.held:
                continue
            if appender.claim.epoch == record.epoch:
                return appender.log.committed_next
        return 0


def _numbers(chunk: bytes) -> Iterator[tuple[str | None, int]]:
    """The producers of a chunk, each with its last number there."""
    header = decode_header(chunk)
    for entry in (
        decode_trailer(trailer_of(header, memoryview(chunk))) if header.record_count else ()
    ):
        count = entry.record_count if entry.mode is AppendMode.STRICT else 1
        yield entry.producer_id, entry.base_sequence + count - 1


def _walked(first: int, data: bytes) -> Iterator[Held]:
    position = HEADER_SIZE
    try:
        for header, chunk in split_chunks(data[HEADER_SIZE:]):
            upto = header.first_offset + header.record_count
            yield Held(header.epoch, first, position, header.first_offset, upto, bytes(chunk))
            position += header.total_size
    except Corrupt:
        # What was not synced whole.
        return
