"""An export as a Delta table, by the library `deltalake`; no JVM is asked.

Workers write Parquet files below the table, and the driver adds all files of a round with one
commit of the table's log. The commit carries the position, as the version of an application
transaction of Delta: rows and position become visible together or not at all.

    files written, no commit    nobody sees them; the next run writes others, and VACUUM
                                removes these
    commit                      the round is there, and the position is after it

If two exports run at once, one commits; Delta refuses the other's commit, since both name the same
application.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from bottomless.errors import Code, InvalidRequest, WrongOffset
from bottomless.extras import how_to_install
from bottomless.spark.jobs.file_writer import Written
from bottomless.spark.jobs.outputs import Round, Subject, check_columns, moved_on
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.table_output import TableOutput
from bottomless.spark.positions import position_of

_MISSING: Final = f"an export to Delta needs the library deltalake: {how_to_install('delta')}"


class DeltaOutput(TableOutput):
    """An output of an export that is a Delta table."""

    def __init__(self, place: Place, subject: Subject, schema: pa.Schema) -> None:
        """Make an output at a place; nothing is written yet.

        Raises:
            InvalidRequest: the library is not installed.
        """
        try:
            import deltalake  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise InvalidRequest(_MISSING) from error
        self._delta: Any = deltalake
        self.place = place
        self.stored = schema
        self._subject = subject
        self._application = f"bottomless.{subject.name}"
        self._own = f"bottomless.{subject.name}.{subject.stream_id}"

    def begun(self) -> Round | None:
        """Read the position from the table's log; None for a table without one, or no table.

        Raises:
            WrongOffset: `stream-replaced`, the table is of another stream of this name.
            InvalidRequest: the table has other columns.
        """
        table = self._table()
        if table is None:
            return None
        check_columns(_as_arrow(table.schema()), _as_arrow(self._schema()))
        position = self.position(table)
        return None if position is None else Round(position, position, ())

    def commit(self, planned: Round, files: Sequence[Written]) -> None:
        """Add the files of a round to the table, and its end as the position, in one commit.

        Raises:
            WrongOffset: another export has committed in the meantime.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415  # an extra
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        adds = [_add(file) for file in files if file.rows]
        properties = self._delta.CommitProperties(
            custom_metadata={"bottomless": json.dumps(self._position_of(planned))},
            app_transactions=self.transactions(planned),
        )
        table = self._table()
        try:
            if table is None:
                create_table_with_add_actions(
                    self._uri(), self._schema(), adds, commit_properties=properties
                )
                return
            if self.position(table) not in {None, planned.first_offset}:
                raise moved_on()
            # From here on it is Delta that sees another commit of this application.
            table.create_write_transaction(
                adds, "append", self._schema(), commit_properties=properties
            )
        except CommitFailedError as error:
            raise moved_on() from error
        except DeltaError as error:
            if table is None and self._table() is not None:
                raise moved_on() from error
            raise

    def _table(self) -> Any:
        uri = self._uri()
        return self._delta.DeltaTable(uri) if self._delta.DeltaTable.is_deltatable(uri) else None

    def position(self, table: Any) -> int | None:
        """Read the offset up to which this table holds the stream; None if it has none yet.

        Raises:
            WrongOffset: `stream-replaced`, the table is of another stream of this name.
        """
        position: int | None = table.transaction_version(self._application)
        if position is not None and table.transaction_version(self._own) != position:
            raise WrongOffset(
                "another stream had the name when this table was exported to; name another table",
                code=Code.STREAM_REPLACED,
            )
        return position

    def transactions(self, planned: Round) -> list[Any]:
        """Make the transactions by which Delta sees another export's commit of the same round."""
        names = (self._application, self._own)
        return [self._delta.Transaction(name, planned.next_offset) for name in names]

    def _position_of(self, planned: Round) -> dict[str, Any]:
        return position_of(planned.next_offset, self._subject.name, self._subject.stream_id)

    def _schema(self) -> Any:
        return self._delta.Schema.from_arrow(self.stored)

    def _uri(self) -> str:
        return self.place.text if "://" in self.place.text else self.place.open()[1]


def _as_arrow(schema: Any) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _add(file: Written) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415  # an extra

    statistics = {"numRecords": file.rows}
    return AddAction(
        path=file.name,
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(statistics),
    )
