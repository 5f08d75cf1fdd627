"""Read the query of a request strictly: what is not known, twice or out of range is refused.

Frameworks drop unknown parameters; here `?ofset=1` is an answer of 400, not a read from
somewhere else.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless_server.protocol.parameters import Parser, Repeated

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def parse_query(scope: Scope, parsers: Mapping[str, Parser | Repeated]) -> dict[str, Any]:
    """The parameters that the query holds, by name; those it does not hold are absent. One that is
    `Repeated` is a tuple.

    Raises:
        InvalidRequest: `unknown-parameter`, `duplicate-parameter`, `bad-parameter`, or what a
            parser raised, with the name of the parameter.
    """
    values: dict[str, Any] = {}
    query = scope.get("query_string", b"")
    if not query:
        return values
    for pair in query.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition(b"=")
        name = _decode(raw_name, None)
        if name not in parsers:
            raise _fault(Code.UNKNOWN_PARAMETER, _unknown(parsers), name)
        parser = parsers[name]
        if isinstance(parser, Repeated):
            before = values.get(name, ())
            if len(before) == parser.count_max:
                sentence = f"the parameter must be given at most {parser.count_max} times"
                raise _fault(Code.BAD_PARAMETER, sentence, name)
            values[name] = (*before, _parsed(parser.parse, raw_value, name))
            continue
        if name in values:
            raise _fault(Code.DUPLICATE_PARAMETER, "the parameter must not be given twice", name)
        values[name] = _parsed(parser, raw_value, name)
    return values


def _parsed(parse: Parser, raw_value: bytes, name: str) -> Any:
    try:
        return parse(_decode(raw_value, name))
    except InvalidRequest as error:
        raise _at(error, name) from None


def bad_parameter(name: str, sentence: str) -> InvalidRequest:
    """A parameter that is none beside what else the request says."""
    return InvalidRequest(
        f"{name}: {sentence}",
        code=Code.BAD_PARAMETER,
        faults=[Fault(Code.BAD_PARAMETER, sentence, parameter=name)],
    )


def _decode(raw: bytes, name: str | None) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise _fault(Code.BAD_PARAMETER, "the query is not UTF-8", name) from None


def _unknown(parsers: Mapping[str, Parser | Repeated]) -> str:
    known = ", ".join(sorted(parsers))
    return f"there is no such parameter; known here: {known}" if known else "none is known here"


def _fault(code: Code, sentence: str, name: str | None) -> InvalidRequest:
    # A name is said back only where it is plain: answers carry no input.
    shown = name if name and _PLAIN_NAME.fullmatch(name) else None
    return InvalidRequest(sentence, code=code, faults=[Fault(code, sentence, parameter=shown)])


def _at(error: InvalidRequest, name: str) -> InvalidRequest:
    if any(fault.parameter for fault in error.faults):
        return error
    return InvalidRequest(
        f"{name}: {error.message}",
        code=error.code,
        faults=[Fault(error.code, error.message, parameter=name)],
        facts=error.facts,
    )
