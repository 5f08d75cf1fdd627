"""Read of a super stream: what all partitions hold, in the order of time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from bottomless.cli.outputs import RecordForm, Writer
from bottomless.cli.super_names import refuse_offset
from bottomless.cli.super_tail import tell_super_gaps

if TYPE_CHECKING:
    from bottomless.client import Client
    from bottomless.client.parameters import Parameter


@dataclass(frozen=True, slots=True)
class SuperRead:
    """What a command line asks for of a super stream."""

    stream: str
    start: str
    until: str | None
    limit: int | None
    """Records that are read at most; None for all."""
    consumer: str | None
    wanted: "Mapping[str, Parameter]"

    def require(self, output: RecordForm) -> None:
        """Refuse what goes with one stream alone.

        Raises:
            typer.BadParameter: the range is one of offsets, or the form is one of tables.
        """
        refuse_offset(self.start, "--from")
        if self.until is not None:
            raise typer.BadParameter("goes with one partition", param_hint="--until")
        if output in (RecordForm.ARROW, RecordForm.PARQUET):
            raise typer.BadParameter(
                f"{output} goes with one partition; Spark reads all of them as one table",
                param_hint="--output",
            )


def read_super_stream(client: "Client", asked: SuperRead, writer: Writer) -> int:
    """Write the records of all partitions in the order of their timestamps; returns how many there were."""
    left, count = asked.limit, 0
    consumer = asked.consumer if asked.start == "stored" else None
    start = "first" if asked.start == "stored" else asked.start
    for batch in client.read_super(
        asked.stream, start, consumer=consumer, value_encoding=writer.value_encoding, **asked.wanted
    ):
        tell_super_gaps(batch.gaps)
        records = batch.records if left is None else batch.records[:left]
        writer.write(records)
        count += len(records)
        left = None if left is None else left - len(records)
        if left == 0:
            break
    writer.close()
    return count
