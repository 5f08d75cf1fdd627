"""API keys: how long the manifest's word is used, and what happens while it says nothing."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest
from support.peers import SilentPeer

from bottomless.errors import Code, NotFound, Unavailable
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.runtime.identity.credential import ApiKey, RefusedError, parse_api_key
from bottomless_server.runtime.identity.keys import ASK_SECONDS, STRANGER_COUNT_MAX, KeyLookup

SECRET = "0123456789abcdef"
KEY = ApiKey("a1", SECRET)


class Manifest(SilentPeer):
    """Answers as it is told, or not."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Any]] = {"a1": described("a1")}
        self.asked: list[str] = []
        self.away = False
        self.answering = asyncio.Event()
        self.answering.set()

    async def call(
        self, method: str, path: str, /, *, timeout_seconds: float | None = None, **_: Any
    ) -> PeerAnswer:
        assert (method, timeout_seconds) == ("GET", ASK_SECONDS)
        key_id = path.removeprefix("/internal/v1/keys/")
        self.asked.append(key_id)
        await self.answering.wait()
        if self.away:
            raise Unavailable("away")
        if key_id not in self.keys:
            raise NotFound("there is no such key", code=Code.KEY_NOT_FOUND)
        return PeerAnswer(200, {}, self.keys[key_id])


def described(key_id: str, *secrets: str, **members: Any) -> dict[str, Any]:
    return {
        "key_id": key_id,
        "secret_sha256": [sha256(each.encode()).hexdigest() for each in secrets or (SECRET,)],
        "tenant": "acme",
        "scopes": ["read:orders-*"],
        "expires_at": None,
        "state": "active",
        **members,
    }


class KeyHarness:
    """The cache of API keys, a manifest that it asks, and both clocks."""

    def __init__(self) -> None:
        self.manifest = Manifest()
        self.elapsed = 100.0
        self.now = 1_700_000_000.0
        self.keys = KeyLookup(
            self.manifest, 10.0, now=lambda: self.now, elapsed=lambda: self.elapsed
        )

    async def good(self, key: ApiKey = KEY) -> bool:
        try:
            return (await self.keys.principal(key)).actor == f"key:{key.key_id}"
        except RefusedError:
            return False

    async def settled(self) -> None:
        """Questions ahead of time have their answers."""
        while self.keys._asking:
            await asyncio.sleep(0)


@pytest.fixture
async def harness() -> AsyncIterator[KeyHarness]:
    harness = KeyHarness()
    yield harness
    await harness.keys.aclose()


async def test_a_key_is_asked_for_once_and_remembered(harness: KeyHarness) -> None:
    principal = await harness.keys.principal(KEY)
    assert (principal.tenant, principal.actor) == ("acme", "key:a1")
    assert principal.scopes == ("read:orders-*",)
    assert await harness.good()
    assert harness.manifest.asked == ["a1"]


async def test_many_who_ask_at_once_ask_once(harness: KeyHarness) -> None:
    harness.manifest.answering.clear()
    asking = [asyncio.create_task(harness.good()) for _ in range(100)]
    await asyncio.sleep(0)
    harness.manifest.answering.set()
    assert all(await asyncio.gather(*asking))
    assert harness.manifest.asked == ["a1"]


async def test_it_is_asked_for_again_ahead_of_time(harness: KeyHarness) -> None:
    assert await harness.good()
    harness.elapsed += 6
    harness.manifest.answering.clear()
    assert await harness.good()
    await asyncio.sleep(0)
    assert harness.manifest.asked == ["a1", "a1"]
    harness.manifest.answering.set()
    await harness.settled()
    harness.elapsed += 6
    assert harness.keys.at_once(KEY) is not None


async def test_a_revoked_key_is_refused_after_ten_seconds_at_the_latest(
    harness: KeyHarness,
) -> None:
    assert await harness.good()
    harness.manifest.keys["a1"] = described("a1", state="revoked", secret_sha256=[])
    harness.elapsed += 4.9
    assert await harness.good()
    harness.elapsed += 5.2
    assert not await harness.good()


async def test_a_key_that_was_forgotten_is_refused(harness: KeyHarness) -> None:
    assert await harness.good()
    del harness.manifest.keys["a1"]
    harness.elapsed += 11
    assert not await harness.good()


async def test_the_word_of_a_manifest_that_is_away_is_good_for_thirty_seconds(
    harness: KeyHarness,
) -> None:
    assert await harness.good()
    harness.manifest.away = True
    for _ in range(2):
        harness.elapsed += 14.9
        assert await harness.good()
    harness.elapsed += 0.3
    with pytest.raises(Unavailable, match="cannot be checked now"):
        await harness.good()
    harness.manifest.away = False
    harness.elapsed += 2
    assert await harness.good()


async def test_a_manifest_that_is_away_is_not_asked_with_every_request(harness: KeyHarness) -> None:
    assert await harness.good()
    harness.manifest.away = True
    harness.elapsed += 15
    for _ in range(20):
        assert await harness.good()
    assert harness.manifest.asked == ["a1", "a1"]


