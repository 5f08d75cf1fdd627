"""The shared secret of internal listeners: whoever reaches one over TCP has to know it.

What an internal listener serves may do anything in every tenant, and a port is reached by more
than those whom an operator thinks of: by anybody on the machine, and by any program of the
neighbourhood that can be talked into sending a request. A unix socket is reached by its user alone
and asks for nothing.

There may be two secrets at once, and both are taken; the first is what this process sends. So a
secret is changed without a pause: the new one second everywhere, then first everywhere, then alone.
"""

import re
from hmac import compare_digest
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, Denied
from bottomless_server.protocol.secret import shown_secret
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.foreign_pages import Hosts, without_foreign_pages
from bottomless_server.runtime.http.health import PATHS
from bottomless_server.runtime.http.problems import request_id_of, send_problem

SECRET_COUNT_MAX: Final = 2
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{32,128}", re.ASCII)
_DISTINCT_MIN: Final = 8
"""Random text of that length always has as many; what people type to fill it has not."""
_READ_SIZE_MAX: Final = 4096


def secrets_of(settings: CommonSettings) -> tuple[str, ...]:
    """The secrets that are taken, the one that is sent first; none if none is set.

    Raises:
        CannotStart: what is set is none, by the name of its setting.
    """
    text, file = settings.internal_secret, settings.internal_secret_file
    if text is not None and file is not None:
        raise CannotStart(
            "BOTTOMLESS_INTERNAL_SECRET and BOTTOMLESS_INTERNAL_SECRET_FILE are both set; set one"
        )
    if file is not None:
        return _checked("the file in BOTTOMLESS_INTERNAL_SECRET_FILE", _read(file))
    return () if text is None else _checked("BOTTOMLESS_INTERNAL_SECRET", text)


def secret_to_send(settings: CommonSettings) -> str | None:
    """What a call to another service shows over TCP."""
    return next(iter(secrets_of(settings)), None)


def guarded(app: ASGIApp, url: str, settings: CommonSettings) -> ASGIApp:
    """The application of an internal listener at a url, as only those reach it who may.

    Raises:
        CannotStart: it is open to all who reach a port, and nobody said that this is meant.
    """
    if url.startswith("unix://"):
        return app
    secrets = secrets_of(settings)
    if secrets:
        return asking(app, secrets)
    if not settings.allow_unauthenticated_internal:
        raise CannotStart(
            f"the internal listener at {url} would let anybody who reaches it do anything; set "
            "BOTTOMLESS_INTERNAL_SECRET_FILE (or BOTTOMLESS_INTERNAL_SECRET), the same for all "
            "services, or use a unix socket; BOTTOMLESS_ALLOW_UNAUTHENTICATED_INTERNAL=1 serves "
            "there all the same"
        )
    return without_foreign_pages(app, hosts=Hosts(settings.allowed_hosts))


def asking(app: ASGIApp, secrets: tuple[str, ...]) -> ASGIApp:
    """The application for those who show one of these secrets; its health is shown to all."""
    accepted = tuple(secret.encode("ascii") for secret in secrets)

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PATHS or _knows(scope, accepted):
            await app(scope, receive, send)
            return
        error = Denied(
            "an internal listener asks for BOTTOMLESS_INTERNAL_SECRET, as a bearer token",
            code=Code.UNAUTHENTICATED,
        )
        await send_problem(send, error, request_id_of(scope))

    return asked


def _knows(scope: Scope, accepted: tuple[bytes, ...]) -> bool:
    secret = shown_secret(scope["headers"])
    if secret is None:
        return False
    # All are compared, each in a time that does not depend on where they differ.
    return True in [compare_digest(one, secret) for one in accepted]


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(_READ_SIZE_MAX + 1)
    except OSError as error:
        reason = error.strerror
        raise CannotStart(f"the file in BOTTOMLESS_INTERNAL_SECRET_FILE: {reason}") from None
    return data.decode("ascii", "replace")


def _checked(where: str, text: str) -> tuple[str, ...]:
    """The message never holds a part of what may be a secret."""
    secrets = tuple(text.replace(",", " ").split())
    if not 1 <= len(secrets) <= SECRET_COUNT_MAX or not all(map(_SECRET.fullmatch, secrets)):
        raise CannotStart(
            f"{where}: it has to hold a secret of 32 to 128 letters, digits, '-' and '_', or two "
            "of them with a comma or a line end between them"
        )
    if any(len(set(secret)) < _DISTINCT_MIN for secret in secrets):
        raise CannotStart(f"{where}: it does not look random; `openssl rand -hex 32` makes one")
    return secrets
