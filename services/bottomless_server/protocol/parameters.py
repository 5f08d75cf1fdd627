"""Parsers of single query parameters: from their text to their value, or a refusal that says why.

Public and internal paths use the same ones. The query as a whole (unknown names, names that are
given twice) is judged by `runtime/http/queries.py`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bottomless.errors import Code, Fault, InvalidRequest

Parser = Callable[[str], Any]
"""Turns the text of a parameter into its value, or raises InvalidRequest."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A parameter that may be given several times; its value is a tuple, in the order of the query."""

    parse: Parser
    count_max: int


_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


def integer(low: int, high: int) -> Parser:
    """A parser of decimal integers from `low` to `high`: no sign, no leading zero, no underscore."""

    def parse(value: str) -> int:
        if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
            raise InvalidRequest(f"must be an integer from {low} to {high}")
        return int(value)

    return parse


def choice(*words: str) -> Parser:
    """A parser that takes one of `words`."""

    def parse(value: str) -> str:
        if value not in words:
            raise InvalidRequest(f"must be one of: {', '.join(words)}")
        return value

    return parse


def text(value: str) -> str:
    """A parser that takes any text but none."""
    if not value:
        raise InvalidRequest("must not be empty")
    return value


def boolean(value: str) -> bool:
    """A parser that takes `true` and `false`."""
    if value not in ("true", "false"):
        raise InvalidRequest("must be true or false")
    return value == "true"


def require(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The values of a query, one of which has to be there.

    Raises:
        InvalidRequest: `bad-parameter`, with the name of the one that is missing.
    """
    if name not in values:
        sentence = "the parameter must be given"
        fault = Fault(Code.BAD_PARAMETER, sentence, parameter=name)
        raise InvalidRequest(sentence, faults=[fault])
    return values
