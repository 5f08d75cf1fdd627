"""A key that was revoked or rotated ends at once at the service that was asked.

The checks before this one measured how long a revoked key lasts, and took any time below half a
minute for right, as they did in front of four processes; none of them asked once at the service
that had just answered. Here steps at random are taken at a gate before a manifest that answers late
and with what it knew when it was asked, and one law is held over all of them: who asks after the
answer, with what has ended by it, is refused.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send
from support.asgi import client_of
from support.peers import SilentPeer

from bottomless_server.core.principal import Principal
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.identity.audit import Audit
from bottomless_server.runtime.identity.authenticator import Authenticator
from bottomless_server.runtime.identity.gate import Gate
from bottomless_server.runtime.identity.keys import KeyLookup

ROOT: Final = "the-operator"
KEY_ID: Final = "0" * 24
STEPS: Final = ("use", "use", "use old", "revoke", "rotate", "fail", "hold", "release", "wait")


class Manifest(SilentPeer):
    """One key; each answer says what was known when it was asked for, however late it comes."""

    def __init__(self) -> None:
        self.secret_count = 1
        self.active = True
        self.answering = asyncio.Event()
        self.answering.set()

    @property
    def secret(self) -> str:
        return self.secret_of(self.secret_count)

    def secret_of(self, number: int) -> str:
        return f"secret{number:026d}"

    async def call(
        self, method: str, path: str, /, *, timeout_seconds: float | None = None, **_: Any
    ) -> PeerAnswer:
        assert (method, path) == ("GET", f"/internal/v1/keys/{KEY_ID}")
        assert timeout_seconds is not None
        body = {
            "key_id": KEY_ID,
            "secret_sha256": [sha256(self.secret.encode()).hexdigest()],
            "tenant": "default",
            "scopes": ["*"],
            "expires_at": None,
            "state": "active" if self.active else "revoked",
        }
        await self.answering.wait()
        return PeerAnswer(200, {}, body)

    async def public(self, scope: Scope, _: Receive, send: Send) -> None:
        status = 200
        if scope["method"] == "DELETE":
            self.active = False
            # Revoked, and the object store does not know yet: the answer is an error.
            status = 503 if scope["query_string"] else 200
        elif scope["path"].endswith("/rotate"):
            self.secret_count += 1
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Operated(Authenticator):
    """Knows the operator without asking, so that manifest's silence holds up keys alone."""

    async def principal(self, token: str) -> Principal:
        if token == ROOT:
            return Principal("default", "key:root", ("*",))
        return await super().principal(token)


def remember(key_id: str) -> None:
    """What stands in for the forgetting where that is taken away."""
    assert key_id == KEY_ID


class RevokingHarness:
    """A gate in front of a manifest, and everybody who uses its one key."""

    def __init__(self, forget: bool = True) -> None:
        self.manifest = Manifest()
        self.elapsed = 100.0
        self.keys = KeyLookup(self.manifest, 10.0, elapsed=lambda: self.elapsed)
        if not forget:
            self.keys.forget = remember  # type: ignore[method-assign]
        gate = Gate(Operated(self.keys, None), Audit(None), check_seconds=5)
        app: ASGIApp = wrap(gate.around(self.manifest.public))
        self.client = client_of(app)
        self.uses: list[tuple[bool, asyncio.Task[httpx.Response]]] = []

    async def take(self, step: str) -> None:
        await self.steps[step]()
        # What was begun gets as far as it can.
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def steps(self) -> dict[str, Callable[[], Any]]:
        return {
            "use": lambda: self.use(self.manifest.secret, self.manifest.active),
            "use old": lambda: self.use(
                self.manifest.secret_of(self.manifest.secret_count - 1), False
            ),
            "revoke": lambda: self.ask("DELETE", ""),
            "fail": lambda: self.ask("DELETE", "?late=1"),
            "rotate": lambda: self.ask("POST", "/rotate"),
            "hold": self.hold,
            "release": self.release,
            "wait": self.wait,
        }

    async def use(self, secret: str, good: bool) -> None:
        headers = {"authorization": f"Bearer sk_{KEY_ID}_{secret}"}
        asking = asyncio.create_task(self.client.get("/v1/streams/orders", headers=headers))
        self.uses.append((good, asking))

    async def ask(self, method: str, rest: str) -> None:
        headers = {"authorization": f"Bearer {ROOT}"}
        answer = await self.client.request(method, f"/v1/keys/{KEY_ID}{rest}", headers=headers)
        assert answer.status_code in (200, 503)

    async def hold(self) -> None:
        self.manifest.answering.clear()

    async def release(self) -> None:
        self.manifest.answering.set()

    async def wait(self) -> None:
        self.elapsed += 1.5

    async def judged(self) -> list[tuple[bool, int]]:
        """Of each use whether it could have been good when it began, and its answer."""
        self.manifest.answering.set()
        found = [(good, (await asking).status_code) for good, asking in self.uses]
        await self.keys.aclose()
        return found


async def run(steps: list[str], *, forget: bool = True) -> list[tuple[bool, int]]:
    harness = RevokingHarness(forget)
    for step in steps:
        await harness.take(step)
    return await harness.judged()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=14))
def test_after_the_answer_nobody_is_let_in_with_what_has_ended(steps: list[str]) -> None:
    for good, status in asyncio.run(run(steps)):
        assert good or status == 401, steps


@pytest.mark.parametrize("change", ["revoke", "fail", "rotate"])
def test_a_key_ends_with_the_answer_that_says_so(change: str) -> None:
    before = ["use", "release"]
    assert asyncio.run(run([*before, change, "use old" if change == "rotate" else "use"])) == [
        (True, 200),
        (False, 401),
    ]


def test_a_question_from_before_the_revocation_lets_nobody_in_after_it() -> None:
    """It was asked for ahead of time, and its answer comes after the key has ended."""
    steps = ["use", "wait", "wait", "wait", "wait", "hold", "use", "revoke", "release", "use"]
    assert asyncio.run(run(steps))[-1] == (False, 401)


def test_a_rotated_key_goes_on_with_its_new_secret() -> None:
    assert asyncio.run(run(["use", "rotate", "use", "rotate", "use"])) == [(True, 200)] * 3


def test_without_the_forgetting_a_revoked_key_is_let_in() -> None:
    assert asyncio.run(run(["use", "revoke", "use"], forget=False))[-1] == (False, 200)
