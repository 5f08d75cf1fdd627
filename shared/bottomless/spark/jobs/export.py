"""Export: a stream, or what is new in it, as Parquet files, a Delta table or an Iceberg table.

Files are written in Spark's workers and their records do not enter the JVM. A run goes from where
the output ends to the end that the stream has when it starts, in rounds of some gigabytes; after
each round the output's own position moves. So an export can be killed at any moment and started
again anywhere: no row is lost and none comes twice. Each kind of output says what is there after a
crash at each step: parquet_output.py, delta_output.py, iceberg_output.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bottomless.errors import InvalidRequest, OffsetGone
from bottomless.model.limits import MIB, OFFSET_MAX
from bottomless.spark.admission import admit
from bottomless.spark.jobs.delta_output import DeltaOutput
from bottomless.spark.jobs.file_writer import (
    WRITTEN,
    FilePiece,
    FileShape,
    Written,
    check_compression,
    find_file,
    write_file,
    written_of,
)
from bottomless.spark.jobs.iceberg_output import IcebergOutput
from bottomless.spark.jobs.outputs import Cut, Output, Round, Subject
from bottomless.spark.jobs.parquet_output import ParquetOutput
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.tasks import run_in_workers
from bottomless.spark.leases import Lease
from bottomless.spark.options import Limits, Options, parse_options
from bottomless.spark.pages import record_size_at
from bottomless.spark.partitions import (
    leased,
    list_fragments,
    plan_partitions,
    stored_of,
    trimmed_to,
)
from bottomless.spark.plan import Stored
from bottomless.spark.service import Source
from bottomless.spark.session import register
from bottomless.spark.snapshot import Snapshot, take_snapshot
from bottomless.spark.source import schema_of_rows

if TYPE_CHECKING:
    from bottomless.client import Client

ROUND_SIZE: Final = 8 * 1024 * MIB
"""Bytes of the stream that become part of the output at once: what a crash costs at most."""
FORMATS: Final = ("parquet", "delta", "iceberg")


@dataclass(slots=True)
class Exported:
    """What one run has added to its output."""

    first_offset: int
    next_offset: int
    """The output is complete up to this offset (exclusive end)."""
    rows: int = 0
    """Rows that were added."""
    files: int = 0
    """Files that were added."""
    size: int = 0
    """Bytes of these files."""

    def add(self, planned: Round, files: list[Written]) -> None:
        """Count a round whose files have become part of the output."""
        self.next_offset = planned.next_offset
        self.rows += sum(file.rows for file in files)
        self.files += sum(1 for file in files)
        self.size += sum(file.size for file in files)


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    output: str,
    *,
    form: str = "parquet",
    catalog: str = "default",
    round_size: int = ROUND_SIZE,
    compression: str = "snappy",
) -> Exported:
    """Add to an output what it does not have yet, up to the present end of the stream.

    `options` are those of a read; the start of a range counts for a new output only. `output` is a
    directory or a URI for `parquet` and `delta`, and `namespace.table` in a `catalog` of
    pyiceberg's configuration for `iceberg`. `round_size` is in bytes of the stream.

    Raises:
        InvalidRequest: there is no such format or compression, or the output has other columns.
        WrongOffset: the output is of another stream, or another export has added to it.
        OffsetGone: what comes next was trimmed, and failOnDataLoss does not allow for that.
        Unavailable: a task failed for good; starting the export again continues it.
    """
    chosen = parse_options(options)
    if form not in FORMATS:
        raise _unknown_form()
    check_compression(compression)
    snapshot = take_snapshot(replace(chosen, starting=None))
    if chosen.json_schema is not None:
        # Types in SQL are read by Spark; all that comes before is answered without it.
        register(spark)
    schema = schema_of_rows(chosen)
    subject = Subject(chosen.stream, snapshot.stream_id)
    target = open_output(form, output, catalog, subject, _arrow(schema))
    shape = FileShape(target.place, snapshot.stream_id, schema, target.stored, compression)
    run = _Run(spark, chosen, shape, target)
    begun = target.begun()
    if begun is None:
        snapshot = take_snapshot(chosen)
    else:
        first = begun.next_offset
        snapshot = snapshot._replace(
            first_offset=first, next_offset=max(first, snapshot.next_offset)
        )
    done = Exported(snapshot.first_offset, snapshot.first_offset)
    if begun is not None:
        run.complete(begun, done)
    run.go_on(snapshot, round_size, done)
    return done


def open_output(
    form: str, output: str, catalog: str, subject: Subject, schema: pa.Schema
) -> Output:
    """Open an output of the kind that `form` names.

    Raises:
        InvalidRequest: there is no such format.
    """
    match form:
        case "parquet":
            return ParquetOutput(Place.named(output), subject, schema)
        case "delta":
            return DeltaOutput(Place.named(output), subject, schema)
        case "iceberg":
            return IcebergOutput(catalog, output, subject, schema)
    raise _unknown_form()


def _unknown_form() -> InvalidRequest:
    return InvalidRequest(f"the format of an export is one of {', '.join(FORMATS)}")


class _Run:
    def __init__(
        self, spark: SparkSession, options: Options, shape: FileShape, output: Output
    ) -> None:
        self._spark = spark
        self._options = options
        self._shape = shape
        self._output = output

    def complete(self, begun: Round, done: Exported) -> None:
        """Write the files of a planned round that are not there."""
        from bottomless.client import Client  # noqa: PLC0415

        named = [FilePiece(self._output.file_name(cut), *cut, ()) for cut in begun.cuts]
        missing = [piece for piece in named if find_file(self._shape, piece) is None]
        if not missing:
            return
        whole = Snapshot(self._shape.stream_id, begun.first_offset, begun.next_offset)
        with leased(self._options, whole) as lease, Client(self._options.url) as client:
            pieces = [self._planned(client, piece, lease) for piece in missing]
            done.add(begun, self._write(pieces))

    def go_on(self, snapshot: Snapshot, round_size: int, done: Exported) -> None:
        """Round by round from the first offset to the last."""
        from bottomless.client import Client  # noqa: PLC0415

        with Client(self._options.url) as client:
            first = snapshot.first_offset
            while first < snapshot.next_offset:
                rest = snapshot._replace(first_offset=first)
                with leased(self._options, rest) as lease:
                    end = _round_end(client, self._options, rest, round_size)
                    planned, pieces = self._plan(client, rest._replace(next_offset=end), lease)
                    self._output.plan(planned)
                    files = self._write(pieces)
                    self._output.commit(planned, files)
                done.add(planned, files)
                first = end

    def _plan(
        self, client: "Client", wanted: Snapshot, lease: Lease | None
    ) -> tuple[Round, list[FilePiece]]:
        pieces = []
        for partition in plan_partitions(client, self._options, wanted, lease):
            cut = (partition.share.first_offset, partition.share.next_offset)
            pieces.append(FilePiece(self._output.file_name(cut), *cut, (partition,)))
        cuts: tuple[Cut, ...] = tuple((piece.first_offset, piece.next_offset) for piece in pieces)
        return Round(wanted.first_offset, wanted.next_offset, cuts), pieces

    def _planned(self, client: "Client", piece: FilePiece, lease: Lease | None) -> FilePiece:
        """Plan the offsets of a piece from the objects that hold them now, however they were cut before."""
        wanted = Snapshot(self._shape.stream_id, piece.first_offset, piece.next_offset)
        whole = replace(self._options, target_partition_bytes=OFFSET_MAX, min_partitions=1)
        return piece._replace(partitions=tuple(plan_partitions(client, whole, wanted, lease)))

    def _write(self, pieces: list[FilePiece]) -> list[Written]:
        work = partial(write_file, self._options, self._shape)
        title = f"export {self._options.stream}"
        return written_of(run_in_workers(self._spark, work, pieces, WRITTEN, title))


def _round_end(client: "Client", options: Options, wanted: Snapshot, round_size: int) -> int:
    first, end = wanted.first_offset, wanted.next_offset
    source = Source(options.url, options.stream, wanted.stream_id)
    while first < end:
        listed: Iterator[Stored] = (
            stored_of(one)
            for one in list_fragments(client, options, wanted._replace(first_offset=first))
        )
        try:
            limits = Limits(size=round_size)
            return admit(first, end, limits, listed, lambda at: record_size_at(source, at, end))
        except OffsetGone as error:
            first = trimmed_to(error, first, end, options)
    return end


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    return to_arrow_schema(schema, timezone="UTC")
