"""Streams that never end, over HTTP: what a program installs to append, read and follow them.

The errors that a program catches are here too (errors.py says what to do about each). `Client`
and `AsyncClient` are loaded when they are first named: the services and the command line import
parts of this package that need no HTTP library.
"""

from typing import TYPE_CHECKING, Any

from bottomless.errors import (
    Code,
    Corrupt,
    Denied,
    Exists,
    Fenced,
    InvalidRequest,
    NotFound,
    NotServed,
    OffsetGone,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)

if TYPE_CHECKING:
    from bottomless.client import AsyncClient, Client, Record

_OF_CLIENT = ("AsyncClient", "Client", "Record")

__all__ = [
    "AsyncClient",
    "Client",
    "Code",
    "Corrupt",
    "Denied",
    "Exists",
    "Fenced",
    "InvalidRequest",
    "NotFound",
    "NotServed",
    "OffsetGone",
    "Outcome",
    "Overloaded",
    "Record",
    "StoreError",
    "Unavailable",
    "WrongOffset",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bottomless import client  # noqa: PLC0415

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted(__all__)
