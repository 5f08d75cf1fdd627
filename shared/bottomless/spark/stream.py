"""The streaming side of the data source: micro-batches by offset, with their position in Spark.

All state is in Spark's checkpoint: a position is an offset and the id of its stream. What this
process keeps is a cache, the end at which a query with availableNow stops, and a lease. After a
crash Spark asks for the batch that it had planned by the same two positions, and a range of a
stream always holds the same records; so a restart neither loses nor repeats any record if the sink
commits with the batch.

Nothing depends on `commit` or `stop`: Spark calls the first a batch late and the second not always.
Spark makes this reader in two processes, in one of them only to read, so its constructor asks no
service.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bottomless.errors import Code, OffsetGone
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import Next
from bottomless.spark.admission import admit
from bottomless.spark.leases import Lease, return_lease
from bottomless.spark.options import Limits, Options
from bottomless.spark.pages import record_size_at
from bottomless.spark.partitions import (
    SharePartition,
    lease_range,
    list_fragments,
    plan_partitions,
    read_partition,
    stored_of,
    trimmed_to,
)
from bottomless.spark.positions import Pinned, began_at, position_of, read_position
from bottomless.spark.service import Source
from bottomless.spark.snapshot import (
    Snapshot,
    check_same_stream,
    check_start,
    naming_the_option,
    resolve,
)
from bottomless.spark.tip import Tip

if TYPE_CHECKING:
    from bottomless.client import Client, Offsets

_log: Final = logging.getLogger(__name__)


class BottomlessStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("bottomless")`."""

    def __init__(
        self,
        options: Options,
        schema: StructType,
        *,
        waits: bool = True,
        opened: "Client | None" = None,
    ) -> None:
        """`waits` says whether an idle query waits at the service for this stream; `opened` is a
        client to use, where several readers share one."""
        self._waits = waits
        self._options = options
        self._schema = schema
        self._opened = opened
        self._tip = Tip(self._ask, time.monotonic, tail=options.include_tail)
        self._initial: dict[str, Any] | None = None
        self._target: Pinned | None = None
        """Where a query with availableNow ends."""
        self._lease: tuple[Lease, float] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Find the position at which a query without a checkpoint begins.

        Raises:
            OffsetGone: the stream does not hold it, and failOnDataLoss does not allow for that.
        """
        # Spark asks again at each trigger until the first batch is done: "latest" must not
        # move meanwhile, or records between two triggers would be left out.
        if self._initial is None:
            options = self._options
            offsets = self._tip.refresh()
            starting = Next() if options.starting is None else options.starting
            first = resolve(self._client, options.stream, starting, offsets)
            fail = options.reading.fail_on_data_loss
            first = check_start(first, offsets, fail_on_data_loss=fail)
            if not options.include_tail and options.starting is None:
                first = self._tip.end(offsets)
            self._initial = self._position(first, offsets.stream_id)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark the bound of a micro-batch that the options set."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the present end of the stream: the query stops there."""
        offsets = self._tip.refresh()
        self._target = Pinned(self._tip.end(offsets), offsets.stream_id)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Choose the end of the next micro-batch; it is `start` itself if there is nothing new.

        Raises:
            WrongOffset: `stream-replaced`, another stream has taken the name.
            OffsetGone: records were trimmed, and failOnDataLoss does not allow for that.
        """
        begin = read_position(start, self._options.stream)
        if self._target is None:
            offsets = self._tip.beyond(begin.offset) if self._waits else self._tip.recent()
            end = self._tip.end(offsets)
        else:
            offsets = self._tip.recent()
            end = self._target.offset
        self._check(begin, offsets)
        if begin.offset >= end:
            # As it came: Spark compares positions as text.
            return start
        first = self._past_losses(begin.offset, end, offsets)
        if first < end:
            end = self._admitted(Snapshot(begin.stream_id, first, end), self._limits(limit))
        return self._position(end, begin.stream_id)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Give the known end of the stream for a query's reports; None if it is not known.

        For a query's first batch Spark reports no start: it has stored no position yet. So a query
        that began here says where, in one more member, which is in no checkpoint.
        """
        known = self._tip.known
        if known is None:
            return None
        latest = self._position(self._tip.end(known), known.stream_id)
        if self._initial is None:
            return latest
        return began_at(latest, read_position(self._initial, self._options.stream).offset)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan what each task of a micro-batch reads, on the driver.

        Raises:
            WrongOffset: `stream-replaced`, another stream has taken the name.
            OffsetGone: records were trimmed, and failOnDataLoss does not allow for that.
        """
        stream = self._options.stream
        begin, stop = read_position(start, stream), read_position(end, stream)
        if begin.offset == stop.offset:
            return []
        # Also for a batch that was planned before a restart, for which nobody asked latestOffset.
        offsets = self._tip.recent()
        self._check(begin, offsets)
        self._check(stop, offsets)
        first = self._past_losses(begin.offset, stop.offset, offsets)
        snapshot = Snapshot(begin.stream_id, first, stop.offset)
        lease = self._hold(snapshot)
        return plan_partitions(self._client, self._options, snapshot, lease)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if not isinstance(partition, SharePartition):
            return iter(())
        return read_partition(self._options, self._schema, partition)

    def stop(self) -> None:
        """Return the lease, and close the connections."""
        if self._lease is not None and self._tip.known is not None:
            return_lease(self._source(self._tip.known.stream_id), self._lease[0])
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _client(self) -> "Client":
        if self._opened is None:
            from bottomless.client import Client  # noqa: PLC0415  # executors have no library for it

            self._opened = Client(self._options.url)
        return self._opened

    def _ask(self, query: dict[str, int]) -> dict[str, Any]:
        with naming_the_option():
            return self._client.bounds(self._options.stream, **query)

    def _source(self, stream_id: StreamId) -> Source:
        return Source(self._options.url, self._options.stream, stream_id)

    def _position(self, offset: int, stream_id: StreamId) -> dict[str, Any]:
        return position_of(offset, self._options.stream, stream_id)

    def _check(self, position: Pinned, offsets: "Offsets") -> None:
        check_same_stream(position.stream_id, offsets.stream_id)
        if position.offset > offsets.next_offset:
            # What is cached may be older than what Spark knows.
            offsets = self._tip.refresh()
        if position.offset > offsets.next_offset:
            raise OffsetGone(
                "the checkpoint lies beyond the end of the stream",
                code=Code.OFFSET_OUT_OF_RANGE,
                facts={"offset": position.offset, "next_offset": offsets.next_offset},
            )

    def _past_losses(self, first: int, end: int, offsets: "Offsets") -> int:
        """The first offset from `first` on that is still there, at most `end`."""
        if first >= offsets.first_offset:
            return first
        gone = OffsetGone("the stream begins later", facts={"first_offset": offsets.first_offset})
        return trimmed_to(gone, first, end, self._options)

    def _limits(self, limit: ReadLimit) -> Limits:
        own = self._options.limits
        match limit:
            case ReadAllAvailable():
                return Limits()
            case ReadMaxBytes(size):
                return replace(own, size=size)
            case ReadMaxRows(count):
                return replace(own, offsets=count)
            case ReadMaxFiles(count):
                return replace(own, fragments=count)
        return own

    def _admitted(self, snapshot: Snapshot, limits: Limits) -> int:
        client, options = self._client, self._options
        first, end = snapshot.first_offset, snapshot.next_offset
        listed = (stored_of(one) for one in list_fragments(client, options, snapshot))
        source = self._source(snapshot.stream_id)
        try:
            return admit(first, end, limits, listed, lambda at: record_size_at(source, at, end))
        except OffsetGone as error:
            # Trimmed since the bounds were asked for: the batch begins after it.
            first = trimmed_to(error, first, end, options)
            return (
                first
                if first == end
                else self._admitted(snapshot._replace(first_offset=first), limits)
            )

    def _hold(self, snapshot: Snapshot) -> Lease | None:
        """One lease for the whole query, moved on from time to time: the batches before are done."""
        now = time.monotonic()
        source = self._source(snapshot.stream_id)
        if self._lease is not None:
            lease, taken_at = self._lease
            if now - taken_at < lease.renewal_seconds:
                return lease
        held, self._lease = self._lease, None
        taken = lease_range(self._options, snapshot)
        if taken is not None:
            self._lease = (taken, now)
        if held is not None:
            return_lease(source, held[0])
        return taken


def default_limit(limits: Limits) -> ReadLimit:
    """Choose the bound of a micro-batch that Spark is told of."""
    # PySpark takes one limit; the others are applied beside it.
    if limits.size is not None:
        return ReadMaxBytes(limits.size)
    if limits.offsets is not None:
        return ReadMaxRows(limits.offsets)
    if limits.fragments is not None:
        return ReadMaxFiles(limits.fragments)
    return ReadAllAvailable()
