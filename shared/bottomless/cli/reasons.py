"""Reasons: why a server could not be talked to, found in the causes of the client's error.

The client says for every cause that the server does not answer. A user at a terminal wants to know
whether the host, the port, the certificate or the program there is wrong.
"""

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
    faults: tuple[str, ...] | None = None
    """What is said of single faults, in words of the command line; None: what the server says."""


def reason_of(error: StoreError, choice: Choice) -> Reason | None:
    """Find what is wrong between here and the server; None if the error is about something else."""
    if error.code is Code.UNAUTHENTICATED:
        return Reason(error.message, _how_to_be_known(choice))
    if not isinstance(error, Unavailable):
        return None
    place = place_of(choice.url)
    if error.message == STRANGER:
        return Reason(f"{STRANGER}: another program answers at {place}", _LOOK)
    # Here and not above: a command that fails has loaded it, help has not.
    from bottomless.client.unreachable import Kind, trouble_of  # noqa: PLC0415

    trouble = trouble_of(error, place)
    if trouble is None:
        return None
    advice = {
        Kind.CERTIFICATE: "--ca-file names the authority if it is your own",
        Kind.NO_TLS: "use a url with http://",
        Kind.NO_HOST: _LOOK,
        Kind.NOBODY: _START,
        Kind.HUNG_UP: _TLS,
        Kind.SILENT: _START,
    }
    return Reason(trouble.sentence, advice[trouble.kind])


def _how_to_be_known(choice: Choice) -> str:
    if choice.credential is not None:
        return f"the token of the {choice.credential.source} is not valid (any more)"
    named = "name one with --token-file, BOTTOMLESS_TOKEN or a profile"
    if choice.withheld is not None:
        return f"the token of {choice.withheld.source} goes to its own url only; {named}"
    return f"no token was sent; {named}"
