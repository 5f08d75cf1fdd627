"""Unreachable: why a server gave no answer, found in the causes of a library's error.

Each library wraps the same few troubles in errors of its own, ten frames deep. Users want to know
whether the host, the port, the certificate or the program there is wrong.
"""

import socket
import ssl
from collections.abc import Iterator
from enum import StrEnum, auto
from typing import NamedTuple


class HungUp(ConnectionError):
    """The connection ended, and nothing was answered."""


class Kind(StrEnum):
    """What is wrong between a program and its server."""

    CERTIFICATE = auto()
    NO_TLS = auto()
    NO_HOST = auto()
    NOBODY = auto()
    HUNG_UP = auto()
    SILENT = auto()


class Trouble(NamedTuple):
    """What is wrong, and the sentence that says it."""

    kind: Kind
    sentence: str


def trouble_of(error: BaseException, place: str) -> Trouble | None:
    """Find why `place`, a url or a host with a port, gave no answer.

    It is looked for in `error` and in everything that caused it. None if it is of no known kind.
    """
    return next(filter(None, (_of_one(each, place) for each in _deepest_first(error))), None)


def _of_one(error: BaseException, place: str) -> Trouble | None:
    match error:
        case ssl.SSLCertVerificationError():
            sentence = f"the certificate of {place} is not trusted: {error.verify_message}"
            return Trouble(Kind.CERTIFICATE, sentence)
        case ssl.SSLError():
            return Trouble(Kind.NO_TLS, f"{place} does not speak TLS")
        case socket.gaierror():
            return Trouble(Kind.NO_HOST, f"the host of {place} is not known")
        case ConnectionRefusedError():
            return Trouble(Kind.NOBODY, f"nothing listens at {place}")
        case HungUp():
            return Trouble(Kind.HUNG_UP, f"{place} hung up without an answer")
        case ConnectionResetError():
            return Trouble(Kind.HUNG_UP, f"{place} hung up")
        case TimeoutError():
            return Trouble(Kind.SILENT, f"{place} does not answer in time")
    # By its name: the libraries that carry requests are none of this module's business.
    if type(error).__name__ in {"RemoteProtocolError", "ServerDisconnectedError"}:
        return Trouble(Kind.HUNG_UP, f"{place} hung up without an answer")
    return None


def _deepest_first(error: BaseException) -> Iterator[BaseException]:
    """An error and what is beneath, the deepest first, since that is the most exact."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        # One for each address of a host; what is wrong with the last is as good as any.
        if isinstance(cause, BaseExceptionGroup):
            found += cause.exceptions
        cause = cause.__cause__ or cause.__context__
    yield from reversed(found)
