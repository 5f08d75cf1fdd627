"""Which requests a web page may have had a browser send, and that such requests do nothing."""

import asyncio
from typing import Any, Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send
from support.asgi import client_of, listening

from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.foreign_pages import Hosts, without_foreign_pages
from bottomless_server.runtime.process.front import Front

HERE: Final = [
    "127.0.0.1",
    "127.0.0.1:8080",
    "10.1.2.3:1",
    "127.1:8080",
    "[::1]",
    "[::1]:8080",
    "[fe80::1%25eth0]:8080",
    "localhost",
    "LocalHost.:8080",
    "streams.localhost:8080",
    "ingest",
    "project_ingest_1:9080",
    "",
]
"""What no stranger can point anywhere."""
MADE_UP: Final = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil-localhost.example:80",
    "notlocalhost.com",
    "streams.example.org.evil.example",
    "1.2.3.evil",
    "a.b.streams.example.com",
]
MALFORMED: Final = ["a b", "a/b", "http://a", "a@b", "[::1", "::1", "a:b", "[]", "a,b", "é"]


@pytest.mark.parametrize("host", HERE)
def test_an_address_localhost_and_a_name_without_a_dot_are_taken(host: str) -> None:
    assert Hosts(()).takes(host.encode()) is True


@pytest.mark.parametrize("host", MADE_UP)
def test_a_name_that_anybody_may_register_is_not_taken(host: str) -> None:
    named = Hosts(("streams.example.org", "*.inner.example.org", "streams.example.com"))
    assert named.takes(host.encode()) is False


@pytest.mark.parametrize("host", MALFORMED)
def test_what_is_no_host_is_told_from_one(host: str) -> None:
    assert Hosts(()).takes(host.encode("latin-1")) in (None, False)


@given(st.binary(max_size=40))
def test_any_bytes_are_judged(host: bytes) -> None:
    assert Hosts(("a.example",)).takes(host) in (True, False, None)


@given(st.from_regex(r"[a-z]{1,9}(\.[a-z0-9-]{1,9}){0,3}\.[a-z]{2,9}", fullmatch=True))
def test_a_name_with_a_dot_is_taken_only_where_it_is_named(name: str) -> None:
    good = name.endswith(".localhost")
    assert Hosts(()).takes(name.encode()) is good
    assert Hosts((name,)).takes(name.upper().encode() + b":8080") is True
    assert Hosts((f"*.{name}",)).takes(b"x." + name.encode()) is True
    assert Hosts((f"*.{name}",)).takes(b"x" + name.encode()) is False


def guarded(identity: bool = False, **settings: Any) -> httpx.AsyncClient:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    front = Front(CommonSettings(identity=identity, **settings))
    return client_of(front.public(app, "x"))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "ODD"])
async def test_a_page_of_another_origin_changes_nothing(method: str) -> None:
    for identity in (False, True):
        async with guarded(identity) as client:
            for origin in ("http://evil.example", "http://test:81", "null", "http://testx", "test"):
                answer = await client.request(method, "/", headers={"origin": origin})
                assert answer.status_code == 403
                assert answer.json()["code"] == "origin-not-allowed"
                assert answer.json()["outcome"] == "none"
                assert "evil" not in answer.text
            both = [("origin", "http://test"), ("origin", "http://evil.example")]
            assert (await client.request(method, "/", headers=both)).status_code == 403
            for own in ("http://test", "https://test", "https://TEST:443", "http://test:80"):
                answer = await client.request(method, "/", headers={"origin": own})
                assert answer.status_code == 204
            assert (await client.request(method, "/")).status_code == 204


async def test_a_page_of_another_origin_reads_as_before_and_a_listed_one_does_all() -> None:
    page = {"origin": "https://app.example"}
    async with guarded() as client:
        read = await client.get("/", headers=page)
        assert read.status_code == 204
        assert "access-control-allow-origin" not in read.headers
    async with guarded(cors_origins="https://app.example") as client:
        for method in ("GET", "POST"):
            answer = await client.request(method, "/", headers=page)
            assert answer.status_code == 204
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
        other = await client.post("/", headers={"origin": "https://app.example.evil"})
        assert other.json()["code"] == "origin-not-allowed"
        asking = {**page, "access-control-request-method": "PUT"}
        assert (await client.options("/", headers=asking)).status_code == 204


async def test_a_made_up_name_reaches_nothing_without_identity() -> None:
    made_up = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    async with guarded() as client:
        for method in ("GET", "HEAD", "OPTIONS", "POST"):
            for path in ("/v1/streams", "/docs", "/livez", "/"):
                answer = await client.request(method, path, headers=made_up)
                assert answer.status_code == 403
                assert answer.headers["request-id"]
        assert (await client.get("/", headers=made_up)).json()["code"] == "host-not-allowed"
    async with guarded(hosts="evil.example, *.else.example") as client:
        assert (await client.post("/", headers=made_up)).status_code == 204


async def test_with_identity_a_name_is_looked_at_only_where_some_are_named() -> None:
    host = {"host": "streams.example.org"}
    async with guarded(identity=True) as client:
        assert (await client.get("/", headers=host)).status_code == 204
    async with guarded(identity=True, hosts="other.example.org") as client:
        assert (await client.get("/", headers=host)).json()["code"] == "host-not-allowed"


async def test_http_1_1_without_a_host_is_400_and_http_1_0_is_answered() -> None:
    app = Front(CommonSettings()).public(_ok, "x")
    for lines, status in [
        (b"GET / HTTP/1.1\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b" 403 "),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", b" 204 "),
        (b"GET / HTTP/1.0\r\n\r\n", b" 204 "),
        (b"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", b" 403 "),
    ]:
        assert status in await _answer_to(app, lines), lines


async def _ok(scope: Scope, _: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _answer_to(app: Any, lines: bytes) -> bytes:
    async with listening(app) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(lines)
        try:
            return await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "text", ["https://a.example", "a.example:80", "*", "a*.example", "a b", "."]
)
def test_a_setting_that_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="a host looks like name"):
        CommonSettings(hosts=text)


async def test_without_the_guard_a_page_of_another_origin_is_let_in() -> None:
    """The guard is what holds: the application behind it takes what a browser would send."""
    page = {"origin": "http://evil.example", "host": "evil.example"}
    assert (await client_of(_ok).post("/", headers=page)).status_code == 204
    behind = without_foreign_pages(_ok, hosts=Hosts(()))
    assert (await client_of(behind).post("/", headers=page)).status_code == 403
