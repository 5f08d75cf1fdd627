"""A super stream as one DataFrame: each of its partitions is read as a stream by itself is.

A position is that of all partitions together, one entry a partition in the map that a checkpoint
keeps. What a super stream gets later is read from its first record on: partitions are listed anew
before each micro-batch, and one that the last position does not name begins there.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.options import Options, options_of_partition
from bottomless.spark.partitions import SharePartition, read_partition
from bottomless.spark.positions import began_at, beginning_of, entry_of, joined, position_of
from bottomless.spark.snapshot import Snapshot, take_snapshot
from bottomless.spark.stream import BottomlessStreamReader, default_limit

if TYPE_CHECKING:
    from bottomless.client import Client, Partition

_LIST_SECONDS: Final = 1.0
"""The least time between two looks whether the super stream has grown."""


class PartitionSnapshot(NamedTuple):
    """One partition of a super stream, and the offsets of it that a DataFrame holds."""

    number: int
    stream: StreamName
    snapshot: Snapshot


def list_partitions(options: Options) -> "list[Partition]":
    """Ask which partitions the super stream has now.

    Raises:
        NotFound: there is no such super stream.
    """
    from bottomless.client import Client  # noqa: PLC0415  # executors have no library for it

    with Client(options.url) as client:
        return client.partitions(options.stream)


def take_super_snapshot(options: Options) -> list[PartitionSnapshot]:
    """Ask for the bounds of each partition, and resolve the options against them.

    Raises:
        OffsetGone: a partition does not hold an offset that was asked for.
        NotFound: there is no such super stream.
    """
    found = list_partitions(options)
    return [
        PartitionSnapshot(
            one.index,
            StreamName(one.stream),
            take_snapshot(options_of_partition(options, one.stream, len(found))),
        )
        for one in found
    ]


def named(
    planned: Iterable[InputPartition], stream: StreamName, index: int
) -> Iterator[InputPartition]:
    """Let each part of a plan say which partition of the super stream it is of."""
    for one in planned:
        if isinstance(one, SharePartition):
            one.stream, one.index = stream, index
        yield one


class BottomlessSuperStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `readStream` of a super stream: a reader of each partition, side by side."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._partitions: dict[str, Partition] = {}
        self._readers: dict[str, BottomlessStreamReader] = {}
        self._ends_now = False
        self._opened: Client | None = None
        self._listed_at = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Find the position at which a query without a checkpoint begins.

        Raises:
            OffsetGone: a partition does not hold it, and failOnDataLoss does not allow for that.
        """
        self._list()
        return joined(reader.initialOffset() for reader in self._readers.values())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark the bound of a micro-batch that the options set."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present end of each partition: the query stops there."""
        self._list()
        self._ends_now = True
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Choose the end of the next micro-batch; it is `start` itself if there is nothing new.

        Raises:
            WrongOffset: `stream-replaced`, another stream has the name of a partition.
            OffsetGone: records were trimmed, and failOnDataLoss does not allow for that.
        """
        if not self._ends_now and time.monotonic() - self._listed_at >= _LIST_SECONDS:
            self._list()
        divided = _divided(limit, max(1, len(self._readers)))
        ends: list[dict[str, Any]] = []
        moved = False
        for stream, reader in self._readers.items():
            known = entry_of(start, stream)
            begin = self._beginning(stream) if known is None else known
            end = reader.latestOffset(begin, divided)
            moved = moved or end != begin
            if end != begin or known is not None:
                ends.append(end)
        # As it came: Spark compares positions as text.
        return joined(ends) if moved else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Give the known ends of all partitions for a query's reports; None if one is not known."""
        latest = [reader.reportLatestOffset() for reader in self._readers.values()]
        known = [one for one in latest if one is not None]
        if not known or len(known) < len(latest):
            return None
        began = [beginning_of(one) for one in known]
        together = joined(known)
        if None in began:
            return together
        return began_at(together, sum(one for one in began if one is not None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan what each task of a micro-batch reads, on the driver.

        Raises:
            WrongOffset: `stream-replaced`, another stream has the name of a partition.
            OffsetGone: records were trimmed, and failOnDataLoss does not allow for that.
            InvalidRequest: the position is that of another stream.
        """
        if not set(end.get("s", ())) <= set(self._readers):
            self._list()
        planned: list[InputPartition] = []
        for stream in end["s"]:
            if stream not in self._readers:
                raise InvalidRequest(
                    "the position is that of another stream", facts={"stream": stream}
                )
            begin, stop = entry_of(start, stream), entry_of(end, stream)
            assert stop is not None, "it names this stream"
            share = self._readers[stream].partitions(begin or self._beginning(stream), stop)
            planned += named(share, StreamName(stream), self._partitions[stream].index)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if not isinstance(partition, SharePartition):
            return iter(())
        return read_partition(self._options, self._schema, partition)

    def stop(self) -> None:
        """Return the leases, and close the connections."""
        for reader in self._readers.values():
            reader.stop()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _list(self) -> None:
        from bottomless.client import Client  # noqa: PLC0415  # executors have no library for it

        if self._opened is None:
            self._opened = Client(self._options.url)
        self._listed_at = time.monotonic()
        found = self._opened.partitions(self._options.stream)
        for one in found:
            if one.stream not in self._readers:
                own = options_of_partition(self._options, one.stream, len(found))
                # Of many streams that are asked one after the other none may be waited at.
                reader = BottomlessStreamReader(own, self._schema, waits=False, opened=self._opened)
                self._partitions[one.stream], self._readers[one.stream] = one, reader

    def _beginning(self, stream: str) -> dict[str, Any]:
        stream_id = StreamId(self._partitions[stream].stream_id)
        return position_of(0, StreamName(stream), stream_id)


def _divided(limit: ReadLimit, count: int) -> ReadLimit:
    """A bound of a micro-batch as that of each partition: together they take about as much."""
    match limit:
        case ReadMaxBytes(size):
            return ReadMaxBytes(-(-size // count))
        case ReadMaxRows(rows):
            return ReadMaxRows(-(-rows // count))
        case ReadMaxFiles(files):
            return ReadMaxFiles(-(-files // count))
    return limit
