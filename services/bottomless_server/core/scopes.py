"""Scopes: what a credential allows, as text and as questions that are answered quickly.

    scope   = "*" | operation | operation ":" pattern
    pattern = name of a stream | prefix "*"

A scope without a pattern allows its operation everywhere, as `operation:*` does. `orders-*`
means every name that starts with `orders-`, the name `orders-` itself included, and not `orders`
or `orders2`: the star stands for any number of characters, none among them. Pure.
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


_OPERATIONS: Final = frozenset(Operation)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of streams: some by themselves, some by how they start."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def have(self, stream: str) -> bool:
        return stream in self.exact or stream.startswith(self.prefixes)

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

    def allow(self, operation: str, stream: str) -> bool:
        """Whether the operation is allowed on a stream."""
        names = self.by_operation.get(operation)
        return names is not None and names.have(stream)

    def allow_everywhere(self, operation: str) -> bool:
        """Whether it is allowed whatever the stream is called."""
        names = self.by_operation.get(operation)
        return names is not None and names.all

    def allow_somewhere(self, operation: str) -> bool:
        """Whether it is allowed on some stream, be there one or not."""
        return operation in self.by_operation

    def show(self, stream: str) -> bool:
        """Whether anything is allowed on a stream: otherwise it must look like one that is not there."""
        return any(names.have(stream) for names in self.by_operation.values())


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
            "a stream or 'prefix*'",
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
