"""A range of offsets as partitions of Spark.

The driver asks for its fragments and divides them among tasks; the workers read them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bottomless.errors import Code, OffsetGone
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.leases import Lease, return_lease, take_lease
from bottomless.spark.losses import Losses
from bottomless.spark.options import Mode, Options, S3View, parameters_of
from bottomless.spark.plan import Share, Stored, plan
from bottomless.spark.read import Task, leave_counts, read_share
from bottomless.spark.service import Source
from bottomless.spark.snapshot import Snapshot
from bottomless.spark.store import Counts, StorePlace

if TYPE_CHECKING:
    from bottomless.client import Client, Fragment

_log: Final = logging.getLogger(__name__)


@dataclass
class SharePartition(InputPartition):
    """A share as it travels to a worker: offsets and places, no URL and no secret."""

    share: Share
    place: StorePlace | None
    stream_id: StreamId
    lease: Lease | None
    stream: StreamName | None = None
    """The stream that the partition of a super stream is; None where one stream is read."""
    index: int | None = None
    """The number of that partition."""


def plan_partitions(
    client: "Client",
    options: Options,
    snapshot: Snapshot,
    lease: Lease | None,
    *,
    from_what_is_there: bool = False,
) -> list[SharePartition]:
    """Divide a range that lies within the stream into shares.

    `from_what_is_there` says that nobody named the start: the range then begins with what is there.

    Raises:
        OffsetGone: some of it was trimmed, and failOnDataLoss does not allow for it.
        WrongOffset: `stream-replaced`, another stream has taken the name.
    """
    first, end = snapshot.first_offset, snapshot.next_offset
    while first < end:
        wanted = snapshot._replace(first_offset=first)
        try:
            fragments, stored_next = _fragments_to_read(client, options, wanted)
            break
        except OffsetGone as error:
            first = _first_after(error, first, end, options, from_what_is_there)
    else:
        return []
    lies = [place_of(fragment.store, options.s3) for fragment in fragments]
    places = list(dict.fromkeys(lies))
    shares = plan(
        [
            stored_of(fragment)._replace(place=places.index(place))
            for fragment, place in zip(fragments, lies, strict=True)
        ],
        first_offset=first,
        next_offset=end,
        target_bytes=options.target_partition_bytes,
        min_shares=options.min_partitions,
        stored_next=stored_next,
    )
    return [
        SharePartition(share, _place_of_share(share, places), snapshot.stream_id, lease)
        for share in shares
    ]


def _place_of_share(share: Share, places: Sequence[StorePlace | None]) -> StorePlace | None:
    """The store of all slices of a share; what has none comes through the reader."""
    return places[share.slices[0].fragment.place] if share.slices else None


def read_partition(
    options: Options, schema: StructType, partition: SharePartition
) -> Iterator[pa.RecordBatch]:
    """Read a partition, in a worker: a task's whole work."""
    task = Task(
        source=Source(options.url, partition.stream or options.stream, partition.stream_id),
        schema=to_arrow_schema(schema, timezone="UTC"),
        mode=options.mode,
        reading=options.reading,
        ca=options.s3.ca,
        lease=partition.lease,
        metrics_dir=options.metrics_dir,
        partition=partition.index,
    )
    return read_share(task, partition.share, partition.place)


def list_fragments(client: "Client", options: Options, snapshot: Snapshot) -> "Iterator[Fragment]":
    """List the fragments of a snapshot, with the places of their objects if workers open them."""
    return client.fragments(
        options.stream,
        first_offset=snapshot.first_offset,
        next_offset=snapshot.next_offset,
        locations=options.mode in (Mode.AUTO, Mode.DIRECT),
        stream_id=snapshot.stream_id,
    )


