"""How one value and its headers stand in the JSON of a request: strict, each fault with its place."""

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import HEADER_COUNT_MAX, HEADER_SIZE_MAX
from bottomless.model.record import Content
from bottomless.model.rows import Headers

EncodeJson = Callable[[Any, str], bytes]
"""Writes a JSON value compactly; raises InvalidRequest with the pointer it is given."""

VALUES: Final = ("value", "json", "value_base64")
"""The three members of which one says the value."""
_OTHER_VALUES: Final = "must be a string; the member json takes any other JSON value"


class Wrong(Exception):
    """A fault of one record or message: where in it, and what."""

    def __init__(self, place: str, detail: str, code: str = Code.VALIDATION_FAILED) -> None:
        super().__init__(detail)
        self.place, self.detail, self.code = place, detail, code


def read_value(
    members: Mapping[str, Any], encode_json: EncodeJson, root: str, number: int, *, what: str
) -> tuple[str, bytes, Content]:
    """Read the value of `what`, which stands at `number` of the array at the pointer `root`: the
    member that has it, its bytes and what they are.

    Raises:
        Wrong: it has none, several, or one that is not what its member says.
    """
    given = [name for name in VALUES if name in members]
    if len(given) != 1:
        raise Wrong("", f"{what} must have exactly one of value, json and value_base64")
    name = given[0]
    if name == "json":
        try:
            return name, encode_json(members["json"], f"{root}/{number}/json"), Content.JSON
        except InvalidRequest as error:
            raise Wrong("/json", error.message, error.code) from None
    if name == "value":
        return name, _encoded(members["value"], "/value", _OTHER_VALUES), Content.TEXT
    return name, read_base64(members[name], "/value_base64"), Content.BYTES


def read_text(value: Any, place: str, otherwise: str = "must be a string") -> str:
    """Read a text that is Unicode.

    Raises:
        Wrong: it is something else, at `place`.
    """
    _encoded(value, place, otherwise)
    return str(value)


def _encoded(value: Any, place: str, otherwise: str) -> bytes:
    if not isinstance(value, str):
        raise Wrong(place, otherwise)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Wrong(place, "holds a lone surrogate, which is not Unicode") from None


def read_base64(value: Any, place: str) -> bytes:
    """Read bytes that stand as strict base64.

    Raises:
        Wrong: it is something else, at `place`.
    """
    text = read_text(value, place)
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Wrong(place, "must be base64 of RFC 4648, section 4, with its padding") from None
    if binascii.b2a_base64(data, newline=False) != text.encode():
        # Bits after the last byte: two texts would mean the same bytes.
        raise Wrong(place, "must be canonical base64: the bits after the last byte are zero")
    return data


def read_headers(value: Any, *, what: str, count_max: int = HEADER_COUNT_MAX) -> Headers:
    """Read the member `headers` of `what`.

    Raises:
        Wrong: one is not as it should be.
    """
    if not isinstance(value, dict):
        raise Wrong("/headers", "headers must be an object")
    if len(value) > count_max:
        raise Wrong("/headers", f"{what} must have at most {count_max} headers")
    return [_header(name, item) for name, item in value.items()]


def _header(name: str, item: Any) -> tuple[str, bytes]:
    # Pointers stop at /headers: a header's name is the sender's.
    place = "/headers"
    read_text(name, place)
    if isinstance(item, dict):
        if item.keys() != {"base64"}:
            raise Wrong(place, "a header that is an object must have exactly the member base64")
        data = read_base64(item["base64"], place)
    elif isinstance(item, str):
        data = read_text(item, place).encode()
    else:
        raise Wrong(place, 'a header must be a string or {"base64": …}')
    if len(name.encode()) + len(data) > HEADER_SIZE_MAX:
        raise Wrong(place, f"a header must have at most {HEADER_SIZE_MAX} bytes with its name")
    return name, data
