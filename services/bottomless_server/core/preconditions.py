"""Entity tags: change a thing only as it was when it was read, and send it only if it is another one.

RFC 9110, sections 13.1.1 and 13.1.2.
"""

from bottomless.errors import Code, Fault, InvalidRequest, WrongOffset


def matches(if_none_match: str | None, current: str) -> bool:
    """Whether a precondition names the current entity tag, compared weakly as for GET."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or current in tags


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