def _fragments_to_read(
    client: "Client", options: Options, snapshot: Snapshot
) -> "tuple[list[Fragment], int]":
    """The fragments of a snapshot that may hold what is asked for, and the offset up to which
    nothing else does: 0 if nothing is left out at the end.
    """
    wanted = options.reading.wanted
    if wanted is None:
        return list(list_fragments(client, options, snapshot)), 0
    # Here and not above: workers list nothing.
    from bottomless.client.fragments import LeftOut  # noqa: PLC0415

    found: list[Fragment] = []
    counts = Counts()
    stored_next = 0
    for one in client.fragments_for(
        options.stream,
        first_offset=snapshot.first_offset,
        next_offset=snapshot.next_offset,
        locations=options.mode in (Mode.AUTO, Mode.DIRECT),
        stream_id=snapshot.stream_id,
        **parameters_of(wanted),
    ):
        if isinstance(one, LeftOut):
            stored_next = one.next_offset
            counts.left_out_fragments += one.fragment_count
            counts.left_out_bytes += one.size
        else:
            found.append(one)
    _tell(options, counts, len(found))
    return found, stored_next


def _tell(options: Options, counts: Counts, read_count: int) -> None:
    """Say what a plan leaves out: tasks do not know of it."""
    _log.info(
        "stream %s: %d fragments to read, %d left out by the filter (%d bytes)",
        options.stream,
        read_count,
        counts.left_out_fragments,
        counts.left_out_bytes,
    )
    try:
        leave_counts(options.metrics_dir, counts)
    except OSError as error:
        # The directory is one of the workers, and the driver may be on another machine.
        _log.warning("what is left out was not written down: %s", error)


def lease_range(
    options: Options, snapshot: Snapshot, *, from_what_is_there: bool = False
) -> Lease | None:
    """Take a lease on a range, or on what is left of it if some may be deleted already.

    Such a loss is an error where data must not be lost, unless nobody named the start:
    `from_what_is_there` asks for all that is there when the job is planned.

    Raises:
        OffsetGone: some of it is gone, and failOnDataLoss does not allow for it.
    """
    source = Source(options.url, options.stream, snapshot.stream_id)
    first, end = snapshot.first_offset, snapshot.next_offset
    while first < end:
        try:
            return take_lease(source, first, options.lease_seconds)
        except OffsetGone as error:
            first = _first_after(error, first, end, options, from_what_is_there)
    return None


@contextmanager
def leased(options: Options, snapshot: Snapshot) -> Iterator[Lease | None]:
    """Hold a lease on a range while the block runs: a stream has a bound on leases."""
    lease = lease_range(options, snapshot)
    try:
        yield lease
    finally:
        return_lease(Source(options.url, options.stream, snapshot.stream_id), lease)


def trimmed_to(error: OffsetGone, first: int, end: int, options: Options) -> int:
    """Find the offset to continue from, where some offsets from `first` on are gone.

    Raises:
        OffsetGone: with failOnDataLoss, which is the default.
    """
    following = _floor_of(error, first, end)
    Losses(fail=options.reading.fail_on_data_loss).note(first, following, error)
    return following


def _first_after(
    error: OffsetGone, first: int, end: int, options: Options, from_what_is_there: bool
) -> int:
    following = _floor_of(error, first, end)
    # Nothing at all is left: an answer of no rows would be taken for an empty stream.
    if from_what_is_there and following < end:
        return following
    return trimmed_to(error, first, end, options)


def _floor_of(error: OffsetGone, first: int, end: int) -> int:
    floor = error.facts.get("first_offset")
    known = error.code in {Code.OFFSET_TRIMMED, Code.RANGE_CONDEMNED}
    if not known or not isinstance(floor, int) or floor <= first:
        raise error
    return min(floor, end)


def stored_of(fragment: "Fragment") -> Stored:
    """Turn a fragment of the client's list into what a plan needs of it."""
    return Stored(
        fragment.fragment_id,
        fragment.object_key,
        fragment.first_offset,
        fragment.next_offset,
        fragment.size,
        fragment.index_position,
    )


def place_of(store: Mapping[str, Any] | None, s3: S3View) -> StorePlace | None:
    """Find out where the objects lie as workers see it; None if the list does not tell."""
    if store is None:
        return None
    if store["kind"] != "s3":
        return StorePlace(store["kind"], store["root"])
    endpoint = s3.endpoint or store.get("endpoint")
    styles = (s3.path_style, store.get("path_style"), endpoint is not None)
    return StorePlace(
        kind="s3",
        root=store["root"],
        endpoint=endpoint,
        region=s3.region or store.get("region"),
        path_style=next(style for style in styles if style is not None),
        ca=s3.ca,
        credentials=s3.credentials,
    )
