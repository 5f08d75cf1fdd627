"""An export as an Iceberg table, by the library `pyiceberg`; no JVM is asked.

Workers write Parquet files below the table, and the driver adds all files of a round with one
commit of the catalog (`add_files`). The same commit sets a property of the table to the position:
rows and position become visible together or not at all.

    files written, no commit    nobody sees them; the next run writes others, and what removes
                                orphan files removes these
    commit                      the round is there, and the position is after it

By itself the library repeats a refused commit, on top of whatever is there by then, which would add
a round twice if the other commit was an export, too. So it is told not to, and the position is
checked before each attempt.

It also deletes the files of a refused commit. But if the answer to a commit gets lost, and
something on the way asks again, the catalog refuses what it has already done: then the table would
name files that are gone. So after a refusal the commit is looked for first.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from bottomless.errors import InvalidRequest
from bottomless.extras import how_to_install
from bottomless.spark.jobs.file_writer import Written
from bottomless.spark.jobs.outputs import Round, Subject, check_columns, moved_on
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.table_output import TableOutput
from bottomless.spark.positions import position_of, read_position
from bottomless.spark.snapshot import check_same_stream

_MISSING: Final = f"an export to Iceberg needs the library pyiceberg: {how_to_install('iceberg')}"
_ATTEMPT_COUNT_MAX: Final = 10
"""Attempts of a commit: others may write to the table all the time."""


class IcebergOutput(TableOutput):
    """An output of an export that is an Iceberg table."""

    def __init__(self, catalog: str, table: str, subject: Subject, schema: pa.Schema) -> None:
        """The catalog by the name that pyiceberg's configuration has; the table is made if need be.

        Raises:
            InvalidRequest: the library is not installed, or no catalog has this name.
        """
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise InvalidRequest(_MISSING) from error
        self._catalog: Any = load_catalog(catalog)
        self._name = table
        self._subject = subject
        self._property = f"bottomless.{subject.name}"
        # Iceberg has no numbers of one byte.
        self.stored = pa.schema(
            [
                pa.field(field.name, pa.int32() if field.type == pa.int8() else field.type)
                for field in schema
            ]
        )
        made = self._catalog.create_table_if_not_exists(table, self.stored)
        self.place = Place(f"{made.location().removeprefix('file://')}/data")

    def begun(self) -> Round | None:
        """Read the position from the table's properties; None for a table without one.

        Raises:
            WrongOffset: `stream-replaced`, the table is of another stream of this name.
            InvalidRequest: the table has other columns.
        """
        table = self._catalog.load_table(self._name)
        check_columns(_plain(table.schema().as_arrow()), _plain(self.stored))
        position = self.position(table)
        return None if position is None else Round(position, position, ())

    def commit(self, planned: Round, files: Sequence[Written]) -> None:
        """Add the files of a round to the table, and its end as the position, in one commit.

        Raises:
            WrongOffset: another export has committed in the meantime.
        """
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415  # an extra

        for _ in range(_ATTEMPT_COUNT_MAX):
            table = self._catalog.load_table(self._name)
            if self.position(table) not in {None, planned.first_offset}:
                raise moved_on()
            try:
                self.add(table, planned, [file for file in files if file.rows])
            except CommitFailedException:
                continue
            return
        raise moved_on()

    def add(self, table: Any, planned: Round, files: Sequence[Written]) -> None:
        """Make one attempt to commit a round: its files, and its end as the position."""
        subject = self._subject
        position = json.dumps(position_of(planned.next_offset, subject.name, subject.stream_id))
        try_once(table)
        table.catalog = Looking(table.catalog)
        with table.transaction() as transaction:
            if files:
                transaction.add_files(
                    [self.uri(file) for file in files], check_duplicate_files=False
                )
            transaction.set_properties({self._property: position})

    def uri(self, file: Written) -> str:
        """Make the address by which the table names a file."""
        text = (self.place / file.name).text
        return text if "://" in text else f"file://{text}"

    def position(self, table: Any) -> int | None:
        """Read the offset up to which this table holds the stream; None if it has none yet.

        Raises:
            WrongOffset: `stream-replaced`, the table is of another stream of this name.
        """
        text = table.properties.get(self._property)
        if text is None:
            return None
        pinned = read_position(json.loads(text), self._subject.name)
        check_same_stream(pinned.stream_id, self._subject.stream_id)
        return pinned.offset


class Looking:
    """A catalog that tells a commit which it has from one that it refuses."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415  # an extra
        from pyiceberg.table import CommitTableResponse  # noqa: PLC0415

        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException:
            found = self._catalog.load_table(table.name())
            # Made for this commit, and of 64 random bits.
            added = [one.snapshot.snapshot_id for one in updates if one.action == "add-snapshot"]
            if not added or any(found.metadata.snapshot_by_id(each) is None for each in added):
                raise
            location = found.metadata_location
            return CommitTableResponse(metadata=found.metadata, metadata_location=location)


def try_once(table: Any) -> None:
    """Have a commit of this table tried once: the library would repeat it after another export's."""
    # Of this copy in memory only.
    table.metadata.properties["commit.retry.num-retries"] = "0"


def _plain(schema: pa.Schema) -> pa.Schema:
    """Arrow has several forms of text and bytes, which Iceberg does not tell apart."""
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind
