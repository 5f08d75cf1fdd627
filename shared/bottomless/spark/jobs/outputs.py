"""Where an export goes, and how its position is kept there.

An output knows, by its own contents alone, up to which offset of which stream it is complete. A
round is written as files and then becomes part of the output; `parquet_output.py`,
`delta_output.py` and `iceberg_output.py` say how, and what is there after a crash.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from bottomless.errors import Code, InvalidRequest, WrongOffset
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.jobs.file_writer import Written
from bottomless.spark.jobs.places import Place

Cut = tuple[int, int]
"""Offsets of one file: the first, and the one after the last."""


class Subject(NamedTuple):
    """The stream whose records an output holds."""

    name: StreamName
    stream_id: StreamId


class Round(NamedTuple):
    """The offsets that are exported at once, and the files that they are cut into."""

    first_offset: int
    next_offset: int
    cuts: tuple[Cut, ...]


class Output(Protocol):
    """One of the kinds of places that a stream can be exported to."""

    place: Place
    """Where its files lie."""
    stored: pa.Schema
    """The types of its columns."""

    def begun(self) -> Round | None:
        """Find the last round that was planned.

        Once it is complete, the next one begins at its end.

        It is None if nothing was exported yet.

        Raises:
            WrongOffset: `stream-replaced`, the output is of another stream of this name.
            InvalidRequest: the output has other columns.
        """
        ...

    def plan(self, planned: Round) -> None:
        """Note a round before its files are written.

        Raises:
            WrongOffset: another program has exported in the meantime.
        """
        ...

    def file_name(self, cut: Cut) -> str:
        """Make the name of a file, below the place."""
        ...

    def commit(self, planned: Round, files: Sequence[Written]) -> None:
        """Make the files of a round part of the output, and its end the position.

        Raises:
            WrongOffset: another program has exported in the meantime.
        """
        ...


def check_columns(found: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse to add other columns to an output than it has.

    Raises:
        InvalidRequest: they are others.
    """
    if [(field.name, field.type) for field in found] != [
        (field.name, field.type) for field in wanted
    ]:
        raise InvalidRequest(
            "the output has other columns than are to be exported; name another output"
        )


def moved_on() -> WrongOffset:
    """Make the error for an output to which another export has added. It is not raised here."""
    return WrongOffset(
        "another export has added to this output in the meantime; let only one of them run",
        code=Code.OFFSET_MISMATCH,
    )
