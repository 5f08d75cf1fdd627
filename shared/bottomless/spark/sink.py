"""The sink `bottomless`: rows of a DataFrame become records of a stream, each once.

Tasks stage what they write: it is on the disk of the stream's owner and nobody sees it. The driver
then commits what all tasks of the batch have staged, as one append with a number. A task that runs
twice, or a batch that is tried again, stages again; only what is committed counts, and a number is
committed once, however the batch was cut. What was staged in vain expires.

Batches of a query: the producer is `txnAppId` and the id that Spark keeps in the checkpoint, the
number follows from that of the batch. If a checkpoint was removed, the new one has another id, and
begins again with batch 0: the stream then knows another producer of this `txnAppId`, and the query
fails rather than write everything once more.

A write by itself: the producer is `txnAppId` and `txnId`, so a second run with the same `txnId`
writes nothing. Without `txnId` each run is a new one.

What is there after a crash at each step: staged bodies, which expire; or the batch, or, where it is
larger than one append, its first parts, which the next attempt of the batch completes
(services/bottomless_server/ingest/staged/commits.py).
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bottomless.errors import Code, InvalidRequest, WrongOffset
from bottomless.spark.sink_options import SinkOptions
from bottomless.spark.sink_rows import check_columns, encode_bodies
from bottomless.spark.staging import Committed, Target, commit, is_known, producers, stage

APP_DEFAULT: Final = "spark"
NUMBERS_OF_A_BATCH: Final = 2**20
"""Each part of a batch has a number of its own; this is more than a batch of 64 TiB needs."""
_QUERY_ID: Final = "sql.streaming.queryId"
"""Where Spark tells a task which query it is of; the id lies in the checkpoint."""


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    staged_ids: list[str]
    record_count: int
    query_id: str | None = None


class BottomlessWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("bottomless")`, in mode append."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, overwrite=overwrite)
        self._target = Target(options.url, options.stream)
        # Made here, on the driver, and once: a commit that is asked for again is the same.
        txn_id = options.txn_id or uuid.uuid4().hex
        self._producer_id = f"{options.txn_app_id or APP_DEFAULT}.{txn_id}"

    # PySpark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:  # type: ignore[override]
        """Stage the rows of one task, in a worker."""
        return stage_rows(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what all tasks have staged as one append, on the driver."""
        commit_staged(self._target, self._producer_id, 0, _staged(messages))


class BottomlessStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("bottomless")`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, overwrite=overwrite)
        self._target = Target(options.url, options.stream)
        assert options.txn_app_id is not None
        self._app_id = options.txn_app_id

    # PySpark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:  # type: ignore[override]
        """Stage the rows of one task of a micro-batch, in a worker."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        staged = stage_rows(self._target, iterator)
        staged.query_id = query_id
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit what all tasks of a micro-batch have staged as one append, on the driver.

        Raises:
            InvalidRequest: Spark does not say which query this is.
            WrongOffset: another checkpoint has written under this `txnAppId`.
        """
        staged = _staged(messages)
        if not any(one.staged_ids for one in staged):
            return
        query_ids = {one.query_id for one in staged}
        query_id = query_ids.pop()
        if query_ids or query_id is None:
            raise InvalidRequest("Spark does not say which query this is")
        producer_id = self.producer_of(query_id)
        require_own_checkpoint(self._target, self._app_id, producer_id)
        commit_staged(self._target, producer_id, batchId * NUMBERS_OF_A_BATCH, staged)

    def producer_of(self, query_id: str) -> str:
        """Make the name of the producer that writes the batches of one checkpoint."""
        return f"{self._app_id}.{query_id}"


def stage_rows(target: Target, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    """Stage every row; no request is made if there is none."""
    staged = StagedRows([], 0)
    for body in encode_bodies(batches):
        staged.staged_ids.append(stage(target, body.data))
        staged.record_count += body.record_count
    return staged


def commit_staged(
    target: Target, producer_id: str, number: int, staged: Sequence[StagedRows]
) -> Committed | None:
    """Commit what all tasks have staged, in their order; None if they have staged nothing."""
    staged_ids = [staged_id for one in staged for staged_id in one.staged_ids]
    return commit(target, producer_id, number, staged_ids) if staged_ids else None


def require_own_checkpoint(target: Target, app_id: str, producer_id: str) -> None:
    """Refuse to begin again what another checkpoint has begun.

    Raises:
        WrongOffset: the stream knows another producer of this `txnAppId`.
    """
    if is_known(target, producer_id):
        return
    of_a_query = re.compile(re.escape(app_id) + r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    if any(of_a_query.fullmatch(name) for name in producers(target)):
        raise WrongOffset(
            "another checkpoint has written to this stream under this txnAppId; go on with that "
            "checkpoint, or take another txnAppId and write again what is there already",
            code=Code.PRODUCER_UNKNOWN,
        )


def _check(schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest("a stream is appended to: use mode append")
    check_columns(schema)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [one for one in messages if isinstance(one, StagedRows)]
