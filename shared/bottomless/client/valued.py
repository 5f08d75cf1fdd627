"""`Valued`: what an answer shows with a value and headers, in one shape whatever form it has there. Pure.

An answer shows a value in the form that suits it: `value` for text, `json` for JSON, `value_base64`
for other bytes. A program that reads what others have written wants one form.
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import orjson


class Valued(dict[str, Any]):
    """The answer's members as a dict, and attributes in one shape for all of them.

    An attribute is computed when it is asked for, so a program that asks for none pays nothing.
    """

    __slots__ = ()

    @property
    def value(self) -> bytes:
        """The value as bytes.

        For a JSON value that was shown as JSON they are the same document written anew, compact;
        where a read had `value_encoding="text"` they are the stored bytes, unchanged.
        """
        if "value" in self:
            text: str = self["value"]
            return text.encode()
        if "json" in self:
            return orjson.dumps(self["json"])
        return b64decode(self["value_base64"])

    @property
    def text(self) -> str:
        """The value as text; of a JSON value its JSON text.

        Raises:
            UnicodeDecodeError: the value is not UTF-8.
        """
        if "value" in self:
            text: str = self["value"]
            return text
        return self.value.decode()

    def json(self) -> Any:
        """Decode the value as JSON, also one that was stored as text or bytes.

        Raises:
            ValueError: the value is not JSON.
        """
        if "json" in self:
            return self["json"]
        return orjson.loads(self.value)

    @property
    def headers(self) -> dict[str, bytes | None]:
        """The headers by their names; empty where there are none."""
        return {name: _header(value) for name, value in (self.get("headers") or {}).items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"


def _header(value: str | Mapping[str, str] | None) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return None if value is None else b64decode(value["base64"])
