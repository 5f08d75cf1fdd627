"""Templates: how `read -f` writes a record, with the letters and escapes that kcat has.

A letter that is not known is refused before anything is read, so a typo never becomes output.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import orjson
import typer

from bottomless.cli.output import write

if TYPE_CHECKING:
    from bottomless.client import Record

Part = bytes | Callable[["Record"], bytes]

LETTERS: Final = (
    "%s value, %S its bytes, %k key, %K its bytes (-1: none), %o offset, %T timestamp in ms, "
    "%e event time in ms, %h headers as JSON, %t stream, %% a percent sign"
)
ESCAPES: Final = r"\n \r \t \0 \\ \xHH"

_TOKEN: Final = re.compile(
    r"%(?P<letter>.?)|\\(?:x(?P<hex>[0-9A-Fa-f]{2})|(?P<escape>.?))|(?P<text>[^%\\]+)", re.DOTALL
)
_ESCAPED: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _key_size(record: "Record") -> bytes:
    return b"%d" % (-1 if record.key is None else len(record.key))


def _event_time(record: "Record") -> bytes:
    return b"" if record.event_time is None else b"%d" % record.event_time


_OF_RECORD: Final[dict[str, Callable[["Record"], bytes]]] = {
    "s": lambda record: record.value,
    "S": lambda record: b"%d" % len(record.value),
    "k": lambda record: record.key or b"",
    "K": _key_size,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "e": _event_time,
    "h": lambda record: orjson.dumps(record.get("headers") or {}),
}


def parse_template(text: str, stream: str) -> list[Part]:
    """Split a template into its parts, in their order.

    Raises:
        typer.BadParameter: it has a letter or an escape that is not known, or `%` or a backslash
            at its end.
    """
    parts: list[Part] = []
    for token in _TOKEN.finditer(text):
        letter, escape = token["letter"], token["escape"]
        if letter is not None:
            parts.append(_of_letter(letter, stream))
        elif token["hex"] is not None:
            parts.append(bytes.fromhex(token["hex"]))
        elif escape is not None:
            if escape not in _ESCAPED:
                raise typer.BadParameter(f"escapes are: {ESCAPES}", param_hint="--template")
            parts.append(_ESCAPED[escape])
        else:
            parts.append(token["text"].encode("utf-8", "surrogateescape"))
    return parts


def _of_letter(letter: str, stream: str) -> Part:
    if letter == "%":
        return b"%"
    if letter == "t":
        return stream.encode()
    if letter not in _OF_RECORD:
        raise typer.BadParameter(f"letters are: {LETTERS}", param_hint="--template")
    return _OF_RECORD[letter]


class TemplateWriter:
    """Writes each record as the template says, and nothing between them."""

    value_encoding = "text"
    """What the server is asked for, so that JSON comes as the text that it is stored as."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def write(self, records: Iterable["Record"]) -> None:
        """Write records to stdout."""
        for record in records:
            write(b"".join(p if isinstance(p, bytes) else p(record) for p in self._parts))

    def close(self) -> None:
        """Do nothing: the form has no end of its own."""
