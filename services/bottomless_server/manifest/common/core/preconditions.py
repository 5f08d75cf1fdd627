"""Change a thing only as it was when it was read: by `If-Match` (RFC 9110, section 13.1.1), or by
the stream that a name is taken for."""

from bottomless.errors import Code, Fault, InvalidRequest, WrongOffset
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
