"""One task of Spark: read a share of the plan where it is best read, and count it.

A slice is read from its object, on the ways that `ways.py` knows. In mode auto, an object that is
gone or out of this worker's reach is read on the next way from the first record that is still
missing, so that no record comes twice.

On the record's path: after shared/bottomless/spark/plan.py, before
shared/bottomless/spark/source.py.
"""

import gc
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from bottomless.errors import Code, NotFound, OffsetGone, StoreError, Unavailable
from bottomless.spark.fragments import Placed, read_slice
from bottomless.spark.leases import Lease, renew_lease
from bottomless.spark.losses import Losses
from bottomless.spark.options import Mode, Reading
from bottomless.spark.pages import read_pages
from bottomless.spark.plan import Share, Slice
from bottomless.spark.rows import RowShape, bounded
from bottomless.spark.service import Source, ask_json
from bottomless.spark.store import Counts, StorePlace
from bottomless.spark.ways import Way, Ways


@dataclass(frozen=True, slots=True)
class Task:
    """What every task of one plan has in common."""

    source: Source
    schema: pa.Schema
    mode: Mode
    reading: Reading = Reading()  # noqa: RUF009  # frozen
    ca: str | None = None
    """File of certificates to trust when presigned URLs are read."""
    lease: Lease | None = None
    metrics_dir: str | None = None
    partition: int | None = None
    """The partition of a super stream that is read."""


def read_share(task: Task, share: Share, place: StorePlace | None) -> Iterator[pa.RecordBatch]:
    """Read every record of the share, in order, in batches that Spark takes as they are."""
    settle_worker()
    renew_lease(task.source, task.lease)
    counts = Counts()
    try:
        for batch in bounded(_Work(task, share, place, counts).read()):
            counts.record_count += batch.num_rows
            counts.batch_count += 1
            yield batch
    finally:
        leave_counts(task.metrics_dir, counts)


class _Work:
    """One task under way."""

    def __init__(self, task: Task, share: Share, place: StorePlace | None, counts: Counts) -> None:
        self._task = task
        self._share = share
        self._counts = counts
        self._shape = RowShape(
            task.schema,
            task.reading.wanted,
            bad_json_fails=task.reading.bad_json_fails,
            partition=task.partition,
        )
        self._losses = Losses(fail=task.reading.fail_on_data_loss, counts=counts)
        self._ways = Ways(task.mode, task.source, share.next_offset, place, task.ca, counts)

    def read(self) -> Iterator[pa.RecordBatch]:
        offset = self._share.first_offset
        for piece in self._share.slices:
            if not any(self._ways.open()):
                break
            yield from self._piece(piece)
            offset = piece.next_offset
        # The tail, or all that is left where only the reader is: in one go, since its pages
        # need not end where fragments do.
        yield from self._pages(offset, self._share.next_offset)

    def _piece(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        auto = self._task.mode is Mode.AUTO
        offset = piece.first_offset
        for way in self._ways.open():
            rest = piece._replace(first_offset=offset)
            try:
                for placed in self._slice(way, rest):
                    offset = placed.next_offset
                    yield placed.rows
            except (NotFound, OffsetGone) as error:
                if auto:
                    break
                self._note_gone(offset, piece.next_offset, error)
                return
            except Unavailable:
                if not auto:
                    raise
                self._ways.leave(way)
            else:
                return
        yield from self._pages(offset, piece.next_offset)

    def _slice(self, way: Way, piece: Slice) -> Iterator[Placed]:
        return read_slice(
            way.objects,
            piece,
            self._shape,
            self._task.reading,
            self._note_corrupt,
            self._note_left_out,
        )

    def _pages(self, first_offset: int, next_offset: int) -> Iterator[pa.RecordBatch]:
        task = self._task
        return read_pages(
            task.source, first_offset, next_offset, self._shape, self._counts, self._losses
        )

    def _note_corrupt(self, offset_count: int) -> None:
        self._counts.corrupt_offsets += offset_count

    def _note_left_out(self, size: int) -> None:
        self._counts.left_out_bytes += size

    def _note_gone(self, first_offset: int, next_offset: int, error: StoreError) -> None:
        """Note that an object that is not there was trimmed, or raise that it is missing."""
        if error.code not in {Code.DATA_MISSING, Code.OFFSET_TRIMMED}:
            raise error
        floor = error.facts.get("first_offset", first_offset)
        if error.code is Code.DATA_MISSING and not self._task.reading.fail_on_data_loss:
            floor = ask_json(self._task.source, "offsets", {})["first_offset"]
        assert isinstance(floor, int)
        self._losses.note(first_offset, min(floor, next_offset), error)
        if floor < next_offset:
            raise NotFound(
                "an object is not there (any more), so these records cannot be read this way",
                code=Code.DATA_MISSING,
                facts={"first_offset": max(first_offset, floor), "next_offset": next_offset},
            ) from error


def leave_counts(metrics_dir: str | None, counts: Counts) -> None:
    """Write down what a task read, or what a plan leaves out, where the job wants to know it.

    Raises:
        OSError: the directory cannot be written to.
    """
    # A file a task, under a name of its own: a task that Spark repeats leaves two, since
    # it did read twice. Nobody's answer hangs on them.
    if metrics_dir is not None:
        path = Path(metrics_dir) / f"{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(asdict(counts)))


def sum_counts(metrics_dir: str | Path) -> Counts:
    """What all tasks together read that left their counts in this directory."""
    total = Counts()
    for path in Path(metrics_dir).glob("*.json"):
        for name, value in json.loads(path.read_bytes()).items():
            setattr(total, name, getattr(total, name) + value)
    return total


@cache
def settle_worker() -> None:
    """Take everything imported so far out of garbage collection, once per worker process.

    Workers are forked and collect often; walking all modules each time takes longer than decoding a
    small task's batches.
    """
    gc.collect()
    gc.freeze()
