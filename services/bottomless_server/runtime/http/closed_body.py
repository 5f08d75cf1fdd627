"""Bodies of requests as closed schemas: an unknown member is refused, never ignored."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import MIB
from bottomless.model.plain_reason import plain_reason
from bottomless.model.unknown_member import unknown_member
from bottomless_server.protocol.closed_body import ClosedBody
from bottomless_server.runtime.http.app import (
    content_encoding,
    content_type,
    encode_json,
    parse_json,
    read_body,
)

__all__ = ["BODY_SIZE_MAX", "JSON", "ClosedBody", "read_closed_body", "read_json"]

BODY_SIZE_MAX: Final = MIB
JSON: Final = "application/json"

B = TypeVar("B", bound=BaseModel)


async def read_json(
    request: Request,
    accepted: Sequence[str] = (JSON,),
    *,
    optional: bool = False,
    size_max: int = BODY_SIZE_MAX,
) -> Any:
    """The JSON of a request's body; no body is `{}` where it is optional.

    Raises:
        InvalidRequest
    """
    data = await read_body(request.scope, request.receive, size_max)
    if optional and not data:
        return {}
    content_type(request.scope, accepted)
    content_encoding(request.scope, ())
    value = parse_json(data)
    # Integers beyond 64 bits and lone surrogates have a code of their own.
    encode_json(value)
    return value


async def read_closed_body(
    request: Request, model: type[B], *, optional: bool = False, size_max: int = BODY_SIZE_MAX
) -> B:
    """A request's body as `model` describes it; no body is `{}` where it is optional.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault, or it is not JSON.
    """
    value = await read_json(request, optional=optional, size_max=size_max)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        raise InvalidRequest(
            "the body is not valid",
            code=Code.VALIDATION_FAILED,
            faults=[_fault(model, item) for item in found],
        ) from error


def _fault(model: type[BaseModel], item: Any) -> Fault:
    place, kind = item["loc"], str(item["type"])
    if kind == "extra_forbidden":
        # The member's name is the sender's, so the pointer stops at its parent.
        sentence = unknown_member(place[-1:], _known(model, place[:-1]))
        return Fault("unknown-member", sentence, _pointer(place[:-1]))
    return Fault(kind.replace("_", "-"), plain_reason(str(item["msg"])), _pointer(place))


def _known(model: type[BaseModel], place: Sequence[object]) -> list[str]:
    """The members that a body knows at a place."""
    for part in place:
        field = model.model_fields.get(str(part))
        annotation = None if field is None else field.annotation
        below = [
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if not below:
            return []
        model = below[0]
    return list(model.model_fields)


def _pointer(place: Sequence[object]) -> str:
    return "".join(f"/{part}" for part in place)
