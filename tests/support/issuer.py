"""An issuer of tokens for a server with identity on: tenants and subjects as a test needs them."""

from pathlib import Path
from typing import Final

import httpx

from support.signed import AUDIENCE, NAME
from support.signed import Issuer as Signer

_SECONDS: Final = 240


class Issuer:
    """Signs for whoever a test names; a server that has its settings believes it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._signer = Signer()
        self._jwks = directory / "jwks.json"
        self._jwks.write_bytes(self._signer.jwks)

    def settings(self) -> dict[str, str]:
        """What makes a server ask everybody who they are, and believe this issuer."""
        return {
            "BOTTOMLESS_IDENTITY": "true",
            "BOTTOMLESS_JWT_ISSUER": NAME,
            "BOTTOMLESS_JWT_AUDIENCE": AUDIENCE,
            "BOTTOMLESS_JWT_JWKS": self._jwks.absolute().as_uri(),
        }

    def token(self, tenant: str, subject: str = "ada", scope: str = "*") -> str:
        return self._signer.token(tenant=tenant, sub=subject, scope=scope)

    def client(self, url: str, tenant: str, subject: str = "ada", scope: str = "*") -> httpx.Client:
        """A client of a server, as somebody of a tenant."""
        headers = {"authorization": f"Bearer {self.token(tenant, subject, scope)}"}
        return httpx.Client(base_url=url, headers=headers, timeout=_SECONDS)
