"""API keys, as the gate of every service asks manifest for them.

Contract: openapi/internal.yaml, `get_key_check`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bottomless.model.names import parse_tenant
from bottomless_server.protocol.paths import INTERNAL
from bottomless_server.protocol.peer import number, said_by, string

_KEY_ID: Final = "key_id"
KEY: Final = f"{INTERNAL}/keys/{{{_KEY_ID}}}"


class KeySaid(NamedTuple):
    """What a service needs to check a key, and nothing that would let it make one up."""

    key_id: str
    secret_sha256: tuple[str, ...]
    """SHA-256 of each secret that is good now, in hex; empty if the key is not active."""
    tenant: str
    scopes: tuple[str, ...]
    expires_at: int | None
    """In ms since 1970."""
    state: str
    """A `KeyState`; one that this release does not know is not active."""


def key_path(key_id: str) -> str:
    """The path of a key."""
    return KEY.replace(f"{{{_KEY_ID}}}", key_id)


def key_id_in(path_params: Mapping[str, str]) -> str:
    """The key that a path asks for, by what its route found in it."""
    return path_params[_KEY_ID]


def encode_key(said: KeySaid) -> dict[str, Any]:
    return said._asdict()


@said_by("manifest")
def decode_key(body: Any) -> KeySaid:
    expires_at = body["expires_at"]
    return KeySaid(
        key_id=string(body["key_id"]),
        secret_sha256=tuple(bytes.fromhex(text).hex() for text in body["secret_sha256"]),
        tenant=parse_tenant(body["tenant"]),
        scopes=tuple(map(string, body["scopes"])),
        expires_at=None if expires_at is None else number(expires_at),
        state=string(body["state"]),
    )
