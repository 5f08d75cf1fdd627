"""What the body of a request names beside the queue in its path, and what a credential must allow there.

It is looked for where the credential was shown, before the request may be passed on to another node.
What is not as it should be is passed over here: whoever answers the request refuses it, with its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, Denied, Fault, InvalidRequest, NotFound, StoreError
from bottomless_server.core.principal import Principal
from bottomless_server.core.scopes import Operation

PUBLISH_TO: Final = "publish_to_queues"
PUT: Final = "put_queue"
PATCH: Final = "patch_queue"
REDRIVE: Final = "redrive_messages"
NAMING: Final = frozenset({PUBLISH_TO, PUT, PATCH, REDRIVE})
"""Operations whose bodies name queues or streams."""
DEAD_LETTER_STREAM: Final = "/dead_letter/stream"
ARCHIVE: Final = "/archive/stream"
"""Pointers to the streams that a queue's configuration names."""


class Named(NamedTuple):
    """A queue or a stream that a body names."""

    operation: Operation
    """What the credential must allow on it."""
    name: str
    pointer: str = ""
    """Where a configuration names it."""

    def require(self, principal: Principal) -> None:
        """Ask whether a principal may do it.

        Raises:
            NotFound: nothing is allowed on the queue, so it looks like one that is not there.
            InvalidRequest: `validation-failed`: the same of a stream.
            Denied: `forbidden`.
        """
        if self.operation is not Operation.APPEND:
            principal.require_queue(self.operation, self.name)
            return
        try:
            principal.require_visible(self.operation, self.name)
        except NotFound as error:
            raise no_target([unknown(self.pointer, error)]) from error
        except Denied as error:
            there = Fault(error.code, error.message, self.pointer)
            raise Denied(error.message, code=error.code, faults=[there]) from error


def unknown(pointer: str, error: StoreError) -> Fault:
    """What is wrong with a configuration that names a stream that is not there, or not for its sender."""
    return Fault(error.code, error.message, pointer)


def no_target(faults: Sequence[Fault]) -> InvalidRequest:
    """The answer to a configuration that names such streams."""
    return InvalidRequest(
        "the configuration is not valid", code=Code.VALIDATION_FAILED, faults=faults
    )


def named_in(operation_id: str, body: Any) -> Iterator[Named]:
    """What the body of an operation names; `body` is what strict parsing made of it."""
    if not isinstance(body, dict):
        return
    if operation_id == PUBLISH_TO:
        queues = body.get("queues")
        for name in queues if isinstance(queues, list) else ():
            yield from _queue(name)
    elif operation_id == REDRIVE:
        yield from _queue(body.get("to"))
    else:
        dead_letter = _section(body, "dead_letter")
        yield from _queue(dead_letter.get("queue"))
        yield from _stream(dead_letter.get("stream"), DEAD_LETTER_STREAM)
        yield from _stream(_section(body, "archive").get("stream"), ARCHIVE)


def _section(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    return value if isinstance(value, dict) else {}


def _queue(name: Any) -> Iterator[Named]:
    if isinstance(name, str):
        yield Named(Operation.QUEUE_PUBLISH, name)


def _stream(name: Any, pointer: str) -> Iterator[Named]:
    if isinstance(name, str):
        yield Named(Operation.APPEND, name, pointer)
