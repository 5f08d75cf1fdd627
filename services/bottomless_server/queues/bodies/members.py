"""Members of JSON objects in requests to queues: strict, each fault with a pointer to its place."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from bottomless.errors import Fault, InvalidRequest
from bottomless.model.names import parse_queue_name
from bottomless.model.unknown_member import unknown_member
from bottomless_server.core.faults import FAULT_COUNT_MAX, invalid
from bottomless_server.core.value_members import Wrong, read_text

Read = Callable[[Any, str], Any]
"""Makes the value of a member, which stands at a pointer within its object; raises Wrong."""

REQUEST: Final = "members of the request"


def integer(low: int, high: int) -> Read:
    """Make a reader of a whole number from `low` to `high`."""

    def read(value: Any, place: str) -> int:
        # Not isinstance: JSON's true is not a number.
        if type(value) is not int or not low <= value <= high:
            raise Wrong(place, f"must be an integer from {low} to {high}")
        return value

    return read


def flag(value: Any, place: str) -> bool:
    """Read a truth value.

    Raises:
        Wrong: it is something else.
    """
    if not isinstance(value, bool):
        raise Wrong(place, "must be true or false")
    return value


def choice(*words: str) -> Read:
    """Make a reader of one of `words`."""

    def read(value: Any, place: str) -> str:
        if value not in words:
            raise Wrong(place, f"must be one of: {', '.join(words)}")
        return str(value)

    return read


def queue_name(value: Any, place: str) -> str:
    """Read the name of a queue.

    Raises:
        Wrong: it is none.
    """
    try:
        return parse_queue_name(read_text(value, place))
    except InvalidRequest as error:
        raise Wrong(place, error.message, error.code) from None


def read_object(
    value: Any, readers: Mapping[str, Read], *, required: Iterable[str] = (), what: str = REQUEST
) -> dict[str, Any]:
    """Read the members of the JSON object that a body is; those that are absent are left out.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    if not isinstance(value, dict):
        raise invalid([_fault(Wrong("", "the body must be an object"))], what)
    if unknown := [name for name in value if name not in readers]:
        # The member's name is the sender's, so the pointer stops at its parent.
        sentence = unknown_member(unknown, tuple(readers))
        faults.append(_fault(Wrong("", sentence, "unknown-member")))
    faults += [_fault(Wrong(f"/{name}", "must be given")) for name in required if name not in value]
    for name, read in readers.items():
        if name not in value:
            continue
        try:
            found[name] = read(value[name], f"/{name}")
        except Wrong as wrong:
            faults.append(_fault(wrong))
    if faults:
        raise invalid(faults[:FAULT_COUNT_MAX], what)
    return found


def _fault(wrong: Wrong) -> Fault:
    return Fault(wrong.code, wrong.detail, wrong.place)
