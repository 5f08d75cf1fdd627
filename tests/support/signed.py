"""Somebody who signs tokens, and forgers of them: what an identity provider would be."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NAME: Final = "https://issuer.test/"
AUDIENCE: Final = "bottomless"


class Issuer:
    """Signs with two keys, `rsa-1` and `ec-1`; the set of them is its `jwks`."""

    @cached_property
    def rsa(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @cached_property
    def ec(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @property
    def jwks(self) -> bytes:
        rsa_key = json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key()))
        ec_key = json.loads(ECAlgorithm.to_jwk(self.ec.public_key()))
        return json.dumps(
            {"keys": [{**rsa_key, "kid": "rsa-1"}, {**ec_key, "kid": "ec-1", "use": "sig"}]}
        ).encode()

    @property
    def public_pem(self) -> bytes:
        """The public key of `rsa-1`, as a forger finds it."""
        return self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def token(
        self,
        *,
        alg: str = "RS256",
        header: Mapping[str, Any] | None = None,
        without: str = "",
        **claims: Any,
    ) -> str:
        """A token that is good, but for what is said otherwise."""
        key: Any = self.ec if alg.startswith("ES") else self.rsa
        kid = "ec-1" if alg.startswith("ES") else "rsa-1"
        given = claims_of(**claims)
        given.pop(without, None)
        return jwt.encode(given, key, algorithm=alg, headers={"kid": kid, **(header or {})})


def claims_of(**claims: Any) -> dict[str, Any]:
    return {
        "iss": NAME,
        "aud": AUDIENCE,
        "sub": "ada",
        "tenant": "default",
        "scope": "*",
        "exp": round(time.time()) + 600,
        **claims,
    }


def unsigned(**claims: Any) -> str:
    """`alg: none`."""
    return f"{_encoded({'alg': 'none', 'typ': 'JWT'})}.{_encoded(claims_of(**claims))}."


def signed_with_secret(secret: bytes, **claims: Any) -> str:
    """HS256; with a public key as the secret, what confuses those who let the token choose."""
    signed = f"{_encoded({'alg': 'HS256', 'kid': 'rsa-1'})}.{_encoded(claims_of(**claims))}"
    digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_base64(digest)}"


def _encoded(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
