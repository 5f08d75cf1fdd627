"""What takeovers may make a gap of, as coordination showed it, and what they have to keep."""

from support.object_keys import fragment_key

from bottomless.formats.fragment import HEADER_SIZE, decode_fragment_header
from bottomless.formats.keys import FragmentPlace
from bottomless.model.fragment import FragmentHeader
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import Intent, StreamRecord, epoch_at, gap_due
from bottomless_server.drives.memory import MemoryDrive
from simulation.drives import AllDrives, place_name


class Fences:
    """Of one stream. A fence is the EXEC by which a home loses the stream before its gap is there.

    A gap was accepted as lost only if a fence said so before: it begins where that fence found the
    end of what was published, or after it, and ends where the home had reserved.
    """

    def __init__(self, stream_id: StreamId, drive: MemoryDrive | AllDrives) -> None:
        self._stream_id = stream_id
        self._drive = drive
        self._accepted: set[tuple[int, int]] = set()
        """Published next offset at the fence, and the end of its gap."""
        self._before: StreamRecord | None = None
        """The record when it was looked at last, if a gap was due in it."""
        self._durable: dict[Uid, FragmentHeader] = {}
        """What lay in the bucket under live intents when the fence came."""

    def note(self, record: StreamRecord) -> None:
        """Look at a record as it is now."""
        end = gap_due(record)
        if end is None:
            self.forget()
            return
        if self._before is None or self._before.epoch != record.epoch:
            self._accepted.add((record.published_next, end))
            self._durable = {
                intent.uid: header
                for intent in record.intents
                if (header := self._header(intent)) is not None
            }
        self._before = record

    def forget(self) -> None:
        """No takeover is under way any more, or coordination knows of none."""
        self._before = None
        self._durable.clear()

    def objection(self, first_offset: int, next_offset: int) -> str | None:
        """What is wrong with a gap that has just appeared, before `note` is told of it."""
        told = f"the gap {first_offset} to {next_offset}"
        if not any(from_ <= first_offset and end == next_offset for from_, end in self._accepted):
            return f"{told} is of no takeover that happened: {sorted(self._accepted)}"
        if self._before is None:
            return None
        record = self._before
        for intent in record.intents:
            kept = self._durable.get(intent.uid)
            if kept is None or kept.first_offset != first_offset:
                continue
            ends = {epoch_at(record, at) for at in (first_offset, kept.next_offset - 1)}
            if ends == {kept.epoch} and kept.first_timestamp >= record.last_timestamp:
                return f"{told} covers what was in the bucket, up to {kept.next_offset}"
        return None

    def _header(self, intent: Intent) -> FragmentHeader | None:
        key = fragment_key(self._stream_id, intent.first_offset, intent.uid)
        found = self._drive.peek(place_name(FragmentPlace(intent.drive, key)))
        return None if found is None else decode_fragment_header(found[:HEADER_SIZE])
