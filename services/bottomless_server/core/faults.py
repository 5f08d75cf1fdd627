"""Faults of a request, put together as one refusal."""

from collections.abc import Sequence
from typing import Final

from bottomless.errors import Code, Fault, InvalidRequest

FAULT_COUNT_MAX: Final = 100
"""Faults told of one request; the rest would only make the answer large."""


def invalid(faults: Sequence[Fault], what: str = "records") -> InvalidRequest:
    """The answer for records, or something else, that do not fit; a lone kind of fault names the whole."""
    codes = {fault.code for fault in faults}
    code = Code.VALIDATION_FAILED
    if codes == {Code.NUMBER_OUT_OF_RANGE.value}:
        code = Code.NUMBER_OUT_OF_RANGE
    first = faults[0]
    place = f" at {first.pointer}" if first.pointer else ""
    return InvalidRequest(
        f"the {what} are not valid{place}: {first.detail}",
        code=code,
        faults=faults[:FAULT_COUNT_MAX],
    )


def bad_header(name: str, sentence: str) -> InvalidRequest:
    """The answer to a header that is not as it should be."""
    fault = Fault(Code.BAD_HEADER, sentence, header=name)
    return InvalidRequest(f"{name}: {sentence}", code=Code.BAD_HEADER, faults=[fault])
