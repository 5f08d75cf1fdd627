"""Import: Parquet files, or any DataFrame, as records of a stream.

Parquet is read in Spark's workers, and its rows do not enter the JVM. Files and their row groups
are cut into rounds in the order of their names, and each round is one append with its number
(rounds.py). The producer is the job's name, a digest of the list of files, and the size of a round.
So a run that was killed continues where it was, from any machine and with the rounds that it had,
and one that is repeated after its end finds nothing left to do. rounds.py says what is there after
a crash at each step.
"""

import base64
import datetime as dt
import decimal
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as arrow_fs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bottomless.errors import Code, InvalidRequest, WrongOffset
from bottomless.model.names import parse_reference, parse_stream_name
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.rounds import (
    ROUND_SIZE,
    STAGED,
    committed,
    rounds_done,
    stage_batches,
)
from bottomless.spark.jobs.tasks import run_in_workers
from bottomless.spark.options import service_url
from bottomless.spark.session import register
from bottomless.spark.sink_options import TXN_SIZE_MAX
from bottomless.spark.sink_rows import check_columns
from bottomless.spark.staging import Target, producers

PIECE_SIZE: Final = 64 * 1024 * 1024
"""Bytes of values, before compression, that one task stages."""
_BATCH_ROW_COUNT: Final = 50_000
RECORD_COLUMNS: Final = ("value", "key", "headers", "event_time", "filter_value")


class RowGroups(NamedTuple):
    """What one task imports: the row groups `first` to `end`, exclusive, of one file."""

    path: str
    first: int
    end: int


class Mapped(NamedTuple):
    """The columns of a file that become the columns of a record, by the record's names.

    With `whole_rows` the value is the whole row as JSON, and `columns` names none for it.
    """

    columns: Mapping[str, str]
    whole_rows: bool


@dataclass(slots=True)
class Imported:
    """What one run has done."""

    files: int
    """Files of the import."""
    rounds: int = 0
    """Rounds of this run. The last round of a run that was killed may be done once more, with no
    effect."""
    rows: int = 0
    """Rows of these rounds."""


def import_frame(frame: DataFrame, url: str, stream: str, name: str) -> None:
    """Write a DataFrame with columns of the sink; repeating it under the same name does nothing.

    All of its rows are staged before the first is visible; `import_parquet` works in rounds.
    """
    register(frame.sparkSession)
    frame.write.format("bottomless").mode("append").options(
        url=url, stream=stream, txnAppId="import", txnId=name
    ).save()


def import_parquet(
    spark: SparkSession,
    path: str,
    url: str,
    stream: str,
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    whole_rows: bool = False,
    round_size: int = ROUND_SIZE,
) -> Imported:
    """Write the rows of a Parquet file, or of all below a directory, into a stream that exists.

    `columns` says which column of the files is which of a record, by the names of the sink; columns
    of the same name need not be listed, and others are left out. With `whole_rows` the value is the
    row as JSON. `round_size`, in bytes, counts for the first run of this name: later runs use its
    rounds, since what is done is known by their numbers.

    Raises:
        InvalidRequest: there is no such file, or the files have no column for the value, or one of
            another type.
        WrongOffset: this name has imported other files into this stream.
    """
    if len(name) > TXN_SIZE_MAX or "." in name:
        raise InvalidRequest(f"an import's name has at most {TXN_SIZE_MAX} characters, no '.'")
    target = Target(service_url("url", url), parse_stream_name(stream))
    place = Place.named(path)
    files = files_of(place)
    mapped = _mapped(files[0], columns or {}, whole_rows=whole_rows)
    digest = _digest(files, mapped)
    round_size = _begun(target, name, digest) or round_size
    producer_id = parse_reference(f"{name}.import.{digest}.{round_size}")
    begun = max(0, rounds_done(target, producer_id) - 1)
    done = Imported(len(files))
    for number, pieces in enumerate(rounds_of(files, round_size)):
        if number < begun:
            continue
        work = partial(_stage, target, place, mapped)
        title = f"import {stream}, round {number + 1}"
        stage = partial(run_in_workers, spark, work, pieces, STAGED, title)
        done.rows += committed(target, producer_id, number, stage)
        done.rounds += 1
    return done


def _begun(target: Target, name: str, digest: str) -> int | None:
    """The size of the rounds that a run before has begun under this name."""
    for producer_id in producers(target):
        mine, _, rest = producer_id.partition(".import.")
        if mine != name:
            continue
        found, _, size = rest.partition(".")
        if found != digest or not size.isdecimal():
            raise WrongOffset(
                "this name has imported other files, or in another way, into this stream; "
                "take another name",
                code=Code.PRODUCER_MODE_CONFLICT,
            )
        return int(size)
    return None


class _File(NamedTuple):
    path: str
    metadata: Any
    schema: pa.Schema
    size: int


