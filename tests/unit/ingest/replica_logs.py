"""Logs of an owner and of those that follow it, on disks in memory that fail and lose their power."""

import errno
import os
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from support.harness import StandingClocks
from support.power_loss import PowerLossDisk

from bottomless.model.chunk import AppendMode, TrackedEntry, TrackedKind
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.local.freeing import DiskUse, FreeingBounds
from bottomless_server.ingest.local.sound_logs import SoundLogs
from bottomless_server.ingest.log.core.batcher import Round, seal_round, seal_state
from bottomless_server.ingest.log.layout import CHECKPOINT_NAME, aside_dir, stream_dir, streams_dir
from bottomless_server.ingest.log.recovery import recover
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import RollBounds, SegmentLog
from bottomless_server.ingest.log.whole_syncs import WholeSyncs
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.replicas.context import FollowingContext
from bottomless_server.ingest.replicas.following import Following
from bottomless_server.ingest.replicas.pieces import (
    ask_after,
    ends_of,
    opening_of,
    read_piece,
)
from bottomless_server.node.core.following import NEVER_OWNED, LastOwned, OpenRefusal
from bottomless_server.node.core.sends import Piece
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.protocol.replica import Answer, EpochEnd, Item, Opening, Place, Taken
from bottomless_server.runtime.base.shared_hops import SharedHops
from unit.ingest.harness import STREAM

T = TypeVar("T")

ROOT: Final = Path("/disk")
ROLL: Final = RollBounds(size_max=1_500, age_ms_max=10**9, chunk_count_max=10**6)
"""Of some rounds each."""
CHUNK_SIZE_MAX: Final = 1_000


class OwnerLog:
    """The log of an owner; `claim` begins the next epoch."""

    def __init__(self, stream_id: StreamId = STREAM) -> None:
        self.stream_id = stream_id
        self.disk = PowerLossDisk(ROOT)
        self.chance = random.Random(1)
        self.epoch = 0
        self.published_next = 0
        self.ends: tuple[EpochEnd, ...] = ()
        for path in (streams_dir(ROOT), stream_dir(ROOT, stream_id)):
            self.disk.make_dir(path)
        self.claim()

    def claim(self) -> None:
        """Recover what lies here, as a new owner does."""
        directory = stream_dir(ROOT, self.stream_id)
        found = recover(self.disk, directory, self.stream_id, 0)
        self.log = SegmentLog(
            self.disk,
            directory,
            self.stream_id,
            ROLL,
            segments=found.segments,
            next_offset=found.next_offset,
            last_timestamp=found.last_timestamp,
        )
        self.epoch += 1
        self.ends = ends_of(self.log)
        self.is_shown = True
        """Whether the others are told that all of them had this at the claim, so that nobody has more."""

    def forget(self, keep: int) -> None:
        """Lose all segments but the first ones, as a disk that comes back older."""
        directory = self.log.directory
        self.log.close()
        for segment in self.log.segments[keep:]:
            for kind in ("segment", "index"):
                self.disk.unlink(directory / f"{segment.first_offset:020d}.{kind}")

    def append(self, *sizes: int) -> None:
        """One round for each size: one record of so many bytes, or several in a group of chunks."""
        for size in sizes:
            parts = [min(500, size - start) for start in range(0, size, 500)]
            if size <= CHUNK_SIZE_MAX:
                parts = [size]
            rows = Rows(
                [self.chance.randbytes(part) for part in parts], [Content.BYTES] * len(parts)
            )
            self._write(Append(len(parts), rows.size, 7, rows))

    def write_nothing(self) -> None:
        """A chunk without records, as of changes of what is known of producers."""
        first, timestamp = self.log.synced_next, self.log.last_timestamp + 1
        forgotten = TrackedEntry(TrackedKind.FORGOTTEN, AppendMode.PLAIN, 0, 0, 0, 0, 0, 0, 0, "p")
        sealed = seal_state([forgotten], first_offset=first, timestamp=timestamp, epoch=self.epoch)
        self._add(Round([sealed], [], timestamp, first))

    def _write(self, append: Append) -> None:
        self._add(
            seal_round(
                [append],
                next_offset=self.log.synced_next,
                timestamp=self.log.last_timestamp + 1,
                epoch=self.epoch,
                chunk_size_max=CHUNK_SIZE_MAX,
            )
        )

    def _add(self, sealed: Round) -> None:
        durable = self.log.sync(self.log.write(sealed, self.epoch, 0))
        self.log.extend(durable)
        self.log.commit(durable)

    def free(self, count: int) -> None:
        """Free the oldest segments, once they are published."""
        for segment in self.log.segments[:count]:
            self.published_next = max(self.published_next, segment.next_offset)
            self.log.forget(segment)
            self.log.remove(segment)

    @property
    def opening(self) -> Opening:
        return opening_of(
            self.log, self.epoch, self.ends, (self.published_next, 1), shown=self.is_shown
        )

    @property
    def files(self) -> dict[str, bytes]:
        return files_of(self.disk, self.stream_id)

    def piece(self, end: Place | None, size_max: int = 1) -> Piece | None:
        ask = ask_after(self.log, end, self.published_next, size_max)
        return None if ask is None else read_piece(self.disk, ask)

    def item(self, piece: Piece | None, committed_next: int = 0) -> Item:
        """A piece on its way; None carries bounds alone."""
        return Item(
            self.stream_id,
            self.epoch,
            Place(0, 0) if piece is None else piece.place,
            committed_next,
            self.published_next,
            1,
            begins=piece is not None and piece.begins,
            before=0 if piece is None else piece.before,
            data=b"" if piece is None else piece.data,
        )