async def test_a_slow_answer_is_as_old_as_its_question(harness: KeyHarness) -> None:
    harness.manifest.answering.clear()
    asking = asyncio.create_task(harness.good())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    harness.elapsed += 9
    harness.manifest.answering.set()
    assert await asking
    harness.elapsed += 2
    assert harness.keys.at_once(KEY) is None


async def test_another_secret_is_refused_and_both_of_a_rotation_are_good(
    harness: KeyHarness,
) -> None:
    assert not await harness.good(ApiKey("a1", SECRET[:-1] + "0"))
    new = "fedcba9876543210"
    harness.manifest.keys["a1"] = described("a1", SECRET, new)
    harness.elapsed += 11
    assert await harness.good()
    assert await harness.good(ApiKey("a1", new))


def test_a_key_shows_no_secret_where_it_is_shown() -> None:
    assert repr(KEY) == str(KEY) == f"{KEY}" == "ApiKey(key_id='a1')"


async def test_a_new_secret_is_good_at_once_and_the_old_one_no_more(harness: KeyHarness) -> None:
    assert await harness.good()
    harness.elapsed += 1
    harness.manifest.keys["a1"] = described("a1", "another-secret-x")
    assert await harness.good(ApiKey("a1", "another-secret-x"))
    assert not await harness.good()
    assert harness.manifest.asked == ["a1", "a1"]


async def test_who_guesses_secrets_makes_us_ask_a_few_times_a_second_only(
    harness: KeyHarness,
) -> None:
    assert await harness.good()
    for _ in range(100):
        assert not await harness.good(ApiKey("a1", "fedcba9876543210"))
    assert harness.manifest.asked == ["a1"]
    harness.elapsed += 1
    for _ in range(100):
        assert not await harness.good(ApiKey("a1", "fedcba9876543210"))
    assert harness.manifest.asked == ["a1", "a1"]
    assert await harness.good()


async def test_another_secret_is_refused_also_while_manifest_is_away(harness: KeyHarness) -> None:
    assert await harness.good()
    harness.elapsed += 1
    harness.manifest.away = True
    assert not await harness.good(ApiKey("a1", "fedcba9876543210"))
    assert await harness.good()


async def test_a_key_ends_when_it_said_without_asking(harness: KeyHarness) -> None:
    harness.manifest.keys["a1"] = described("a1", expires_at=round(harness.now * 1000) + 5000)
    assert (await harness.keys.principal(KEY)).expires_at == harness.now + 5
    harness.now += 5
    assert not await harness.good()
    assert harness.manifest.asked == ["a1"]


async def test_that_there_is_no_key_is_remembered_for_a_moment(harness: KeyHarness) -> None:
    stranger = ApiKey("b2", SECRET)
    assert not await harness.good(stranger)
    assert not await harness.good(stranger)
    assert harness.manifest.asked == ["b2"]
    harness.manifest.keys["b2"] = described("b2")
    harness.elapsed += 1.1
    assert await harness.good(stranger)


async def test_who_makes_ids_up_takes_no_place_from_known_keys(harness: KeyHarness) -> None:
    assert await harness.good()
    harness.manifest.asked.clear()
    harness.manifest.answering.clear()
    made_up = [
        asyncio.create_task(harness.good(ApiKey(f"x{number}", SECRET))) for number in range(100)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(harness.manifest.asked) == STRANGER_COUNT_MAX
    harness.elapsed += 15
    known = asyncio.create_task(harness.good())
    for _ in range(5):
        await asyncio.sleep(0)
    assert harness.manifest.asked[-1] == "a1"
    harness.manifest.answering.set()
    assert await known
    assert not any(await asyncio.gather(*made_up))


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        described("another"),
        described("a1", secret_sha256=["zz"]),
        described("a1", tenant="a/b"),
        described("a1", expires_at="soon"),
        described("a1", state="suspended"),
    ],
)
async def test_what_is_not_the_description_of_a_good_key_lets_nobody_in(
    harness: KeyHarness, body: Any
) -> None:
    harness.manifest.keys["a1"] = body
    with pytest.raises((Unavailable, RefusedError)):
        await harness.keys.principal(KEY)


async def test_a_peer_that_knows_no_keys_is_no_manifest(harness: KeyHarness) -> None:
    async def call(*_: Any, **__: Any) -> PeerAnswer:
        raise NotFound("nothing is served at this path", code=Code.NOT_FOUND)

    harness.manifest.call = call  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await harness.keys.principal(KEY)


@pytest.mark.parametrize(
    "token", ["sk_", "sk_a1", "sk_a1_", "sk_a/b_" + "0" * 32, "sk_a1_short", "sk_a1_" + "0" * 200]
)
def test_what_is_not_made_as_keys_are_is_not_asked_for(token: str) -> None:
    with pytest.raises(RefusedError):
        parse_api_key(token)
