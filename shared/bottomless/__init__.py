"""Streams that never end, over HTTP: what a program installs to append, read and follow them.

`Client` and `AsyncClient` are loaded when they are first named: the services and the command
line import parts of this package that need no HTTP library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bottomless.client import AsyncClient, Client, Record

__all__ = ["AsyncClient", "Client", "Record"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bottomless import client  # noqa: PLC0415

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted(__all__)
