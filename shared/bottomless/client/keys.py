"""Calls about API keys: create, list, show, rotate, revoke.

Only the answers of `create_key` and `rotate_key` hold a secret, each once; the caller must keep it,
since nobody can ask for it again.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from bottomless.client.address import key_path
from bottomless.client.wire import Wire, members

_PATH: Final = "/v1/keys"


class KeyCalls(Wire):
    """The calls of `openapi/manifest.yaml` about API keys."""

    async def create_key(
        self,
        scopes: Sequence[str],
        *,
        label: str = "",
        tenant: str | None = None,
        expires_at: str | None = None,
        ttl_seconds: int | None = None,
    ) -> dict[str, Any]:
        """Create a key; `secret` in the answer is the whole credential.

        Give either `expires_at` (RFC 3339) or `ttl_seconds`, or neither for a key that never
        expires.
        """
        asked: dict[str, Any] = {"scopes": list(scopes), "label": label}
        given = {"tenant": tenant, "expires_at": expires_at, "ttl_seconds": ttl_seconds}
        asked |= {name: value for name, value in given.items() if value is not None}
        return await self._send_json("POST", _PATH, asked)

    def list_keys(
        self,
        *,
        tenant: str | None = None,
        unreadable: Callable[[dict[str, Any]], object] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """List every key of a tenant, the oldest first, without secrets.

        `unreadable` is called with the `key_id` and `code` of each key that the server cannot read.
        """
        query = {} if tenant is None else {"tenant": tenant}
        return self._list(_PATH, query, unreadable=unreadable)

    async def show_key(self, key_id: str) -> dict[str, Any]:
        """Show a key, without its secret."""
        return members(await self._send("GET", key_path(key_id)))

    async def rotate_key(
        self, key_id: str, *, overlap_seconds: int | None = None
    ) -> dict[str, Any]:
        """Give a key a new secret.

        The previous one stays valid for the overlap (an hour by default).
        """
        asked = {} if overlap_seconds is None else {"overlap_seconds": overlap_seconds}
        return await self._send_json("POST", f"{key_path(key_id)}/rotate", asked)

    async def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Refuse a key from now on; repeating it changes nothing."""
        return await self._send_json("DELETE", key_path(key_id), repeatable=True)
