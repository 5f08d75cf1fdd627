"""The faults of an append, each said in one place."""

from collections.abc import Sequence

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import RECORD_VALUE_SIZE_MAX

FAULT_COUNT_MAX = 100
"""Faults told of one request; the rest would only make the answer large."""


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


def invalid(faults: Sequence[Fault]) -> InvalidRequest:
    """The answer for records that do not fit; a lone kind of fault names the whole."""
    codes = {fault.code for fault in faults}
    code = Code.VALIDATION_FAILED
    if codes == {Code.NUMBER_OUT_OF_RANGE.value}:
        code = Code.NUMBER_OUT_OF_RANGE
    first = faults[0]
    place = f" at {first.pointer}" if first.pointer else ""
    return InvalidRequest(
        f"the records are not valid{place}: {first.detail}",
        code=code,
        faults=faults[:FAULT_COUNT_MAX],
    )


def column_fault(name: str, sentence: str, code: Code = Code.VALIDATION_FAILED) -> InvalidRequest:
    """A fault of a column of an Arrow request."""
    return invalid([Fault(code, sentence, f"/{name}" if name else None)])
