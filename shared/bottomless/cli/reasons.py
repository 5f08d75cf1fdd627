"""Reasons: why a server could not be talked to, found in the causes of the client's error.

The client says for every cause that the server does not answer. A user at a terminal wants to know
whether the host, the port, the certificate or the program there is wrong.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bottomless.cli.connection import Choice, place_of
from bottomless.errors import Code, StoreError, Unavailable

STRANGER = "the answer is not that of a Bottomless server"
"""The client's sentence for an answer that is not ours."""

_START = "start the server, or say with --url where it is"
_LOOK = "see that --url names a Bottomless server"
_TLS = f"{_LOOK}, with https:// if it speaks TLS"


class Reason(NamedTuple):
    """Why something failed, and what to do."""

    sentence: str
    advice: str


def reason_of(error: StoreError, choice: Choice) -> Reason | None:
    """Find what is wrong between here and the server; None if the error is about something else."""
    if error.code is Code.UNAUTHENTICATED:
        return Reason(error.message, _how_to_be_known(choice))
    if not isinstance(error, Unavailable):
        return None
    place = place_of(choice.url)
    if error.message == STRANGER:
        return Reason(f"{STRANGER}: another program answers at {place}", _LOOK)
    for cause in _causes(error):
        found = _of_cause(cause, place)
        if found is not None:
            return found
    return None


def _how_to_be_known(choice: Choice) -> str:
    if choice.credential is not None:
        return f"the token of the {choice.credential.source} is not good (any more)"
    named = "name one with --token-file, BOTTOMLESS_TOKEN or a profile"
    if choice.withheld is not None:
        return f"the token of {choice.withheld.source} goes to its own url only; {named}"
    return f"no token was sent; {named}"


def _of_cause(cause: BaseException, place: str) -> Reason | None:
    # Here and not above: a command that fails has loaded them, help has not.
    import socket  # noqa: PLC0415
    import ssl  # noqa: PLC0415

    match cause:
        case ssl.SSLCertVerificationError():
            return Reason(
                f"the certificate of {place} is not trusted: {cause.verify_message}",
                "--ca-file names the authority if it is your own",
            )
        case ssl.SSLError():
            return Reason(f"{place} does not speak TLS", "a url with http:// is for that")
        case socket.gaierror():
            return Reason(f"the host of {place} is not known", _LOOK)
        case ConnectionRefusedError():
            return Reason(f"nothing listens at {place}", _START)
        case ConnectionResetError():
            return Reason(f"{place} hung up", _TLS)
        case TimeoutError():
            return Reason(f"{place} does not answer in time", _START)
    if _hung_up(cause):
        return Reason(f"{place} hung up without an answer", _TLS)
    return None


def _hung_up(cause: BaseException) -> bool:
    # By its name: the libraries that carry requests are none of this module's business.
    return type(cause).__name__ in {"RemoteProtocolError", "ServerDisconnectedError"}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What is beneath, the deepest first, since that is the most exact."""
    found: list[BaseException] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and cause not in found:
        found.append(cause)
        # One for each address of a host; what is wrong with the last is as good as any.
        if isinstance(cause, BaseExceptionGroup):
            found += cause.exceptions
        cause = cause.__cause__ or cause.__context__
    yield from reversed(found)
