"""Checks of values against closed schemas, and merge patches of them: what configurations share.

A closed schema is strict: an unknown member or a number in quotes is refused. The answer names the
place of each fault, never what was sent. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.plain_reason import plain_reason
from bottomless.model.size import parse_size
from bottomless.model.unknown_member import unknown_member

UNLIMITED: Final = "unlimited"
"""Says explicitly that there is no limit; null means the server's default instead."""

Schema = TypeVar("Schema", bound=BaseModel)
Sections = Mapping[str, type[BaseModel]]
"""The schemas of members that are objects with known members themselves."""


class Closed(BaseModel):
    """A value whose members are all known, and of exactly their types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


def read_size(value: object) -> object:
    """Turn a text such as `10 MiB` into bytes, before it is checked; all else stays what it is.

    A number in quotes is one of these, and so it is refused: text has a unit.

    Raises:
        ValueError: it is no size, or one that is out of bounds.
    """
    if not isinstance(value, str) or value == UNLIMITED or value.isdecimal():
        return value
    size = parse_size(value)
    if not 1 <= size <= OFFSET_MAX:
        raise ValueError("a size must be from 1 to 2^53 - 1 bytes")
    return size


def checked(
    schema: type[Schema], value: object, sections: Sections, *, what: str = "the configuration"
) -> Schema:
    """Check a readable JSON value against a schema.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        items = error.errors(include_input=False, include_url=False)
        found = [_fault(schema, item, sections) for item in items]
        # A member of several types fails once for each of them.
        faults = list({fault.pointer: fault for fault in reversed(found)}.values())[::-1]
        raise InvalidRequest(
            f"{what} is not valid", code=Code.VALIDATION_FAILED, faults=faults
        ) from error


def refused(code: str, sentence: str, pointer: str) -> InvalidRequest:
    """Make the error of a configuration with one fault. It is not raised here."""
    return InvalidRequest(
        "the configuration is not valid",
        code=Code.VALIDATION_FAILED,
        faults=[Fault(code, sentence, pointer)],
    )


def _fault(schema: type[BaseModel], item: Any, sections: Sections) -> Fault:
    place, kind = item["loc"], item["type"]
    if kind in {"extra_forbidden", "invalid_key"}:
        # The member's name is the sender's, so the pointer stops at its parent.
        known = _known(schema, place[:-1], sections)
        return Fault("unknown-member", unknown_member(place[-1:], known), _pointer(place[:-1]))
    if place and place[0] == "labels":
        place = place[:1]
    if len(place) > 1 and place[0] in sections:
        place = place[:2]
    return Fault(str(kind).replace("_", "-"), plain_reason(str(item["msg"])), _pointer(place))


def _known(schema: type[BaseModel], place: tuple[object, ...], sections: Sections) -> list[str]:
    """The members that a schema knows at a place."""
    if not place:
        return list(schema.model_fields)
    section = sections.get(str(place[0])) if len(place) == 1 else None
    return list(section.model_fields) if section is not None else []


def _pointer(place: tuple[object, ...]) -> str:
    return "".join(f"/{part}" for part in place)


def merged(target: Any, patch: Any, *, anything_may_go: bool = False) -> Any:
    """Apply a merge patch (RFC 7396) to a plain value; null takes a member out.

    A null for a member that is not there is kept, so that the check after it finds a fault: it can only
    be a typing error. Only of `labels` anything may go.
    """
    if not isinstance(patch, dict) or not isinstance(target, dict):
        return patch
    result = dict(target)
    for name, value in patch.items():
        if value is None and (anything_may_go or name in result):
            result.pop(name, None)
        else:
            below = name == "labels"
            result[name] = merged(result.get(name), value, anything_may_go=below)
    return result
