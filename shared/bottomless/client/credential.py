"""Credential: the bearer token of a caller, shown only to the server that it was given for."""

import os
import re
from typing import Final

from bottomless.errors import InvalidRequest

TOKEN_VARIABLE: Final = "BOTTOMLESS_TOKEN"  # noqa: S105  # the name of a variable

_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")


class Credential:
    """A token, or none. Its repr does not show it, so neither does a log line or a traceback."""

    __slots__ = ("_token",)

    def __init__(self, token: str | None = None) -> None:
        """Without a token it is that of `BOTTOMLESS_TOKEN`; with an empty one there is none.

        Raises:
            InvalidRequest: it cannot stand in a header.
        """
        given = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if given and _TOKEN.fullmatch(given) is None:
            raise InvalidRequest(
                "a token must be visible ASCII without spaces, of at most 8192 characters"
            )
        self._token = given

    def __repr__(self) -> str:
        return f"Credential({'hidden' if self._token else 'none'})"

    def headers(self) -> dict[str, str]:
        """Make the headers that carry the token; empty without a token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}
