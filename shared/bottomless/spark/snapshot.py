"""Resolve where a read begins and ends against what the stream holds now."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bottomless.errors import Code, InvalidRequest, NotFound, OffsetGone, WrongOffset
from bottomless.model.names import StreamId, StreamName
from bottomless.model.offset_spec import Ago, At, First, Next, Since, Tail
from bottomless.spark.losses import Losses
from bottomless.spark.options import Options
from bottomless.spark.positions import Pinned, Position

if TYPE_CHECKING:
    from bottomless.client import Client, Offsets


class Snapshot(NamedTuple):
    """The stream and the offsets that a DataFrame holds. `next_offset` is exclusive."""

    stream_id: StreamId
    first_offset: int
    next_offset: int


def take_snapshot(options: Options) -> Snapshot:
    """Ask for the stream's id and bounds, and resolve the options against them.

    Raises:
        OffsetGone: the stream does not hold an offset that was asked for.
        WrongOffset: `stream-replaced`, another stream has the name.
    """
    from bottomless.client import Client  # noqa: PLC0415  # executors have no library for it

    starting = First() if options.starting is None else options.starting
    ending = Next() if options.ending is None else options.ending
    with Client(options.url) as client:
        with naming_the_option():
            offsets = client.offsets(options.stream)
        end = resolve(client, options.stream, ending, offsets)
        first = resolve(client, options.stream, starting, offsets)
    if end > offsets.next_offset or end < offsets.first_offset:
        raise _outside("endingOffsets", offsets)
    first = check_start(first, offsets, fail_on_data_loss=options.reading.fail_on_data_loss)
    named = isinstance(starting, At | Pinned) and isinstance(ending, At | Pinned)
    if named and end < first:
        raise InvalidRequest("endingOffsets lies before startingOffsets")
    if not options.include_tail:
        end = min(end, offsets.object_store_next_offset)
    return Snapshot(offsets.stream_id, first, max(first, end))


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Say by which option a super stream is read, where its name is given as that of a stream.

    Raises:
        InvalidRequest
    """
    try:
        yield
    except NotFound as error:
        if "super_id" not in error.facts:
            raise
        raise InvalidRequest(
            "this is a super stream: name it by the option superStream instead of stream"
        ) from error


def check_start(first: int, offsets: "Offsets", *, fail_on_data_loss: bool) -> int:
    """Check the offset to begin at; it is moved to the first one there only if loss is allowed.

    It is never moved silently, since a job would not notice what is missing.

    Raises:
        OffsetGone: it is beyond the stream's end, or below its beginning with `fail_on_data_loss`.
    """
    if first > offsets.next_offset:
        raise _outside("startingOffsets", offsets)
    if first < offsets.first_offset:
        if fail_on_data_loss:
            raise _outside("startingOffsets", offsets)
        Losses(fail=False).note(first, offsets.first_offset)
    return max(first, offsets.first_offset)


def resolve(client: "Client", name: StreamName, position: Position, offsets: "Offsets") -> int:
    """Find the offset that a position means; numbers are returned as they were given.

    Raises:
        WrongOffset: `stream-replaced`: the position is of another stream.
    """
    match position:
        case At(offset):
            return offset
        case Pinned(offset, stream_id):
            check_same_stream(stream_id, offsets.stream_id)
            return offset
        case First():
            return offsets.first_offset
        case Next():
            return offsets.next_offset
        case Tail(count):
            return max(offsets.first_offset, offsets.next_offset - count)
        case Since(timestamp):
            spec = f"timestamp:{timestamp}"
        case Ago(seconds):
            spec = f"interval:{seconds}s"
    found = client.resolve(name, spec, expect_stream_id=offsets.stream_id)
    # The stream may have grown since its bounds were asked for.
    return min(int(found["offset"]), offsets.next_offset)


def check_same_stream(known: StreamId, found: StreamId) -> None:
    """Refuse to continue in a stream that has taken the name of the one that was read.

    Raises:
        WrongOffset: `stream-replaced`, with both ids.
    """
    if known != found:
        raise WrongOffset(
            "another stream has taken the name: what was read so far is of the first, and "
            "reading the other takes a new checkpoint",
            code=Code.STREAM_REPLACED,
            facts={"expected_stream_id": known, "stream_id": found},
        )


def _outside(name: str, offsets: "Offsets") -> OffsetGone:
    return OffsetGone(
        f"{name} lies outside what the stream holds",
        code=Code.OFFSET_OUT_OF_RANGE,
        facts={"first_offset": offsets.first_offset, "next_offset": offsets.next_offset},
    )
