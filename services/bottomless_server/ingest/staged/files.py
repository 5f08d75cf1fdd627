"""The files of staged batches: written whole, read with their checksums, found again. Blocking.

batches.py says what is on disk after a crash at each step; it calls these in threads.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from bottomless.errors import Corrupt, InvalidRequest
from bottomless.formats.checks import check
from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId, parse_stream_id
from bottomless_server.ingest.producers.commit_plan import (
    PLAN_SIZE_MAX,
    PLAN_SUFFIX,
    CommitPlan,
    StagedBatch,
    decode_plan,
    encode_plan,
    parse_file_name,
    plan_name,
)
from bottomless_server.ingest.records.frames import stored_frames
from bottomless_server.node.file_calls import (
    FileCalls,
    make_dir_durable,
    read_file,
    replace_file,
    write_all,
)

log = structlog.get_logger(__name__)


class DamagedPlan(NamedTuple):
    """A plan that cannot be read; the name of its file tells whose it is."""

    file_name: str


StagedFile = StagedBatch | CommitPlan | DamagedPlan


class StagedFiles:
    """The files of staged batches, in one directory that has another one for each stream."""

    def __init__(self, files: FileCalls, top: Path) -> None:
        self._files = files
        self._top = top

    def batch_path(self, stream_id: StreamId, batch: StagedBatch) -> Path:
        return self._top / stream_id / batch.file_name

    def file_path(self, stream_id: StreamId, name: str) -> Path:
        return self._top / stream_id / name

    def plan_path(self, stream_id: StreamId, producer_id: str) -> Path:
        return self.file_path(stream_id, plan_name(producer_id))

    def write(
        self, stream_id: StreamId, batch: StagedBatch, data: Sequence[bytes | memoryview]
    ) -> None:
        """Write a batch; returns when its file is there and synced.

        Raises:
            OSError: it is not there, or not for sure.
        """
        path = self.batch_path(stream_id, batch)
        # Each time: a start removes a directory that holds nothing.
        self._files.make_dir(path.parent)
        fresh = path.with_name(f"{path.name}.new")
        fd = self._files.open(fresh, create=True)
        try:
            write_all(self._files, fd, data, 0)
            self._files.fdatasync(fd)
        except OSError:
            with suppress(OSError):
                self._files.unlink(fresh)
            raise
        finally:
            self._files.close(fd)
        self._files.rename(fresh, path)
        self._files.fsync_dir(path.parent)
        self._files.fsync_dir(self._top)

    def read(self, stream_id: StreamId, batches: Sequence[StagedBatch]) -> tuple[Frame, ...]:
        """Read staged batches back, and verify them.

        Raises:
            Corrupt: the disk gives something else than it was given.
            OSError
        """
        return tuple(frame for batch in batches for frame in self._load(stream_id, batch))

    def save_plan(self, stream_id: StreamId, plan: CommitPlan) -> None:
        path = self.plan_path(stream_id, plan.producer_id)
        replace_file(self._files, path, encode_plan(plan))

    def remove(self, files: Sequence[tuple[Path, int]]) -> list[tuple[Path, int]]:
        """Remove files; returns those that cannot be removed now."""
        left = []
        for path, size in files:
            try:
                with suppress(FileNotFoundError):
                    self._files.unlink(path)
            except OSError as error:
                log.warning("a staged file was not removed", error=str(error))
                left.append((path, size))
        return left

    def scan(self) -> Iterator[tuple[StreamId, StagedFile]]:
        """What an earlier process has left; what that one had not finished is removed.

        The directory has a durable name afterwards: the sync of a file in it says nothing of that.

        Raises:
            OSError: the disk does not work.
        """
        make_dir_durable(self._files, self._top)
        for name in self._files.names(self._top):
            try:
                stream_id = parse_stream_id(name)
            except InvalidRequest:
                continue
            yield from ((stream_id, found) for found in self._scan_stream(self._top / name))
            with suppress(OSError):
                # Refused where it still holds something.
                self._files.remove_dir(self._top / name)

    def _scan_stream(self, directory: Path) -> Iterator[StagedFile]:
        for name in self._files.names(directory):
            batch = parse_file_name(name)
            if batch is not None:
                yield batch
            elif name.endswith(PLAN_SUFFIX):
                try:
                    yield decode_plan(read_file(self._files, directory / name, PLAN_SIZE_MAX))
                except Corrupt as error:
                    log.warning("the plan of a commit is damaged", error=str(error))
                    yield DamagedPlan(name)
            elif name.endswith(".new"):
                self._files.unlink(directory / name)

    def _load(self, stream_id: StreamId, batch: StagedBatch) -> list[Frame]:
        path = self.batch_path(stream_id, batch)
        frames = stored_frames(read_file(self._files, path, batch.size))
        count = sum(frame.record_count for frame in frames)
        check(
            "staged batch",
            (count, len(frames)) == (batch.record_count, batch.frame_count),
            "it does not hold what its name says",
        )
        return frames
