"""The epochs of a log's chunks, in the order in which they stand in it: nothing is read for that."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from bottomless.model.stream import EpochStart
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.node.core.following import Run
from bottomless_server.protocol.replica import Place


def runs_of(segment: Segment) -> Iterator[Run]:
    """The chunks of a segment by their epochs, which rise along it."""
    index, begin = segment.index, 0
    numbers = range(len(index))
    while begin < len(index):
        epoch = index.place(begin).epoch
        begin = bisect_right(numbers, epoch, lo=begin, key=lambda number: index.place(number).epoch)
        last = index.place(begin - 1)
        end = Place(segment.first_offset, last.position + last.size)
        yield Run(epoch, end, last.next_offset)


def epochs_of(segments: Sequence[Segment]) -> tuple[EpochStart, ...]:
    """Where the chunks of each epoch begin in a log; nothing of one without chunks."""
    found: list[EpochStart] = []
    for segment in segments:
        begin = segment.first_offset
        for run in runs_of(segment):
            if not found or found[-1].epoch != run.epoch:
                found.append(EpochStart(run.epoch, begin))
            begin = run.next_offset
    return tuple(found)
