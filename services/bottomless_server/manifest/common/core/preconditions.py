"""Change a thing only as it was when it was read: by `If-Match` (RFC 9110, section 13.1.1), or by
the stream that a name is taken for."""

from bottomless.errors import Code, Exists, Fault, InvalidRequest, WrongOffset
from bottomless.model.stream import StreamRecord


def require_match(if_match: str | None, current: str | None) -> None:
    """Pass if there is no precondition, or one of its tags is the current one.

    Compared strongly: a weak tag names something that only looks the same.

    Raises:
        WrongOffset: `etag-mismatch`, with `current_etag`, null of what does not exist.
    """
    if if_match is None:
        return
    tags = {tag.strip() for tag in if_match.split(",")}
    if current is None or not {"*", current} & tags:
        raise WrongOffset(
            "it has changed: its ETag is not the one in If-Match; read it again",
            code=Code.ETAG_MISMATCH,
            facts={"current_etag": current},
        )


def require_precondition(if_match: str | None) -> str:
    """The `If-Match` of a request that must have one.

    Raises:
        InvalidRequest: `precondition-required`.
    """
    if if_match is None:
        sentence = "this needs the header If-Match with the ETag of what it changes, or with * for any state"
        raise InvalidRequest(
            sentence,
            code=Code.PRECONDITION_REQUIRED,
            faults=[Fault(Code.PRECONDITION_REQUIRED, sentence, header="if-match")],
        )
    return if_match


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
