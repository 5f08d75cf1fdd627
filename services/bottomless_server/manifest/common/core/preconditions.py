"""Change a stream only if it is the one that its name is taken for."""

from bottomless.errors import Code, Exists, WrongOffset
from bottomless.model.stream import StreamRecord


def check_stream_id(record: StreamRecord, expected: str | None) -> None:
    """Refuse a request that means another stream of this name.

    Raises:
        WrongOffset: `stream-replaced`: the name belongs to another stream by now.
    """
    if expected is not None and expected != record.stream_id:
        raise WrongOffset(
            "the stream of this name is another one than expected: the first was deleted",
            code=Code.STREAM_REPLACED,
            facts={"stream_id": record.stream_id},
        )


def require_no_partition(record: StreamRecord) -> None:
    """Refuse to do to a partition what is done to its super stream as a whole.

    Raises:
        Exists: `partition-of-super-stream`, with the super stream's id.
    """
    if record.partition_of is not None:
        raise Exists(
            "the stream is a partition of a super stream, of which this is asked as a whole:"
            " see /v1/super-streams",
            code=Code.PARTITION_OF_SUPER_STREAM,
            facts={
                "super_id": record.partition_of.super_id,
                "partition": record.partition_of.index,
            },
        )
