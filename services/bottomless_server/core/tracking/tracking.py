"""What a stream remembers of its producers and keys: made of committed chunks and nothing else.

The same function takes a chunk when it was just committed and when a log is read again, so
that state after a restart is the state before it. Nothing else changes it: an append that
failed was never here.

All of it is bounded: the last few appends of each producer; so many producers, of which the one
that was silent for longest goes first; keys for as long as their window, and so many. What would
make another name go too early is refused before it comes (ingest/producers/places.py): no name is
forgotten within its time.

All streams of a process together have a bound as well (ingest/producers/tracking_room.py).

Tracking chunks (formats/tracking.py) in each segment keep it durable. A node that loses its disk
loses this too: no root names a snapshot of it so far.

On the record's path: beside it; asked by ingest/producers/producers.py.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from bottomless.guards import guard
from bottomless.model.chunk import AppendEntry, AppendMode, TrackedEntry, TrackedKind
from bottomless_server.core.tracking.known_producers import (
    KEY_SIZE,
    KeyUse,
    Producer,
    Remembered,
    TrackingBounds,
    key_use_of,
    producer_of,
    remembered_of,
    tracked,
    tracked_key,
    with_append,
)
from bottomless_server.core.tracking.open_commits import OpenCommits, is_of_parts


class SharedRoom(Protocol):
    """Memory for all streams of a process; see ingest/producers/tracking_room.py."""

    elapsed: int
    """The time of this node, in ms of a clock that never goes back."""

    def count(self, tracking: "Tracking", size: int, /) -> None: ...

    def fits(self, size: int, /) -> bool: ...


class _ChunkEntry(NamedTuple):
    entry: AppendEntry
    first_offset: int


class Tracking:
    """What one stream remembers. Its appender changes it; others look at it in the same loop."""

    def __init__(self, bounds: TrackingBounds) -> None:
        self.bounds = bounds
        self.producers: OrderedDict[str, Producer] = OrderedDict()
        """Producers by name; the one that was silent for longest comes first."""
        self.keys: OrderedDict[bytes, KeyUse] = OrderedDict()
        """Uses of keys by the hash of the key; the oldest comes first."""
        self.open_commits = OpenCommits()
        """Commits that are begun; no new name takes the places of their names."""
        self._unfinished: list[_ChunkEntry] = []
        """Entries of an append whose last chunk has not come."""
        self.room: SharedRoom | None = None
        self.busy = False
        """Whether a round is under way: it is decided and written on the ground of what is known,
        also where it has no identities, since its segment may begin with all that is known."""
        self._kept_size = 0
        """Room of what is about to be remembered."""
        self._told_size = 0

    def __bool__(self) -> bool:
        return bool(self.producers or self.keys)

    @property
    def size(self) -> int:
        """Bytes of memory of what is remembered or about to be, counted at their largest."""
        keys, producers = len(self.keys), len(self.producers)
        return keys * KEY_SIZE + producers * self.bounds.producer_size + self._kept_size

    @guard("the mark of a round that is under way")
    def begin(self) -> None:
        """A round begins, and nothing is forgotten before its end; so what may be is forgotten
        now, where there is hardly any room left."""
        if self.room is not None:
            self.room.fits(self.bounds.producer_size)
        self.busy = True

    @guard("room for what a process remembers of producers")
    def keep_room(self, size: int) -> bool:
        """Keep room for what may become known, until the round ends; False if there is none."""
        if size and self.room is not None and not self.room.fits(size):
            return False
        self._kept_size += size
        self._tell_size()
        return True

    def end(self) -> None:
        """The round is over: what room was kept for is known now, or will not be."""
        self.busy = False
        self._kept_size = 0
        self._tell_size()

    def date(self, newest: int, elapsed: int) -> None:
        """Say when what was read from a log was heard, in the time of this node.

        It was as old as the `newest` timestamp of the log says, and not what this node's wall
        clock says: a process believes the clock that it starts with, and one that is ahead then
        would make a key of a minute ago look older than its time.
        """

        def taken_at(timestamp: int) -> int:
            return elapsed - max(newest - timestamp, 0)

        for key_hash, use in self.keys.items():
            self.keys[key_hash] = use._replace(taken_at=taken_at(use.timestamp))
        for producer_id, producer in self.producers.items():
            heard = taken_at(producer.timestamp)
            self.producers[producer_id] = replace(producer, taken_at=heard)

    def key_due_at(self) -> int | None:
        """When the oldest key may be forgotten, by the time of this node; None without keys."""
        oldest = next(iter(self.keys.values()), None)
        return None if oldest is None else oldest.taken_at + self.bounds.keep_ms

    def producer_due_at(self) -> int | None:
        """When the producer that was silent longest may be forgotten; None if none may be."""
        oldest = self._silent_longest()
        return None if oldest is None else self.producers[oldest].taken_at + self.bounds.keep_ms

    def forget_key(self, elapsed: int) -> bool:
        """Forget the oldest key, if its time is over, by the time of this node."""
        due_at = self.key_due_at()
        if due_at is None or due_at > elapsed:
            return False
        self.keys.popitem(last=False)
        self._tell_size()
        return True

    def forget_producer(self, elapsed: int) -> bool:
        """Forget the producer that was silent longest, if that was long enough."""
        oldest = self._silent_longest()
        if oldest is None or elapsed - self.producers[oldest].taken_at < self.bounds.keep_ms:
            return False
        del self.producers[oldest]
        self._tell_size()
        return True

    def _silent_longest(self) -> str | None:
        return next((one for one in self.producers if not self.open_commits.needs(one)), None)

    def _tell_size(self) -> None:
        size = self.size
        if self.room is not None:
            self.room.count(self, size - self._told_size)
        self._told_size = size

    def key(self, key_hash: bytes) -> KeyUse | None:
        """The use of a key within its window, by the time of this node."""
        use = self.keys.get(key_hash)
        return None if use is None or use.taken_at <= self.over_before else use

    def take_chunk(
        self,
        first_offset: int,
        timestamp: int,
        entries: Sequence[AppendEntry],
        *,
        more_follows: bool = False,
    ) -> None:
        """Take a committed data chunk, in the order of the log."""
        for entry in entries:
            if entry.mode is not AppendMode.PLAIN:
                self._unfinished.append(_ChunkEntry(entry, first_offset + entry.first_record))
                if not more_follows:
                    self._take_append(timestamp)
        self._forget_oldest()

    def take_tracked(self, entries: Sequence[TrackedEntry]) -> None:
        """Take a committed tracking chunk: each entry in place of what it names."""
        producer_id = ""
        for entry in entries:
            if entry.kind is TrackedKind.APPEND:
                producer = self.producers[producer_id]
                appends = (*producer.appends, remembered_of(entry))
                self.producers[producer_id] = replace(
                    producer, appends=appends[-self.bounds.append_count_max :]
                )
            elif entry.kind is TrackedKind.KEY:
                assert entry.idempotency_hash is not None
                self._take_key(entry.idempotency_hash, key_use_of(entry))
            else:
                assert entry.producer_id is not None
                producer_id = entry.producer_id
                self.producers.pop(producer_id, None)
                if entry.kind is TrackedKind.PRODUCER:
                    self.producers[producer_id] = producer_of(entry, self._elapsed)
        self._note_open(entries)
        self._forget_oldest()

    def _note_open(self, entries: Sequence[TrackedEntry]) -> None:
        """Note which commits are open, after a tracking chunk; only one that says everything names
        parts that are known.
        """
        named = [one.producer_id for one in entries if is_of_parts(one.producer_id or "")]
        for name in filter(None, named):
            parts = self.producers.get(name)
            if parts is None or parts.last_sequence is None:
                self.open_commits.note_forgotten(name)
            else:
                self.open_commits.note_part(name, parts.epoch)
        if named:
            self.open_commits.note_wholes(
                (producer_id, known.last_sequence)
                for producer_id, known in self.producers.items()
                if known.mode is AppendMode.TRANSACTION
                and known.last_sequence is not None
                and not is_of_parts(producer_id)
            )

    def snapshot(self) -> list[TrackedEntry]:
        """Everything, as a tracking chunk says it."""
        entries = [
            entry
            for producer_id, producer in self.producers.items()
            for entry in tracked(producer_id, producer)
        ]
        entries += [tracked_key(key_hash, use) for key_hash, use in self.keys.items()]
        return entries

    def _take_append(self, timestamp: int) -> None:
        entries, self._unfinished = self._unfinished, []
        entry, first_offset = entries[0]
        count = sum(one.entry.record_count for one in entries)
        if entry.mode is AppendMode.KEY:
            if entry.idempotency_hash is not None:
                use = KeyUse(entry.body_hash, entry.body_crc, count, first_offset, timestamp)
                self._take_key(entry.idempotency_hash, use)
            return
        if entry.producer_id is None:
            return
        append = Remembered(
            entry.base_sequence,
            count,
            entry.body_crc,
            entry.producer_epoch,
            first_offset,
            timestamp,
        )
        before = self.producers.pop(entry.producer_id, None)
        self.producers[entry.producer_id] = self._after(before, entry.mode, append)
        if is_of_parts(entry.producer_id):
            self.open_commits.note_part(entry.producer_id, append.epoch)
        elif entry.mode is AppendMode.TRANSACTION:
            self.open_commits.note_whole(entry.producer_id, append.sequence)

    def _after(self, before: Producer | None, mode: AppendMode, append: Remembered) -> Producer:
        last = append.sequence
        if mode is AppendMode.STRICT:
            last += append.record_count - 1
        begins = before is None or before.last_sequence is None or append.epoch > before.epoch
        kept = () if before is None else before.appends
        return Producer(
            mode=mode,
            epoch=append.epoch,
            last_sequence=last,
            epoch_sequence=append.sequence if begins or before is None else before.epoch_sequence,
            timestamp=append.timestamp,
            appends=with_append(kept, mode, append)[-self.bounds.append_count_max :],
            taken_at=self._elapsed,
        )

    def _take_key(self, key_hash: bytes, use: KeyUse) -> None:
        self.keys.pop(key_hash, None)
        self.keys[key_hash] = use._replace(taken_at=self._elapsed)

    @property
    def _elapsed(self) -> int:
        """The time of this node; what is read before there is one is dated when it is known."""
        return 0 if self.room is None else self.room.elapsed

    @property
    def over_before(self) -> int:
        """What was heard at this time of the node, or before it, may be forgotten."""
        return self._elapsed - self.bounds.keep_ms

    def _forget_oldest(self) -> None:
        """Forget what is beyond the bounds; called after a whole chunk, so that everything that the
        chunk names has its place before another name loses one. While a log is read nothing is
        forgotten for its age, which is known only at its end (`date`)."""
        while len(self.producers) > self.bounds.producer_count_max:
            # Where bounds were made smaller all names may be needed.
            del self.producers[self._silent_longest() or next(iter(self.producers))]
        while len(self.keys) > self.bounds.key_count_max:
            self.keys.popitem(last=False)
        while self.room is not None and self.forget_key(self._elapsed):
            pass
        self._tell_size()
