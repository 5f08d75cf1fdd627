"""GETs that are signed and received by ourselves, and what makes them the library's."""

import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import self_signed
from support.guards import remove
from support.s3 import CREDENTIALS
from support.scripted_s3 import CLOSE, Request, ScriptedS3, refusal, reply, scripted_s3

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless_server.drives import s3_in_place
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_options import S3Options

BODY = b"0123456789"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedS3]:
    async with scripted_s3() as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def options(server: ScriptedS3) -> S3Options:
    return S3Options("bucket", "root", server.endpoint, connect_seconds=20, read_seconds=60)


@pytest.fixture
async def drive(options: S3Options) -> AsyncIterator[S3Drive]:
    made = S3Drive(options)
    yield made
    await made.aclose()


def part(first: int, last: int, total: int = len(BODY), body: bytes | None = None) -> bytes:
    """A range of BODY, as a store sends it."""
    sent = BODY[first : last + 1] if body is None else body
    return reply(206, sent, content_range=f"bytes {first}-{last}/{total}")


def by_library(request: Request) -> bool:
    return "botocore" in request.headers["user-agent"].lower()


async def test_a_range_is_asked_for_once_and_given_as_it_was_received(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [part(3, 6), part(8, 9), reply(200, BODY)]

    found = await drive.get("a b/c~%", 3, 4)
    assert isinstance(found, memoryview)
    assert bytes(found) == b"3456"
    assert found.readonly
    assert await drive.get("a/b", 8, 100) == b"89", "the object ends there"
    assert await drive.get("a/b") == BODY

    first, second, third = server.requests
    assert not any(by_library(request) for request in server.requests)
    assert (first.method, first.target) == ("GET", "/bucket/root/a%20b/c~%25")
    assert first.headers["range"] == "bytes=3-6"
    assert second.headers["range"] == "bytes=8-107"
    assert "range" not in third.headers
    assert "SignedHeaders=host;range;x-amz-" in first.headers["authorization"]
    assert server.connection_count == 1


ODD: dict[str, bytes] = {
    "another range": part(4, 7),
    "fewer bytes than the object has": part(3, 5),
    "more than it says": part(3, 6, body=b"3456789"),
    "less than it says": part(3, 6, body=b"345"),
    "no range": reply(206, b"3456"),
    "a range of nothing": reply(206, b"3456", content_range="bytes */10"),
    "the whole object": reply(200, BODY),
    "four bytes of a whole": reply(200, b"3456"),
    "a range of more digits than a number has": reply(
        206, b"3456", content_range=f"bytes {'9' * 5_000}-6/10"
    ),
    "an end of more digits than a number has": reply(
        206, b"345", content_range=f"bytes 3-5/{'9' * 5_000}"
    ),
    "a word before it": b"HTTP/1.1 100 Continue\r\n\r\n" + part(3, 6),
    "its size twice": part(3, 6).replace(
        b"content-length: 4", b"content-length: 4\r\ncontent-length: 5"
    ),
    "chunks that are more": b"HTTP/1.1 206 Answer\r\ntransfer-encoding: chunked\r\n"
    b"content-range: bytes 3-6/10\r\n\r\n5\r\n34567\r\n0\r\n\r\n",
    "two answers": part(3, 6) + part(3, 6, body=b"9999"),
    "packed": reply(206, b"3456", content_range="bytes 3-6/10", content_encoding="gzip"),
    "elsewhere": reply(307, location="http://127.0.0.1:1/"),
    "in trouble": refusal(503, "SlowDown"),
    "a broken connection": CLOSE,
    "half an answer": reply(206, b"3456", cut=2, content_range="bytes 3-6/10"),
    "no HTTP": b"nothing of the kind\r\n\r\n",
}


@pytest.mark.parametrize("odd", ODD)
async def test_whatever_else_comes_is_asked_again_by_the_library(
    server: ScriptedS3, drive: S3Drive, odd: str
) -> None:
    server.replies = [ODD[odd], part(3, 6)]

    assert await drive.get("a/b", 3, 4) == b"3456"
    assert [by_library(request) for request in server.requests] == [False, True]


async def test_bytes_that_were_not_asked_for_are_taken_where_the_guard_is_removed(
    server: ScriptedS3, drive: S3Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "bytes as asked for", lambda *_, **__: True)
    server.replies = [part(4, 7)]

    assert await drive.get("a/b", 3, 4) == b"4567"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (refusal(404, "NoSuchKey"), ObjectMissing),
        (refusal(404, "NoSuchBucket"), DriveRefused),
        (refusal(403, "ExpiredToken"), DriveRefused),
        (refusal(503, "SlowDown"), DriveUnavailable),
    ],
)
async def test_an_error_is_the_one_that_the_library_hears(
    server: ScriptedS3, drive: S3Drive, answer: bytes, wanted: type[Exception]
) -> None:
    server.replies = [answer, answer]
    with pytest.raises(wanted) as raised:
        await drive.get("a/b", 3, 4)

    assert type(raised.value) is wanted
    assert [by_library(request) for request in server.requests] == [False, True]


async def test_a_range_beyond_the_end_is_empty(server: ScriptedS3, drive: S3Drive) -> None:
    server.replies = [refusal(416, "InvalidRange")] * 2

    assert await drive.get("a/b", 10, 4) == b""


