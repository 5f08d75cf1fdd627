"""What schemathesis is told of this interface; its program loads this module.

Bodies that it cannot make up (Arrow, frames), waits that would take the time of the run, what
every answer owes its reader, and the refusals that no schema can foretell.
"""

import json
from typing import Any, Final

import schemathesis
from hypothesis import strategies as st
from schemathesis.openapi import media_type
from schemathesis.openapi.checks import RejectedPositiveData, UseAfterFree
from support.contract import ARROW, PROBLEM

from bottomless.errors import Code
from bottomless.formats.batch import Codec
from bottomless_server.runtime.http.problems import STATUS
from contract_http.binary_bodies import FRAMES, arrow_of, frame_of
from contract_http.staged_ids import FORMAT as STAGED_ID
from contract_http.staged_ids import staged_id

WAIT_MS_MAX: Final = 50
"""Longer waits that are allowed are cut to this; that they are allowed is tested elsewhere."""

SERVER_ERRORS: Final = {
    ("accept_gap", Code.NOT_OWNER),
    ("take_over_stream", Code.NOT_OWNER),
    ("add_replica", Code.NOT_OWNER),
    ("remove_replica", Code.NOT_OWNER),
}
"""Nobody owns the tail of a stream that was never written to, and these ask its owner."""

BY_STATE: Final = {
    Code.ETAG_MISMATCH,
    Code.OFFSET_MISMATCH,
    Code.OFFSET_TRIMMED,
    Code.OFFSET_OUT_OF_RANGE,
    Code.OFFSET_BEYOND_END,
    Code.RANGE_NOT_SATISFIABLE,
    Code.IDEMPOTENCY_MISMATCH,
    Code.NOT_IN_SYNC,
}
"""Refused for what the stream or the queue holds at the moment."""

BEYOND_SCHEMA: Final = {
    Code.BAD_OFFSET_SPEC: {"get_records", "get_offsets_resolve"},
    Code.DRIVE_UNKNOWN: {
        "register_drive",
        "retire_drive",
        "lose_drive",
        "move_fragments",
        "put_stream",
        "patch_stream",
        "put_super_stream",
        "patch_super_stream",
    },
}
"""Refused for a grammar that is said in words, or for what the server's settings do not name."""

NOT_THERE: Final = {("put_queue", "stream-not-found"), ("patch_queue", "stream-not-found")}
"""Operations whose bodies name what has to be there, and the fault of one that is not."""

MERGED: Final = {
    ("patch_queue", "/dead_letter", "must name either a queue or a stream"),
    ("patch_queue", "/archive/stream", "must be given"),
}
"""What a merge patch may lead to although it fits its schema: a member with nothing in it."""

BETWEEN_PARAMETERS: Final = (
    "goes with",
    "must be given with staged batches",
    "must not stand beside",
    "each record of this producer must have one",
    "page token was not made",
    "it was not made by this service",
    "the body is not compressed as the Content-Encoding says",
    "must say where to start",
    "of key must lead to",
    "of key leads to",
    "of event_time leads to",
    "must be a time of RFC 3339",
    "records of this form have no publishing_id",
    "must not be stored itself",
    "must be the id of a group",
    "the object store of this service makes no presigned URLs",
    "must say whose stored offset is meant",
    "this answer stays open",
    "must not be below first_offset",
    "at most one of expires_at and ttl_seconds",
    "a duration ",
    "a size ",
    "a key must end in the future",
    "only a leaderless stream can be fenced",
    "max_age_ms of a leaderless stream must be from",
    "the super stream is divided by the other strategy",
    "must have exactly one of key and key_base64",
    "a record of a super stream must have a key",
    "must have at most 240 characters, to a super stream",
    "must be a text of at most 255 bytes in UTF-8",
    "a super stream never gets fewer partitions",
    "with more partitions most keys go to another one",
    "messages cannot be redriven to the queue that they are in",
    "is no receipt",
    "a message alone is larger than all that its queue may have",
    "the messages are more together than their queue may have",
    "would come back",
    "needs a dead_letter",
    "the stream has no tiers, so nothing can be promoted",
    "must be above from_offset",
    "each drive may be in one tier",
    "each tier but the last must have a limit",
    "nothing is promoted from the first tier",
    "min_in_sync must not be above replicas",
    "a leaderless stream has no replicas",
    "must be the name of the drive",
)
"""Refused for what else the request says, or for a token that was made up."""


_VALUES: Final = st.lists(st.binary(max_size=50), min_size=1, max_size=20)

media_type(ARROW, _VALUES.map(arrow_of))
media_type(FRAMES, st.builds(frame_of, _VALUES, st.sampled_from(Codec)))
_JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner, max_size=1),
    max_leaves=5,
)

media_type(
    "application/x-ndjson",
    st.lists(_JSON, min_size=1, max_size=20).map(
        lambda values: "".join(f"{json.dumps(value)}\n" for value in values).encode()
    ),
)
media_type("application/octet-stream", st.binary(min_size=1, max_size=200))
schemathesis.openapi.format(STAGED_ID, st.integers(0, 2**128 - 1).map(staged_id))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    del context, kwargs
    for name in ("max_wait_ms", "wait_ms"):
        asked = (case.query or {}).get(name)
        if str(asked).isdigit() and WAIT_MS_MAX < int(str(asked)) <= 30_000:
            case.query[name] = WAIT_MS_MAX
    match case.body:
        case {"max_wait_ms": int(wait)} if WAIT_MS_MAX < wait <= 30_000:
            case.body["max_wait_ms"] = WAIT_MS_MAX


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """JSON Schema takes 1.0 for an integer; here it is none, and the contract says so in words."""
    del context
    return _whole(body)


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {name: _whole(member) for name, member in value.items()}
    return value


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Whether it is one: a request that fits its schema may still be refused for good reason, and
    what was taken away may still be shown as that."""
    del context
    if isinstance(failure, UseAfterFree):
        # A key that is revoked is shown for a while, as revoked.
        return bool(json.loads(response.content).get("state") != "revoked")
    if not isinstance(failure, RejectedPositiveData):
        return True
    problem = json.loads(response.content)
    code = Code(problem["code"])
    operation = case.operation.definition.raw["operationId"]
    if code in BY_STATE or operation in BEYOND_SCHEMA.get(code, set()):
        return False
    faults = problem.get("errors", [])
    if faults and all(
        (operation, fault["code"]) in NOT_THERE
        or (operation, fault.get("pointer"), fault["detail"]) in MERGED
        for fault in faults
    ):
        return False
    details = [problem["detail"], *(fault["detail"] for fault in faults)]
    return not any(words in detail for detail in details for words in BETWEEN_PARAMETERS)


@schemathesis.check
def answer_is_ours(context: Any, response: Any, case: Any) -> None:
    """Every answer has its id, and every failure is one of the registry, as the registry has it."""
    del context
    assert response.headers["x-content-type-options"] == ["nosniff"]
    [request_id] = response.headers["request-id"]
    if response.status_code < 400 or case.method == "HEAD":
        return
    assert response.headers["content-type"] == [PROBLEM]
    problem = json.loads(response.content)
    code = Code(problem["code"])
    assert problem["status"] == response.status_code == STATUS[code], code
    assert problem["request_id"] == request_id
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"][0]) > 0
    if response.status_code >= 500:
        operation = case.operation.definition.raw["operationId"]
        assert (operation, code) in SERVER_ERRORS, f"{operation} answered {code}"
        assert problem["outcome"] == "none"
    if case.headers is not None and "Authorization" in case.headers:
        assert case.headers["Authorization"] not in response.text