def files_of(place: Place) -> list[_File]:
    """List the files to be loaded from a place, in the order in which they are taken.

    Raises:
        InvalidRequest: there is no file, or one is not Parquet.
    """
    files, path = place.open()
    info = files.get_file_info(path)
    if info.type is arrow_fs.FileType.Directory:
        found = files.get_file_info(arrow_fs.FileSelector(path, recursive=True))
    else:
        found = [info]
    wanted = [
        one
        for one in found
        if one.type is arrow_fs.FileType.File
        # As Spark and Arrow have it: what begins so is nobody's data.
        and not any(part.startswith(("_", ".")) for part in one.path[len(path) :].split("/"))
    ]
    if not wanted:
        raise InvalidRequest("there is no such file, and none below a directory of this name")
    opened = []
    for one in sorted(wanted, key=lambda each: each.path):
        try:
            with files.open_input_file(one.path) as stream:
                parquet = pq.ParquetFile(stream)
                opened.append(_File(one.path, parquet.metadata, parquet.schema_arrow, one.size))
        except pa.ArrowInvalid as error:
            raise InvalidRequest("a file is not Parquet") from error
    return opened


def _mapped(file: _File, columns: Mapping[str, str], *, whole_rows: bool) -> Mapped:
    unknown = set(columns) - set(RECORD_COLUMNS)
    if unknown:
        raise InvalidRequest(f"the columns of a record are {', '.join(RECORD_COLUMNS)}")
    chosen = {
        name: columns.get(name, name)
        for name in RECORD_COLUMNS
        if name in columns or (name in file.schema.names and not whole_rows)
    }
    absent = [name for name in chosen.values() if name not in file.schema.names]
    if absent:
        raise InvalidRequest(f"the files have no column {absent[0]}")
    if whole_rows:
        chosen.pop("value", None)
    fields = [pa.field(name, file.schema.field(own).type) for name, own in chosen.items()]
    fields += [pa.field("value", pa.string())] if whole_rows else []
    kinds: Any = [pa.field(each.name, _plain(each.type)) for each in fields]
    check_columns(from_arrow_schema(pa.schema(kinds)))
    return Mapped(chosen, whole_rows)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    return kind


def _digest(files: Sequence[_File], mapped: Mapped) -> str:
    """A digest of all that decides which rows a round has, but its size."""
    told: list[Any] = [sorted(mapped.columns.items()), mapped.whole_rows]
    told += [[one.path, one.size, one.metadata.num_rows] for one in files]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def rounds_of(files: Sequence[_File], round_size: int) -> Iterator[list[RowGroups]]:
    """Cut files into rounds. The rounds depend on the files and the size alone: not on this machine,
    nor on the size of a piece by then."""
    pieces: list[RowGroups] = []
    held = 0
    for file in files:
        first = piece_size = 0
        for number in range(file.metadata.num_row_groups):
            piece_size += file.metadata.row_group(number).total_byte_size
            last = number + 1 == file.metadata.num_row_groups
            if last or piece_size >= PIECE_SIZE or held + piece_size >= round_size:
                pieces.append(RowGroups(file.path, first, number + 1))
                held += piece_size
                first, piece_size = number + 1, 0
            if held >= round_size:
                yield pieces
                pieces, held = [], 0
    if pieces:
        yield pieces


def _stage(
    target: Target, place: Place, mapped: Mapped, piece: RowGroups
) -> Iterator[pa.RecordBatch]:
    yield from stage_batches(target, _records(place, mapped, piece))


def _records(place: Place, mapped: Mapped, piece: RowGroups) -> Iterator[pa.RecordBatch]:
    files, _ = place.open()
    with files.open_input_file(piece.path) as stream:
        parquet = pq.ParquetFile(stream)
        wanted = None if mapped.whole_rows else list(dict.fromkeys(mapped.columns.values()))
        for batch in parquet.iter_batches(
            batch_size=_BATCH_ROW_COUNT,
            row_groups=list(range(piece.first, piece.end)),
            columns=wanted,
        ):
            yield _record_columns(batch, mapped)


def _record_columns(batch: pa.RecordBatch, mapped: Mapped) -> pa.RecordBatch:
    found: dict[str, Any] = {}
    for name, own in mapped.columns.items():
        column = batch.column(own)
        found[name] = column.cast(_plain(column.type))
    if mapped.whole_rows:
        texts = [json.dumps(row, default=_as_json, ensure_ascii=False) for row in batch.to_pylist()]
        found["value"] = pa.array(texts, pa.string())
    elif pc.any(pc.is_null(found["value"])).as_py():
        raise InvalidRequest("a row has no value", code=Code.VALIDATION_FAILED)
    return pa.RecordBatch.from_pydict(found)


def _as_json(value: object) -> object:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    raise InvalidRequest(f"a column of {type(value).__name__} has no form in JSON")
