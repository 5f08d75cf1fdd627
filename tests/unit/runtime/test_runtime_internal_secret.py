"""The shared secret: who is let in by an internal listener over TCP, and what others are told."""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from starlette.types import Receive, Scope, Send
from support.asgi import client_of, on_socket, on_tcp, scope_of

from bottomless.errors import Code, Outcome, Unavailable
from bottomless_server.node.forwarding import Forwarding
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.peers.internal_secret import asking, secret_to_send, secrets_of
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.process.front import Front

OLD: Final = "old-0123456789abcdefghijklmnopqr"
NEW: Final = "new-0123456789abcdefghijklmnopqr"
OTHER: Final = "oth-0123456789abcdefghijklmnopqr"


async def tell(scope: Scope, _: Receive, send: Send) -> None:
    """Answer whether a credential was shown."""
    shown = any(name == b"authorization" for name, _ in scope["headers"])
    body = b'{"shown":%s}' % (b"true" if shown else b"false")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def inside(**settings: Any) -> Any:
    """An internal listener over TCP, by its url."""
    given = CommonSettings(**settings)
    async with on_tcp(Front(given).internal(tell, "x", "http://127.0.0.1:1")) as port:
        yield f"http://127.0.0.1:{port}"


async def test_only_who_shows_one_of_the_secrets_is_let_in() -> None:
    async with client_of(asking(tell, (OLD, NEW))) as client:
        for secret in (OLD, NEW):
            for scheme in ("Bearer", "bearer"):
                headers = {"authorization": f"{scheme} {secret}"}
                assert (await client.post("/internal/v1/x", headers=headers)).status_code == 200
        for shown in ("", "Bearer", f"Bearer {OTHER}", f"Bearer {OLD}x", f"Bearer {OLD[:-1]}", OLD):
            answer = await client.get("/metrics", headers={"authorization": shown})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert OLD not in answer.text
        assert (await client.get("/internal/v1/x")).status_code == 401
        twice = [("authorization", f"Bearer {OLD}"), ("authorization", f"Bearer {OLD}")]
        assert (await client.get("/internal/v1/x", headers=twice)).status_code == 401
        for path in ("/livez", "/readyz"):
            assert (await client.get(path)).status_code == 200


async def test_without_the_guard_anybody_is_let_in() -> None:
    """Where an operator says so by name; so it is the guard that keeps strangers out."""
    opened = CommonSettings(allow_unauthenticated_internal=True)
    async with client_of(Front(opened).internal(tell, "x", "http://127.0.0.1:1")) as client:
        assert (await client.post("/internal/v1/x")).status_code == 200
        # Not even then is a web page of a stranger.
        page = {"origin": "http://evil.example"}
        assert (await client.post("/internal/v1/x", headers=page)).status_code == 403
    closed = CommonSettings(internal_secret=OLD)
    async with client_of(Front(closed).internal(tell, "x", "http://127.0.0.1:1")) as client:
        assert (await client.post("/internal/v1/x")).status_code == 401


def test_a_listener_over_tcp_without_a_secret_is_refused_and_a_socket_is_not() -> None:
    front = Front(CommonSettings())
    front.internal(tell, "x", "unix:///run/x.sock")
    with pytest.raises(CannotStart, match="BOTTOMLESS_INTERNAL_SECRET_FILE") as told:
        front.internal(tell, "x", "http://127.0.0.1:9080")
    assert "BOTTOMLESS_ALLOW_UNAUTHENTICATED_INTERNAL=1" in str(told.value)


async def test_services_show_each_other_the_first_secret_over_tcp() -> None:
    async with (
        inside(internal_secret=f"{OLD}, {NEW}") as url,
        Peer(
            url, name="manifest", secret=secret_to_send(CommonSettings(internal_secret=OLD))
        ) as old,
        Peer(url, name="manifest", secret=NEW) as new,
    ):
        for peer in (old, new):
            assert (await peer.call("POST", "/internal/v1/x")).body == {"shown": True}
            assert bytes((await peer.fetch("/internal/v1/x")).data) == b'{"shown":true}'


async def test_a_socket_is_shown_no_secret(tmp_path: Path) -> None:
    async with (
        on_socket(tell, tmp_path / "s") as url,
        Peer(url, name="manifest", secret=OLD) as peer,
    ):
        assert (await peer.call("GET", "/x")).body == {"shown": False}
        assert bytes((await peer.fetch("/x")).data) == b'{"shown":false}'


@pytest.mark.parametrize("secret", [None, OTHER])
async def test_services_of_different_secrets_say_so_and_blame_no_client(secret: str | None) -> None:
    with structlog.testing.capture_logs() as logs:
        async with (
            inside(internal_secret=OLD) as url,
            Peer(url, name="manifest", secret=secret) as peer,
        ):
            with pytest.raises(Unavailable) as called:
                await peer.call("POST", "/internal/v1/x")
            with pytest.raises(Unavailable) as fetched:
                await peer.fetch("/internal/v1/x")
            forwarding = Forwarding(5, secret)
            with pytest.raises(Unavailable) as forwarded:
                await forwarding.ask(url, scope_of(method="DELETE"), _nothing)
            await forwarding.aclose()
    for told in (called, fetched, forwarded):
        assert told.value.code is Code.PEER_UNAVAILABLE
        assert told.value.outcome is Outcome.NONE
        assert "secret" in str(told.value)
    said = [line for line in logs if line["event"] == "the internal secret is not taken"]
    assert len(said) == 3
    assert OTHER not in repr(logs)


async def test_a_request_that_is_passed_on_shows_the_secret_and_no_credential_of_its_client() -> (
    None
):
    async with inside(internal_secret=OLD) as url:
        forwarding = Forwarding(5, OLD)
        asked = scope_of({"authorization": "Bearer of-the-client"}, method="DELETE")
        answer = await forwarding.ask(url, asked, _nothing)
        assert (answer.status, answer.body) == (200, b'{"shown":true}')
        await forwarding.aclose()


async def _nothing() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_a_file_holds_one_secret_or_two(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for text, found in [(f"{OLD}\n", (OLD,)), (f"{NEW}\n{OLD}\n", (NEW, OLD))]:
        file.write_text(text)
        assert secrets_of(CommonSettings(internal_secret_file=file)) == found
    assert secrets_of(CommonSettings()) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("short", "32 to 128 letters"),
        (f"{OLD}!", "32 to 128 letters"),
        (f"{OLD},{NEW},{OTHER}", "or two of them"),
        (",", "32 to 128 letters"),
        ("a" * 32, "does not look random"),
    ],
)
def test_what_is_no_secret_is_refused_by_name_and_not_repeated(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    for settings, name in [
        (CommonSettings(internal_secret=text), "BOTTOMLESS_INTERNAL_SECRET:"),
        (CommonSettings(internal_secret_file=file), "BOTTOMLESS_INTERNAL_SECRET_FILE:"),
    ]:
        with pytest.raises(CannotStart, match=reason) as told:
            secrets_of(settings)
        assert name in str(told.value)
        assert OLD not in str(told.value)


def test_a_file_that_is_not_there_and_both_settings_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"INTERNAL_SECRET_FILE: No such file"):
        secrets_of(CommonSettings(internal_secret_file=tmp_path / "none"))
    with pytest.raises(CannotStart, match="both set"):
        secrets_of(CommonSettings(internal_secret=OLD, internal_secret_file=tmp_path / "none"))