class OneLife:
    """The disk as one process sees it; it sees nothing after its death, whatever its threads still do."""

    def __init__(self, disk: PowerLossDisk) -> None:
        self._disk = disk
        self.alive = True

    def __getattr__(self, name: str) -> Any:
        if not self.alive:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return getattr(self._disk, name)


class AtOnce(Executor):
    """Makes each call when it is asked for: no thread has to come by for it on a busy machine."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 it is the caller's
            future.set_exception(error)
        return future


class HereAlone:
    """A node that owns nothing; a test says what its record says."""

    def __init__(self) -> None:
        self.in_sync = False
        self.owned: int | None = None
        self.was_owned = NEVER_OWNED
        self.stops = 0

    def owned_epoch(self, _: StreamId) -> int | None:
        return self.owned

    def note_followed(self, _: StreamId) -> None:
        pass

    def last_owned(self, _: StreamId) -> LastOwned:
        return self.was_owned

    async def stop(self, _: StreamId) -> None:
        self.stops += 1
        self.owned = None

    async def is_in_sync(self, _: StreamId) -> bool:
        return self.in_sync


class FollowerNode:
    """Followed streams on one disk, in one life after the other."""

    def __init__(self, *, stream_count_max: int = 100, keep_ms: int = 0) -> None:
        self.disk = PowerLossDisk(ROOT)
        self.executor = AtOnce()
        self.here = HereAlone()
        self.clocks = StandingClocks()
        self.use = DiskUse(10**12)
        self._stream_count_max = stream_count_max
        self._keep_ms = keep_ms
        for path in (streams_dir(ROOT), aside_dir(ROOT)):
            self.disk.make_dir(path)
        self.disk.fsync_dir(ROOT)
        self.begin()

    def begin(self) -> None:
        """A life of the process."""
        self.life = OneLife(self.disk)
        files = cast("FileCalls", self.life)
        rounds = RoundWriter(self.executor, 1, WholeSyncs(files, ROOT, "auto"))
        rounds.open()
        context = FollowingContext(
            files=files,
            data_dir=ROOT,
            executor=self.executor,
            hops=SharedHops(self.executor, 1),
            rounds=rounds,
            clocks=self.clocks.clocks(),
            disk=self.use,
            freeing=FreeingBounds(self._keep_ms, 0, 10**9, 10**9),
            here=self.here,
            sound=SoundLogs(),
        )
        self.following = Following(
            context, stream_count_max=self._stream_count_max, open_log_count_max=10
        )

    def die(self, chance: random.Random | None = None) -> None:
        """The process is killed; with `chance` the machine loses its power."""
        self.life.alive = False
        self.disk.before = nothing
        if chance is None:
            self.disk.end_processes()
        else:
            self.disk.lose_power(chance)
        self.use = DiskUse(10**12)
        self.begin()

    async def open(self, owner: OwnerLog) -> OpenRefusal | Place | None:
        return await self.following.open(owner.stream_id, owner.opening)

    async def take(self, *items: Item) -> list[Answer]:
        return await self.following.take(items)

    async def copy(self, owner: OwnerLog, size_max: int = 1, *, committed: bool = True) -> None:
        """Open the log, and send it everything that it lacks."""
        end = await self.open(owner)
        assert not isinstance(end, OpenRefusal)
        while (piece := owner.piece(end, size_max)) is not None:
            told = owner.log.committed_next if committed else 0
            (answer,) = await self.take(owner.item(piece, told))
            assert answer == Answer(Taken.OK, piece.end)
            end = answer.end

    def files(self, stream_id: StreamId = STREAM) -> dict[str, bytes]:
        return files_of(self.disk, stream_id)

    async def aclose(self) -> None:
        self.disk.before = nothing
        await self.following.stop()


def files_of(disk: PowerLossDisk, stream_id: StreamId) -> dict[str, bytes]:
    """All files of a log but its checkpoint."""
    directory = stream_dir(ROOT, stream_id)
    found = {}
    for name in disk.names(directory):
        if not name.startswith(CHECKPOINT_NAME):
            fd = disk.open(directory / name)
            found[name] = bytes(disk.file(fd).data)
            disk.close(fd)
    return found


def at_call(number: int, do: Callable[[], None]) -> Callable[[str, Path], None]:
    """Do something before the call of this number from now on, and before all later ones."""
    left = number

    def before(_: str, __: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            do()

    return before


def nothing(_: str, __: Path) -> None:
    pass
