"""One task of Spark: read a share of the plan where it is best read, and count it.

A slice is read from its object, on the ways that `ways.py` knows. In mode auto, an object
that is gone or out of this worker's reach is read on the next way from the first record
that is still missing, so that no record comes twice.

On the record's path: after shared/bottomless/spark/plan.py, before
shared/bottomless/spark/source.py.
"""

import gc
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import orjson
import pyarrow as pa

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.spark.fragments import read_slice
from bottomless.spark.options import Mode
from bottomless.spark.pages import read_pages
from bottomless.spark.plan import Share, Slice
from bottomless.spark.rows import RowShape, bounded
from bottomless.spark.service import Source
from bottomless.spark.store import Counts, StorePlace
from bottomless.spark.ways import Ways


@dataclass(frozen=True, slots=True)
class Task:
    """What every task of one DataFrame has in common."""

    source: Source
    schema: pa.Schema
    mode: Mode
    verify_checksums: bool
    ca: str | None
    """File of certificates that presigned URLs are trusted with."""
    metrics_dir: str | None


def read_share(task: Task, share: Share, place: StorePlace | None) -> Iterator[pa.RecordBatch]:
    """Every record of the share, in order, in batches that Spark takes as they are."""
    _settle_worker()
    counts = Counts()
    try:
        for batch in bounded(_read(task, share, place, counts)):
            counts.record_count += batch.num_rows
            counts.batch_count += 1
            yield batch
    finally:
        _leave_counts(task.metrics_dir, counts)


def _read(
    task: Task, share: Share, place: StorePlace | None, counts: Counts
) -> Iterator[pa.RecordBatch]:
    shape = RowShape(task.schema)
    ways = Ways(task.mode, task.source, share.next_offset, place, task.ca, counts)
    offset = share.first_offset
    for piece in share.slices:
        if not any(ways.open()):
            break
        yield from _read_piece(task, piece, ways, shape, counts)
        offset = piece.next_offset
    # The tail, or all that is left where only the reader is: in one go, since its pages need
    # not end where fragments do.
    yield from read_pages(task.source, offset, share.next_offset, shape, counts)


def _read_piece(
    task: Task, piece: Slice, ways: Ways, shape: RowShape, counts: Counts
) -> Iterator[pa.RecordBatch]:
    offset = piece.first_offset
    for way in ways.open():
        rest = piece._replace(first_offset=offset)
        try:
            for placed in read_slice(way.objects, rest, shape, verify=task.verify_checksums):
                offset = placed.next_offset
                yield placed.rows
        except NotFound as error:
            if task.mode is Mode.AUTO:
                break
            if error.code is Code.DATA_MISSING:
                raise _lost(offset, piece.next_offset) from error
            raise
        except Unavailable:
            if task.mode is not Mode.AUTO:
                raise
            ways.leave(way)
        else:
            return
    yield from read_pages(task.source, offset, piece.next_offset, shape, counts)


def _lost(first_offset: int, next_offset: int) -> NotFound:
    return NotFound(
        "an object is not there (any more), so these records cannot be read this way",
        code=Code.DATA_MISSING,
        facts={"first_offset": first_offset, "next_offset": next_offset},
    )


def _leave_counts(metrics_dir: str | None, counts: Counts) -> None:
    # A file a task, under a name of its own: a task that Spark repeats leaves two, since
    # it did read twice. Nobody's answer hangs on them.
    if metrics_dir is not None:
        path = Path(metrics_dir) / f"{uuid.uuid4().hex}.json"
        path.write_bytes(orjson.dumps(asdict(counts)))


def sum_counts(metrics_dir: str | Path) -> Counts:
    """What all tasks together read that left their counts in this directory."""
    total = Counts()
    for path in Path(metrics_dir).glob("*.json"):
        for name, value in orjson.loads(path.read_bytes()).items():
            setattr(total, name, getattr(total, name) + value)
    return total


@cache
def _settle_worker() -> None:
    """Take what was imported so far out of garbage collection, once a worker process.

    Workers are forked and collect often; walking all modules each time takes longer than
    decoding a small task's batches.
    """
    gc.collect()
    gc.freeze()
