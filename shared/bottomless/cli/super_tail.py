"""Tail of a super stream: the last records of all partitions, and those that come.

As a consumer it goes on in each partition where that consumer has come to. What was written is
committed afterwards, so after a crash records may be written twice, and none is left out.
"""

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bottomless.cli.failures import tell
from bottomless.cli.outages import Outage
from bottomless.cli.outputs import Writer
from bottomless.cli.super_names import refuse_offset
from bottomless.errors import StoreError

if TYPE_CHECKING:
    from bottomless.client import Client, MergedBatch, Record
    from bottomless.client.parameters import Parameter


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for."""

    stream: str
    count: int
    start: str | None
    consumer: str | None
    group: str | None
    """The group that shares the stream or super stream."""
    wanted: "Mapping[str, Parameter]"
    follow: bool
    lease_seconds: float | None = None
    """How long the others of a group wait for this program if it says nothing; None: the default."""

    @property
    def spec(self) -> str:
        """The place where the reading of one stream begins."""
        return self.start or (f"tail:{self.count}" if self.count else "next")


def tail_super_stream(client: "Client", asked: Asked, writer: Writer) -> None:
    """Write what is asked for of a super stream.

    Raises:
        typer.BadParameter: the place is one offset.
    """
    refuse_offset(asked.start, "--from")
    if asked.consumer is not None:
        _consume(client, asked, asked.consumer, writer)
        return
    encoded = {"value_encoding": writer.value_encoding, **asked.wanted}
    positions = _last(client, asked, writer, encoded)
    if not asked.follow:
        writer.close()
        return
    outage = Outage()
    for batch in client.follow_super(
        asked.stream, positions, on_outage=outage.note, consumer=None, **encoded
    ):
        outage.over()
        _write(batch, writer)


def _last(
    client: "Client", asked: Asked, writer: Writer, encoded: "Mapping[str, Parameter]"
) -> "Mapping[str, int]":
    """Write what there is, and tell where each partition ends."""
    positions = client.super_positions(asked.stream)
    # So many of each partition, of which the newest are written.
    newest: deque[Record] = deque(maxlen=None if asked.start else asked.count)
    for batch in client.read_super(asked.stream, asked.spec, consumer=None, **encoded):
        positions |= batch.positions
        tell_super_gaps(batch.gaps)
        if asked.start is None:
            newest.extend(batch.records)
        else:
            writer.write(batch.records)
    writer.write(newest)
    sys.stdout.flush()
    return positions


def _consume(client: "Client", asked: Asked, consumer: str, writer: Writer) -> None:
    encoded = {"value_encoding": writer.value_encoding, **asked.wanted}
    start, outage = asked.start or "first", Outage()
    ids = {one.stream: one.stream_id for one in client.partitions(asked.stream)}
    batches: Iterable[MergedBatch]
    if asked.follow:
        batches = client.follow_super(
            asked.stream, start, on_outage=outage.note, consumer=consumer, **encoded
        )
    else:
        batches = client.read_super(asked.stream, start, consumer=consumer, **encoded)
    committed: dict[str, int] = {}
    for batch in batches:
        outage.over()
        # Whoever reads this pipe has it before it counts as processed.
        _write(batch, writer)
        for stream, offset in batch.positions.items():
            if committed.get(stream) == offset:
                continue
            try:
                client.commit(stream, consumer, offset, stream_id=ids.get(stream))
            except StoreError as error:
                if not error.retryable:
                    raise
                # The next batch commits this one too.
                outage.note(error)
            else:
                committed[stream] = offset


def _write(batch: "MergedBatch", writer: Writer) -> None:
    tell_super_gaps(batch.gaps)
    writer.write(batch.records)
    # Now: whoever reads this pipe shall see what there is.
    sys.stdout.flush()


def tell_super_gaps(gaps: "Iterable[Mapping[str, object]]") -> None:
    """Tell the user on stderr which offsets of which partitions were given up for good."""
    for gap in gaps:
        tell(
            f"offsets {gap['first_offset']} to {int(str(gap['next_offset'])) - 1} of "
            f"{gap['stream']} were given up for good; reading goes on after them"
        )
