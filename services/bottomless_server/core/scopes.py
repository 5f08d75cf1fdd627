"""Scopes: what a credential allows, as text and as questions that are answered quickly.

    scope   = "*" | operation | operation ":" pattern
    pattern = name of a stream or a queue | prefix "*"

A scope without a pattern allows its operation everywhere, as `operation:*` does. `orders-*`
means every name that starts with `orders-`, the name `orders-` itself included, and not `orders`
or `orders2`: the star stands for any number of characters, none among them. Operations on queues have
names of queues in their patterns, and all others names of streams. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import NAME_SIZE_MAX

EVERYTHING: Final = "*"

_PATTERN: Final = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]*\*?", re.ASCII)


class Operation(StrEnum):
    """What can be allowed."""

    READ = "read"
    APPEND = "append"
    CONSUME = "consume"
    DESCRIBE = "describe"
    MANAGE = "manage"
    DELETE = "delete"
    LOCATIONS = "locations"
    ADMIN = "admin"
    QUEUE_PUBLISH = "queue-publish"
    QUEUE_RECEIVE = "queue-receive"
    QUEUE_DESCRIBE = "queue-describe"
    QUEUE_MANAGE = "queue-manage"
    QUEUE_DELETE = "queue-delete"


_OPERATIONS: Final = frozenset(Operation)
_OF_QUEUES: Final = frozenset(one for one in Operation if one.startswith("queue-"))


@dataclass(frozen=True, slots=True)
class Names:
    """Names of streams, or of queues: some by themselves, some by how they start."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def have(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.prefixes)

    @property
    def all(self) -> bool:
        """Every name is among them."""
        return "" in self.prefixes

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Self:
        found = set(patterns)
        return cls(
            frozenset(pattern for pattern in found if not pattern.endswith("*")),
            tuple(sorted(pattern[:-1] for pattern in found if pattern.endswith("*"))),
        )


@dataclass(frozen=True, slots=True)
class Grants:
    """What several scopes allow together."""

    by_operation: Mapping[str, Names]

    def allow(self, operation: str, name: str) -> bool:
        """Whether the operation is allowed on a stream, or on a queue where it is one on queues."""
        names = self.by_operation.get(operation)
        return names is not None and names.have(name)

    def allow_everywhere(self, operation: str) -> bool:
        """Whether it is allowed whatever the name is."""
        names = self.by_operation.get(operation)
        return names is not None and names.all

    def allow_somewhere(self, operation: str) -> bool:
        """Whether it is allowed on some name, be it given or not."""
        return operation in self.by_operation

    def show(self, stream: str) -> bool:
        """Whether anything is allowed on a stream: otherwise it must look like one that is not there."""
        return any(
            names.have(stream)
            for operation, names in self.by_operation.items()
            if operation not in _OF_QUEUES
        )

    def show_queue(self, queue: str) -> bool:
        """Whether anything is allowed on a queue: otherwise it must look like one that is not there."""
        return any(
            names.have(queue)
            for operation, names in self.by_operation.items()
            if operation in _OF_QUEUES
        )


def parse_scope(text: str) -> tuple[str, str]:
    """A scope as operation and pattern; `*` is both.

    Raises:
        InvalidRequest: it is no scope of this version.
    """
    operation, colon, pattern = text.partition(":")
    if text == EVERYTHING:
        return EVERYTHING, EVERYTHING
    if not colon:
        pattern = EVERYTHING
    if (
        operation not in _OPERATIONS
        or not _PATTERN.fullmatch(pattern)
        or len(pattern) > NAME_SIZE_MAX + 1
    ):
        raise InvalidRequest(
            f"a scope is '*', or one of {', '.join(Operation)}, alone or with ':' and the name of "
            "a stream or a queue or 'prefix*'",
            code=Code.VALIDATION_FAILED,
        )
    return operation, pattern


@lru_cache(maxsize=4096)
def grants_of(scopes: tuple[str, ...]) -> Grants:
    """What scopes allow together. One that is not known allows nothing: tokens carry scopes of
    other applications too, and keys may have some of a newer version."""
    patterns: dict[str, set[str]] = {}
    for scope in scopes:
        try:
            operation, pattern = parse_scope(scope)
        except InvalidRequest:
            continue
        for each in Operation if operation == EVERYTHING else (operation,):
            patterns.setdefault(each, set()).add(pattern)
    return Grants({operation: Names.of(found) for operation, found in patterns.items()})
