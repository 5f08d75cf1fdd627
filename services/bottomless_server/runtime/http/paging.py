"""Page tokens for the lists of all services, under one secret for all their processes.

The secret lies in coordination, made by whoever needs it first. Should coordination be
lost, open lists end with a 400 and are begun anew; nothing else depends on it.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import NAME_SIZE_MAX
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.core.sealed_token import SECRET_SIZE, seal, unseal
from bottomless_server.runtime.http.app import Parser, integer, text

TOKENS_KEY: Final = "bottomless:secret:page-tokens"
PAGE_COUNT_DEFAULT: Final = 100
PAGE_COUNT_MAX: Final = 1_000

PAGING: Final[Mapping[str, Parser]] = {
    "limit": integer(1, PAGE_COUNT_MAX),
    "page_token": text,
}
"""The parameters of every list."""


def prefix_of_names(value: str) -> str:
    """A parser of what a name may begin with; what none can begin with lists nothing."""
    if len(value) > NAME_SIZE_MAX or not value.isascii() or not value.isprintable():
        sentence = (
            f"a prefix must have at most {NAME_SIZE_MAX} characters, all of which names may have"
        )
        raise InvalidRequest(sentence, faults=[Fault(Code.BAD_PARAMETER, sentence)])
    return value


class Paging:
    """Page tokens of the lists of one service."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._secret: bytes | None = None

    async def start_of(self, token: str | None, scope: Sequence[str]) -> str:
        """The member after which the page begins; empty for the first page.

        Raises:
            InvalidRequest: the token was not made for this list.
        """
        if token is None:
            return ""
        (after,) = unseal(token, scope, await self._load())
        return str(after)

    async def token_for(self, after: str, scope: Sequence[str]) -> str:
        """A token for the page that begins after this member, of the list that `scope` names."""
        return seal(scope, [after], await self._load())

    async def _load(self) -> bytes:
        if self._secret is None:
            made = secrets.token_bytes(SECRET_SIZE)

            def choose(values: Values) -> tuple[Changes, bytes]:
                held = values[TOKENS_KEY]
                return (Changes(), held) if held else (Changes({TOKENS_KEY: made}), made)

            self._secret = await self._coordination.transact([TOKENS_KEY], choose)
        return self._secret
