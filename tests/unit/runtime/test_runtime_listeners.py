"""Listeners: addresses, bounds on the head of a request, answers to what is not HTTP."""

import asyncio
import os
from pathlib import Path

import httpx
import orjson
import pytest
from support.asgi import on_tcp

from bottomless.drives.base import Location
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import create_api, wrap
from bottomless_server.runtime.listener.connections import HttpBounds
from bottomless_server.runtime.listener.listeners import bind_tcp, internal_url, socket_path
from bottomless_server.runtime.process.parts import open_coordination, open_drive

HEAD_SIZE_MAX = HttpBounds().head_bytes_max


def test_an_internal_listener_is_a_socket_of_the_directory_or_what_is_said() -> None:
    assert internal_url(None, Path("/data"), "ingest") == "unix:///data/run/ingest.sock"
    assert internal_url("unix:///run/a.sock", Path("/data"), "ingest") == "unix:///run/a.sock"
    assert internal_url("10.0.0.1:8081", Path("/data"), "ingest") == "http://10.0.0.1:8081"
    assert internal_url("[::1]:8081", Path("/data"), "ingest") == "http://[::1]:8081"


@pytest.mark.parametrize("listen", ["", "8081", "host", "host:x", "http://host:1", "host:1/a"])
def test_another_way_to_say_it_is_refused(listen: str) -> None:
    with pytest.raises(CannotStart, match="internal listener of ingest"):
        internal_url(listen, Path("/data"), "ingest")


def test_a_long_path_becomes_a_short_one_the_same_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    long = tmp_path / ("d" * 120)
    path = socket_path(long, "ingest")
    assert path == socket_path(long, "ingest") != socket_path(long / "e", "ingest")
    assert len(os.fsencode(path)) <= 107
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)
    with pytest.raises(CannotStart, match="somebody else"):
        socket_path(long, "ingest")
    path.parent.rmdir()
    socket_path(long / "e", "ingest").parent.rmdir()


def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    with pytest.raises(CannotStart, match=r"cannot listen on 192\.0\.2\.1:80"):
        bind_tcp("192.0.2.1", 80)


async def test_ports_serve_ipv6_too() -> None:
    bound = bind_tcp("::1", 0)
    assert bound.getsockname()[0] == "::1"
    bound.close()


@pytest.mark.parametrize(
    ("request_head", "status", "code"),
    [
        (b"\x16\x03\x01\x00garbage", 400, "bad-header"),
        (b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400, "bad-header"),
        (b"GET /" + b"a" * HEAD_SIZE_MAX + b" HTTP/1.1\r\n\r\n", 414, "uri-too-long"),
        (
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_SIZE_MAX // 2 + 1) + b"\r\n",
            431,
            "headers-too-large",
        ),
        (b"GET / HTTP/1.1\r\na: " + b"b" * HEAD_SIZE_MAX + b"\r\n\r\n", 431, "headers-too-large"),
    ],
)
async def test_a_head_that_is_not_http_or_too_large_is_a_problem(
    request_head: bytes, status: int, code: str
) -> None:
    async with on_tcp(wrap(create_api("test"))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_head)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    problem = orjson.loads(body)
    assert lines[0].startswith(f"http/1.1 {status} ".encode())
    assert b"content-type: application/problem+json" in lines
    assert f"request-id: {problem['request_id']}".encode() in lines
    assert problem["code"] == code


@pytest.mark.parametrize(
    "url",
    [
        "/data",
        "file:data",
        "file://other/data",
        "s3:bucket",
        "s3://key:secret@bucket",
        "s3://bucket?endpoint=nowhere",
        "s3://bucket?path_style=maybe",
        "s3://bucket?ca=/nothing/here",
        "s3://bucket?region=a&region=b",
        "s3://bucket?secret=x",
    ],
)
def test_a_store_that_is_not_known_is_one_sentence(url: str) -> None:
    with pytest.raises(CannotStart, match="BOTTOMLESS_STORE_URL"):
        open_drive(url, CommonSettings())


async def test_parts_are_opened_by_url(tmp_path: Path) -> None:
    settings = CommonSettings()
    drive = open_drive((tmp_path / "a b").as_uri(), settings)
    assert drive.location.root == str(tmp_path / "a b")
    await drive.aclose()
    drive = open_drive(
        "s3://bucket/a/b/?endpoint=http://127.0.0.1:1/&region=x&path_style=true", settings
    )
    assert drive.location == Location("s3", "bucket/a/b", "http://127.0.0.1:1", "x", True)
    await drive.aclose()
    drive = open_drive("s3://bucket", settings)
    assert drive.location == Location("s3", "bucket", path_style=False)
    await drive.aclose()
    await open_coordination("redis://127.0.0.1:1/0").aclose()
    with pytest.raises(CannotStart, match="BOTTOMLESS_COORDINATION_URL"):
        open_coordination("127.0.0.1:6379")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:tOpSecret/w0rd@127.0.0.1:6379/0",
        "redis://:tOpSecret#w0rd@127.0.0.1:6379/0",
        "redis://127.0.0.1:99999/0",
        "redis://[::1/0",
        "redis://127.0.0.1:6379/0?socket_timeout=x",
    ],
)
def test_an_address_of_coordination_that_cannot_be_read_shows_nothing_of_its_password(
    url: str,
) -> None:
    with pytest.raises(CannotStart, match="BOTTOMLESS_COORDINATION_URL") as caught:
        open_coordination(url)
    assert "tOp" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_the_date_of_answers_goes_on_while_nobody_asks() -> None:
    async def date(client: httpx.AsyncClient) -> str:
        return str((await client.get("/")).headers["date"])

    async with (
        on_tcp(wrap(create_api("test"))) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        first = await date(client)
        async with asyncio.timeout(240):
            while await date(client) == first:
                await asyncio.sleep(0.1)
