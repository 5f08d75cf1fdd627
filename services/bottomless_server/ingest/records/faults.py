"""The faults of an append, each said in one place."""

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX
from bottomless_server.core.faults import invalid


def no_records(sentence: str, pointer: str | None = None) -> InvalidRequest:
    """An append of nothing, in whatever form it came; `pointer` is where in JSON records belong."""
    return invalid([Fault(Code.VALIDATION_FAILED, sentence, pointer)])


def record_too_large(pointer: str | None = None) -> InvalidRequest:
    sentence = "a record's value is larger than the limit"
    return InvalidRequest(
        sentence,
        code=Code.RECORD_TOO_LARGE,
        faults=[] if pointer is None else [Fault(Code.RECORD_TOO_LARGE, sentence, pointer)],
        facts={"limit_bytes": RECORD_VALUE_SIZE_MAX},
    )


def batch_too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        "the request holds more records than one append takes",
        code=Code.BATCH_TOO_LARGE,
        facts={"limit_records": limit},
    )


def column_fault(name: str, sentence: str, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    """A fault of a column of an Arrow request."""
    return invalid([Fault(code, sentence, f"/{name}" if name else None)])
