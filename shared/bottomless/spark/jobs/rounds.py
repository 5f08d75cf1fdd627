"""Write rounds into a stream: each is one append with a number, and is stored once.

This is for jobs that write and decide by themselves how their work is cut: a given number always
stands for the same records in the same order. Workers stage what they have, as the sink's do
(bottomless/spark/sink.py), and the driver commits it.

What is there after a crash at each step: staged bodies, which expire; or the round, or the first
parts of a large one, which are completed when the round is done again. How far a job has come is
what the target remembers about its producer, so nothing is kept elsewhere.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import ByteType, StructType

from bottomless.errors import Code, NotFound, Outcome
from bottomless.spark.jobs.tasks import answer_schema, collected
from bottomless.spark.sink import NUMBERS_OF_A_BATCH, StagedRows, commit_staged, stage_rows
from bottomless.spark.sink_rows import check_columns
from bottomless.spark.staging import Target, last_number

ROUND_SIZE: Final = 256 * 1024 * 1024
"""Bytes of a round, roughly. All that is staged for a stream has a bound, a few times this one."""
_STAGE_COUNT_MAX: Final = 3
STAGED: Final = answer_schema({"staged_ids": pa.list_(pa.string()), "record_count": pa.int64()})


def rounds_done(target: Target, producer_id: str) -> int:
    """Count the rounds that were begun; the last of them may lack a part. It is 0 for none."""
    number = last_number(target, producer_id)
    return 0 if number is None else number // NUMBERS_OF_A_BATCH + 1


def write_frame(frame: DataFrame, target: Target, producer_id: str, number: int) -> int:
    """Write the rows of a frame as one round, in the order of its partitions.

    Returns their count.

    Raises:
        InvalidRequest: the columns of the frame are not those of records.
    """
    check_columns(_without_content(frame.schema))
    staged = frame.mapInArrow(
        partial(stage_batches, target), "staged_ids array<string>, record_count bigint"
    )
    return committed(target, producer_id, number, lambda: collected(staged).to_pylist())


def committed(
    target: Target, producer_id: str, number: int, work: Callable[[], list[dict[str, object]]]
) -> int:
    """Let tasks stage a round, and commit it; returns how many records it has.

    It is staged once more if what was staged is lost, as it is when the stream's owner hands the
    stream to another node.

    Raises:
        StoreError: the server's answer says why; repeating the round is safe.
    """
    for left in reversed(range(_STAGE_COUNT_MAX)):
        try:
            return commit_round(target, producer_id, number, work())
        except NotFound as error:
            lost = error.code is Code.STAGED_NOT_FOUND and error.outcome is Outcome.NONE
            if not lost or not left:
                raise
    raise AssertionError("the last attempt raises")


def stage_batches(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task; gives one row with the ids to commit, or none."""
    staged = stage_rows(target, batches)
    if staged.staged_ids:
        row = {"staged_ids": staged.staged_ids, "record_count": staged.record_count}
        yield pa.RecordBatch.from_pylist([row], schema=STAGED)


def commit_round(
    target: Target, producer_id: str, number: int, rows: list[dict[str, object]]
) -> int:
    """Commit what the tasks of a round have staged; no request is made if that is nothing."""
    staged = [StagedRows(**row) for row in rows]  # type: ignore[arg-type]  # as staged above
    commit_staged(target, producer_id, number * NUMBERS_OF_A_BATCH, staged)
    return sum(one.record_count for one in staged)


def _without_content(schema: StructType) -> StructType:
    """What the kind of a value is may be handed on from one stream to another."""
    return StructType(
        [
            field
            for field in schema.fields
            if field.name != "content" or not isinstance(field.dataType, ByteType)
        ]
    )
