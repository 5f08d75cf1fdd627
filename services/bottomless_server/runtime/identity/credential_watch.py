"""Check the credential of a request again while its answer goes on.

An answer that stays open outlives the moment at which its credential was checked. The gate
leaves here how to check it again; the reader asks for as long as it sends.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Scope

from bottomless.errors import StoreError

_WATCH: Final = "bottomless.standing"

PAUSE_SECONDS_MIN: Final = 0.25
"""The shortest pause between two checks, after the moment at which a credential ends by itself: clocks differ, and some tokens are forgiven that."""


class CredentialWatch:
    """The credential of one request, and what it was used for."""

    def __init__(
        self,
        check: Callable[[], Awaitable[float | None]],
        every_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`check` gives when the credential ends by itself, or raises what the request would be
        answered now."""
        self._check = check
        self._every_seconds = every_seconds
        self._now = now

    async def check(self) -> None:
        """Check now whether the request would still be let in.

        Raises:
            Denied, NotFound: the same request would be refused now.
            Unavailable: nobody can say.
        """
        await self._check()

    async def ended(self) -> StoreError:
        """Wait until the same request would be refused, or nobody could say; returns the error."""
        while True:
            try:
                expires_at = await self._check()
            except StoreError as error:
                return error
            pause = self._every_seconds
            if expires_at is not None:
                pause = min(pause, max(expires_at - self._now(), PAUSE_SECONDS_MIN))
            await asyncio.sleep(pause)


def credential_watch_of(scope: Scope) -> CredentialWatch | None:
    """The watch over the credential of a request; None where no credential was asked for."""
    watch: CredentialWatch | None = scope.get(_WATCH)
    return watch


def note_credential_watch(scope: Scope, watch: CredentialWatch) -> None:
    """Leave the watch in the scope, for the services; only the gate does this."""
    scope[_WATCH] = watch
