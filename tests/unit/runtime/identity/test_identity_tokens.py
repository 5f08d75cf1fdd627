"""Signed tokens: whose keys are believed, for how long, and what a token can say."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from support.asgi import on_tcp
from support.peers import SilentPeer
from support.signed import AUDIENCE, NAME, Issuer, claims_of

from bottomless.errors import Unavailable
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.identity.authenticator import Authenticator
from bottomless_server.runtime.identity.credential import RefusedError
from bottomless_server.runtime.identity.jwks import SIZE_MAX, Jwks, loader, parse_jwks
from bottomless_server.runtime.identity.keys import KeyLookup
from bottomless_server.runtime.identity.signed_tokens import SignedTokens, TokenRules

ISSUER = Issuer()
OTHER = Issuer()
RULES: dict[str, Any] = {
    "issuer": NAME,
    "audience": AUDIENCE,
    "algorithms": ("RS256", "ES256"),
    "tenant": None,
    "tenant_claim": "tenant",
    "scope_claim": "scope",
    "leeway_seconds": 10.0,
}


class TokenHarness:
    """One set of keys that changes, and who believes it."""

    def __init__(self, **rules: Any) -> None:
        self.data = ISSUER.jwks
        self.read_count = 0
        self.away = False
        self.elapsed = 1000.0
        self.now = time.time()
        self.jwks = Jwks(self._load, 300.0, elapsed=lambda: self.elapsed)
        self.tokens = SignedTokens(TokenRules(**{**RULES, **rules}), self.jwks)
        keys = KeyLookup(SilentPeer(), 10.0)
        self.authenticator = Authenticator(
            keys, self.tokens, now=lambda: self.now, elapsed=lambda: self.elapsed
        )

    async def _load(self) -> bytes:
        self.read_count += 1
        if self.away:
            raise OSError("away")
        return self.data

    async def good(self, token: str) -> bool:
        try:
            await self.authenticator.principal(token)
        except RefusedError:
            return False
        return True


async def test_a_token_says_who_whose_and_what() -> None:
    ends = round(time.time()) + 60
    token = ISSUER.token(tenant="acme", scope="read append:a-* openid", exp=ends)
    principal = await TokenHarness().tokens.principal(token)
    assert (principal.tenant, principal.actor) == ("acme", "sub:ada")
    assert principal.scopes == ("read", "append:a-*", "openid")
    assert principal.expires_at == ends
    assert principal.grants.allow("append", "a-1")


async def test_claims_may_be_called_otherwise_and_the_tenant_may_be_fixed() -> None:
    harness = TokenHarness(tenant="acme", scope_claim="permissions")
    token = ISSUER.token(tenant="other", permissions=["read:a", 7, "describe"])
    principal = await harness.tokens.principal(token)
    assert (principal.tenant, principal.scopes) == ("acme", ("read:a", "describe"))
    named = TokenHarness(tenant_claim="org")
    assert (await named.tokens.principal(ISSUER.token(org="o1"))).tenant == "o1"
    assert not await named.good(ISSUER.token())


async def test_a_token_without_scopes_may_do_nothing() -> None:
    principal = await TokenHarness().tokens.principal(ISSUER.token(without="scope"))
    assert principal.scopes == ()
    assert not principal.grants.show("orders")


async def test_only_allowed_algorithms_are_taken() -> None:
    harness = TokenHarness(algorithms=("ES256",))
    assert await harness.good(ISSUER.token(alg="ES256"))
    assert not await harness.good(ISSUER.token(alg="RS256"))


@pytest.mark.parametrize("claim", ["iss", "aud", "exp", "sub", "tenant"])
async def test_a_token_that_leaves_something_out_is_refused(claim: str) -> None:
    assert await TokenHarness().good(ISSUER.token())
    assert not await TokenHarness().good(ISSUER.token(without=claim))


async def test_clocks_may_differ_a_little() -> None:
    now = round(time.time())
    assert await TokenHarness().good(ISSUER.token(exp=now - 5))
    assert not await TokenHarness().good(ISSUER.token(exp=now - 12))
    assert await TokenHarness().good(ISSUER.token(nbf=now + 5))
    assert not await TokenHarness().good(ISSUER.token(nbf=now + 20))


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": "soon"},
        {"exp": float("inf")},
        {"exp": 10**400},
        {"exp": 9e18},
        {"exp": [1]},
        {"sub": "\ud800"},
        {"sub": 7},
        {"aud": {}},
        {"tenant": ["a"]},
        {"iss": 1},
    ],
)
async def test_claims_of_the_wrong_kind_are_refused(claims: dict[str, Any]) -> None:
    token = _signed(**claims)
    assert not await TokenHarness().good(token)


async def test_a_scope_that_is_not_unicode_is_none() -> None:
    for scope in ("read \ud800", ["read", "\ud800"]):
        principal = await TokenHarness().tokens.principal(_signed(scope=scope))
        assert principal.scopes == ("read",)


def _signed(*, kid: bool = True, **claims: Any) -> str:
    # The library checks some kinds when it signs; what it signs here, it never saw.
    payload = json.dumps(claims_of(**claims)).encode()
    headers = {"kid": "rsa-1"} if kid else {}
    return jwt.api_jws.encode(payload, ISSUER.rsa, "RS256", headers=headers)


async def test_a_signature_is_checked_once_a_minute_and_not_once_a_request() -> None:
    harness = TokenHarness()
    token = ISSUER.token()
    first = await harness.authenticator.principal(token)
    assert await harness.authenticator.principal(token) is first
    harness.elapsed += 61
    assert await harness.authenticator.principal(token) is not first


async def test_a_remembered_verdict_ends_with_its_token() -> None:
    harness = TokenHarness(leeway_seconds=0)
    token = ISSUER.token(exp=round(harness.now) + 30)
    first = await harness.authenticator.principal(token)
    harness.now += 31
    # By the clock of the library it is still good: it was asked again.
    assert await harness.authenticator.principal(token) is not first


async def test_a_key_that_left_the_set_is_believed_no_more() -> None:
    harness = TokenHarness()
    token = ISSUER.token()
    assert await harness.good(token)
    harness.data = OTHER.jwks
    harness.elapsed += 301
    assert await harness.good(token)
    await _read(harness)
    assert not await harness.good(token)
    assert await harness.good(OTHER.token())


async def _read(harness: TokenHarness) -> None:
    assert None in harness.jwks._reading
    await harness.jwks._reading.ended(None)


async def test_a_new_key_is_found_at_once_but_nobody_makes_us_read_all_the_time() -> None:
    harness = TokenHarness()
    assert await harness.good(ISSUER.token())
    assert harness.read_count == 1
    for number in range(10):
        assert not await harness.good(ISSUER.token(header={"kid": f"made up {number}"}))
    assert harness.read_count == 1
    harness.elapsed += 6
    keys = json.loads(ISSUER.jwks)["keys"]
    harness.data = json.dumps({"keys": [{**keys[0], "kid": "rsa-2"}]}).encode()
    assert await harness.good(ISSUER.token(header={"kid": "rsa-2"}))
    assert harness.read_count == 2


async def test_the_keys_of_before_are_good_while_the_issuer_is_away() -> None:
    harness = TokenHarness()
    assert await harness.good(ISSUER.token())
    harness.away = True
    harness.elapsed += 3600
    assert await harness.good(ISSUER.token())
    await _read(harness)
    assert await harness.good(ISSUER.token(exp=round(time.time()) + 700))
    harness.elapsed += 24 * 3600
    with pytest.raises(Unavailable, match="cannot be read"):
        await harness.good(ISSUER.token())


async def test_keys_that_were_never_read_let_nobody_in_and_refuse_nobody() -> None:
    harness = TokenHarness()
    harness.away = True
    with pytest.raises(Unavailable):
        await harness.good(ISSUER.token())
    harness.away = False
    harness.elapsed += 6
    assert await harness.good(ISSUER.token())


async def test_without_a_kid_there_must_be_one_key_that_fits() -> None:
    harness = TokenHarness()
    assert await harness.good(_signed(kid=False))
    harness = TokenHarness()
    keys = [*json.loads(ISSUER.jwks)["keys"], *json.loads(OTHER.jwks)["keys"]]
    harness.data = json.dumps({"keys": keys}).encode()
    assert not await harness.good(_signed(kid=False))


def test_only_public_keys_for_signatures_are_taken() -> None:
    good = json.loads(ISSUER.jwks)["keys"][0]
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    bad: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {**json.loads(RSAAlgorithm.to_jwk(ISSUER.rsa)), "key_ops": ["sign", "verify"]},
        json.loads(RSAAlgorithm.to_jwk(short)),
        {**good, "use": "enc"},
        {**good, "key_ops": ["sign"]},
        {**good, "alg": "HS256"},
        {**good, "alg": "ES256"},
        {**good, "n": "?"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "RSA"},
        "key",
    ]
    for members in bad:
        with pytest.raises(ValueError, match="no key of it"):
            parse_jwks(json.dumps({"keys": [members]}).encode())
    (key,) = parse_jwks(json.dumps({"keys": [*bad, good]}).encode())
    assert (key.kid, key.suits("RS256"), key.suits("ES256")) == ("rsa-1", True, False)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', b"\xff"])
def test_what_is_no_set_of_keys_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_jwks(data)


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.test/keys",
        "http://10.0.0.1/keys",
        "ftp://issuer.test/",
        "keys.json",
        "file://host/keys",
        "https://",
        "https://issuer.test:port/keys",
        "https://[::1/keys",
        "file:///nowhere/keys.json",
    ],
)
def test_keys_come_from_where_nobody_can_change_them_on_the_way(url: str) -> None:
    with pytest.raises(CannotStart, match="BOTTOMLESS_JWT_JWKS"):
        loader(url)


async def test_a_file_and_an_address_are_read(tmp_path: Path) -> None:
    file = tmp_path / "keys with space.json"
    file.write_bytes(ISSUER.jwks)
    assert await loader(file.as_uri())() == ISSUER.jwks
    loader("https://issuer.test/keys")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path = Request(scope).url.path
        answers = {
            "/keys": Response(ISSUER.jwks),
            "/moved": RedirectResponse("/keys"),
            "/large": Response(b" " * (SIZE_MAX + 1)),
        }
        await answers[path](scope, receive, send)

    async with on_tcp(app) as port:
        assert await loader(f"http://127.0.0.1:{port}/keys")() == ISSUER.jwks
        for path, why in (("moved", "status 307"), ("large", "too large")):
            with pytest.raises(ValueError, match=why):
                await loader(f"http://localhost:{port}/{path}")()


def test_a_file_that_holds_no_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    with pytest.raises(CannotStart, match="not a JWK set"):
        loader(file.as_uri())
    file.write_bytes(b" " * (SIZE_MAX + 1))
    with pytest.raises(CannotStart, match="too large"):
        loader(file.as_uri())
