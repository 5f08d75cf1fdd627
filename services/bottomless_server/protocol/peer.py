"""What a service takes another one for: two calls and their answers, whoever makes them.

`runtime/peers/peers.py` makes them over HTTP. A problem that the other service answered is raised
as the `StoreError` that it was there, with its code, its facts and its outcome.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from bottomless.errors import Code, StoreError, Unavailable

Params = Mapping[str, str | int]
"""The query parameters of a call."""

P = ParamSpec("P")
T = TypeVar("T")


class PeerAnswer(NamedTuple):
    status: int
    """Below 400: worse is raised."""
    headers: Mapping[str, str]
    """Names are found in any case."""
    body: Any
    """None where the answer has no body."""


class PeerBytes(NamedTuple):
    headers: Mapping[str, str]
    """Names are found in any case."""
    data: bytes | memoryview


class PeerPort(Protocol):
    """One other service, at one address."""

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer:
        """Send a small request and read its JSON answer.

        Raises:
            StoreError: what the other service answered, or that it does not answer.
        """
        ...

    async def fetch(
        self,
        path: str,
        /,
        *,
        params: Params | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes:
        """Read the bytes at a path, all of them or none.

        Raises:
            StoreError: as `call`.
        """
        ...

    async def aclose(self) -> None:
        """End all connections."""
        ...


class PeersPort(Protocol):
    """Other services of one kind, by their internal address."""

    def at(self, url: str, /) -> PeerPort:
        """The service at a url."""
        ...

    async def aclose(self) -> None:
        """End all connections to all of them."""
        ...


def said_by(service: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a decoder refuse every answer that the protocol does not know.

    A service of another version, or something else at its address, may answer anything: that is
    a fault of that side, and no bug of this one.

    Raises:
        Unavailable: `peer-unavailable`, by the decoder, which names the service and no more.
    """

    def guarded(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def decoded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except (KeyError, TypeError, ValueError, StoreError) as error:
                raise Unavailable(
                    f"{service} gave an answer that the protocol does not know",
                    code=Code.PEER_UNAVAILABLE,
                ) from error

        return decoded

    return guarded


def number(value: Any) -> int:
    """A member that has to be an integer.

    Raises:
        TypeError: it is something else; a boolean is, too.
    """
    if type(value) is not int:
        raise TypeError
    return value


def string(value: Any) -> str:
    """A member that has to be text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError
    return value
