"""Parameters of a call, as a program gives them and as they stand in the query of its request."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bottomless.client.transport import QueryValue
from bottomless.errors import Code, Fault, InvalidRequest

Parameter: TypeAlias = int | str | bytes | Sequence[str | bytes]
"""A parameter of the API; several texts for one that may be given several times, and bytes for keys."""


def query_of(parameters: Mapping[str, Parameter]) -> dict[str, QueryValue]:
    """Make the query of these parameters; a `key` of bytes becomes `key_base64`.

    Raises:
        InvalidRequest: one names nothing, which would be read as if it were left out, or has bytes
            and is no key.
    """
    query: dict[str, QueryValue] = {}
    for name, value in parameters.items():
        if isinstance(value, bool):
            query[name] = "true" if value else "false"
        elif isinstance(value, int | str):
            query[name] = value
        else:
            _add(query, name, [value] if isinstance(value, bytes) else value)
    return query


def _add(query: dict[str, QueryValue], name: str, given: Sequence[str | bytes]) -> None:
    texts = tuple(each for each in given if isinstance(each, str))
    raw = tuple(b64encode(each).decode("ascii") for each in given if isinstance(each, bytes))
    if not given:
        raise _refused(name, "must name something; leave it out to ask for everything")
    if raw and name != "key":
        raise _refused(name, "must be text")
    if texts:
        query[name] = texts
    if raw:
        query["key_base64"] = raw


def _refused(name: str, sentence: str) -> InvalidRequest:
    fault = Fault(Code.BAD_PARAMETER, sentence, parameter=name)
    return InvalidRequest(f"{name} {sentence}", code=Code.BAD_PARAMETER, faults=[fault])