async def test_a_store_in_trouble_is_not_asked_everything_twice(
    server: ScriptedS3, drive: S3Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = s3_in_place.ODD_COUNT_MAX
    server.replies = [refusal(404, "NoSuchKey")] * (2 * count + 3)
    for _ in range(count + 3):
        with pytest.raises(ObjectMissing):
            await drive.get("a/b", 3, 4)
    assert len(server.requests) == 2 * count + 3

    monkeypatch.setattr(s3_in_place, "PAUSE_SECONDS", 0.0)
    other = S3Drive(S3Options("bucket", "root", server.endpoint))
    server.replies = [*[refusal(404, "NoSuchKey")] * (2 * count), part(3, 6)]
    for _ in range(count):
        with pytest.raises(ObjectMissing):
            await other.get("a/b", 3, 4)
    assert await other.get("a/b", 3, 4) == b"3456"
    await other.aclose()
    assert not by_library(server.requests[-1]), "after the pause it is tried again"


async def test_a_store_that_is_silent_is_given_up_and_not_asked_again(
    server: ScriptedS3, options: S3Options
) -> None:
    for impatient in (replace(options, read_seconds=0.2), replace(options, call_seconds=0.2)):
        server.requests.clear()
        server.replies = [None]
        drive = S3Drive(impatient)
        with pytest.raises(DriveUnavailable):
            await drive.get("a/b", 3, 4)
        await drive.aclose()
        # None, where the limit was over before the request had left this slow machine.
        assert len(server.requests) <= 1


async def test_credentials_that_end_are_refreshed_by_the_library(
    server: ScriptedS3, options: S3Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each process of the profile gives another key with a token, which has ended already when
    it comes but for a second or two."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "give.py"
    program.write_text(
        "import json, pathlib, datetime\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=300)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'AK{number}', 'SecretAccessKey': 's',"
        " 'SessionToken': f'token-{number}', 'Expiration': ends.isoformat()}))\n"
    )
    profile = tmp_path / "config"
    profile.write_text(f"[default]\ncredential_process = {sys.executable} -I -S {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nothing/here")
    drive = S3Drive(options)
    server.replies = [part(3, 6)] * 3
    for _ in range(3):
        assert await drive.get("a/b", 3, 4) == b"3456"
    await drive.aclose()

    tokens = [request.headers["x-amz-security-token"] for request in server.requests]
    assert not any(by_library(request) for request in server.requests)
    assert len(set(tokens)) == 3, "what ends within ten minutes is fetched anew each time"
    for request, token in zip(server.requests, tokens, strict=True):
        number = token.removeprefix("token-")
        assert f"Credential=AK{number}/" in request.headers["authorization"]
        assert "x-amz-security-token" in request.headers["authorization"]


async def test_without_credentials_nothing_is_asked(
    server: ScriptedS3, options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nothing/here")
    drive = S3Drive(options)
    with pytest.raises(DriveRefused):
        await drive.get("a/b", 3, 4)
    await drive.aclose()
    assert server.requests == []


async def test_only_a_certificate_that_is_trusted_is_asked(
    options: S3Options, tmp_path: Path
) -> None:
    certificate = self_signed(tmp_path)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate)
    body = bytes(range(256)) * 20_000
    async with scripted_s3(secure) as server:
        stranger = S3Drive(replace(options, endpoint=server.endpoint))
        with pytest.raises(DriveRefused):
            await stranger.get("a/b", 3, 4)
        await stranger.aclose()
        assert server.requests == []
        friend = S3Drive(replace(options, endpoint=server.endpoint, ca_path=certificate))
        server.replies = [part(0, len(body) - 1, len(body), body)]
        assert await friend.get("a/b", 0, len(body)) == body
        await friend.aclose()
        assert [by_library(request) for request in server.requests] == [False]


async def test_where_a_proxy_is_set_all_requests_go_by_it(
    server: ScriptedS3, options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    monkeypatch.setenv("NO_PROXY", "nowhere.example")
    drive = S3Drive(replace(options, endpoint="http://store.example:9000"))
    server.replies = [part(3, 6)]
    assert await drive.get("a/b", 3, 4) == b"3456"
    await drive.aclose()

    (sent,) = server.requests
    assert sent.target == "http://store.example:9000/bucket/root/a/b"


async def test_a_user_in_the_address_of_a_store_is_not_sent_as_a_part_of_its_host(
    server: ScriptedS3, options: S3Options
) -> None:
    drive = S3Drive(replace(options, endpoint=server.endpoint.replace("//", "//user:secret@")))
    server.replies = [part(3, 6)] * 2
    with suppress(DriveUnavailable, DriveRefused):
        await drive.get("a/b", 3, 4)
    await drive.aclose()

    assert not any("secret" in request.headers["host"] for request in server.requests)


async def test_the_bucket_may_stand_in_the_name_of_the_host(
    server: ScriptedS3, options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def found(host: str, *others: Any, **more: Any) -> Any:
        return look_up("127.0.0.1" if host == "bucket.store.test" else host, *others, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    port = server.endpoint.rpartition(":")[2]
    virtual = replace(options, endpoint=f"http://store.test:{port}", path_style=False)
    drive = S3Drive(virtual)
    server.replies = [part(3, 6)]
    assert await drive.get("a/b", 3, 4) == b"3456"
    await drive.aclose()

    (sent,) = server.requests
    assert (sent.headers["host"], sent.target) == (f"bucket.store.test:{port}", "/root/a/b")
