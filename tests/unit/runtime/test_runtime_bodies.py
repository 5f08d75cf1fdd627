"""Bodies: bounded, of a known type, and JSON with one meaning."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Message
from support.asgi import client_of, on_tcp, scope_of

from bottomless.errors import Code, InvalidRequest
from bottomless_server.runtime.http.app import (
    ClientGone,
    content_encoding,
    content_type,
    create_api,
    encode_json,
    header,
    json_response,
    negotiate,
    parse_json,
    read_body,
    wrap,
)

LIMIT = 100_000


def an_app() -> ASGIApp:
    api = create_api("test")

    @api.post("/body")
    async def take(request: Request) -> Any:
        body = await read_body(request.scope, request.receive, LIMIT)
        return json_response({"size": len(body)})

    return wrap(api)


async def chunked(size: int) -> Any:
    for _ in range(0, size, 10_000):
        yield b"x" * 10_000


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_the_limit_is_413_of_the_same_shape_and_the_service_goes_on(
    is_chunked: bool,
) -> None:
    async with on_tcp(an_app()) as port, httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}/body"
        content = chunked(LIMIT + 10_000) if is_chunked else b"x" * (LIMIT + 1)
        answer = await client.post(url, content=content)
        after = await client.post(url, content=b"x" * LIMIT)
    problem = answer.json()
    problem.pop("request_id")
    assert problem == {
        "type": "urn:bottomless:problem:body-too-large",
        "title": "Body too large",
        "status": 413,
        "detail": "the body is larger than this service takes",
        "code": "body-too-large",
        "retryable": False,
        "outcome": "none",
        "limit_bytes": LIMIT,
    }
    assert after.json() == {"size": LIMIT}


async def test_a_body_in_parts_is_joined() -> None:
    async with client_of(an_app()) as client:
        answer = await client.post("/body", content=chunked(30_000))
    assert answer.json() == {"size": 30_000}


async def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"ha", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientGone):
        await read_body(scope_of(), receive, LIMIT)


async def test_a_cut_connection_is_no_bug(capfd: pytest.CaptureFixture[str]) -> None:
    async with on_tcp(an_app()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert capfd.readouterr().err == ""


def test_a_content_type_is_its_media_type_in_lowercase() -> None:
    for text in (
        "Application/JSON",
        "application/json; charset=UTF-8",
        'application/json;charset="utf-8"',
    ):
        assert content_type(scope_of({"content-type": text})) == "application/json"


@pytest.mark.parametrize(
    "text", [None, "", "text/plain", "application/json; charset=utf-16", "application/json; a=b"]
)
def test_another_content_type_is_415_and_says_what_is_accepted(text: str | None) -> None:
    scope = scope_of({} if text is None else {"content-type": text})
    with pytest.raises(InvalidRequest) as caught:
        content_type(scope, ["application/json"])
    assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE
    assert caught.value.facts == {"accepted": ["application/json"]}


async def test_accept_post_is_a_header_of_415() -> None:
    api = create_api("test")

    @api.post("/")
    async def take(request: Request) -> Any:
        return content_type(request.scope, ["application/json", "application/octet-stream"])

    async with client_of(wrap(api)) as client:
        answer = await client.post("/", content=b"")
    assert answer.status_code == 415
    assert answer.headers["accept-post"] == "application/json, application/octet-stream"


def test_an_encoding_that_is_not_accepted_is_never_ignored() -> None:
    assert content_encoding(scope_of()) is None
    assert content_encoding(scope_of({"content-encoding": "identity"})) is None
    assert content_encoding(scope_of({"content-encoding": "ZSTD"}), ["zstd"]) == "zstd"
    with pytest.raises(InvalidRequest, match="Content-Encoding"):
        content_encoding(scope_of({"content-encoding": "gzip"}), ["zstd"])


def test_a_header_twice_is_refused() -> None:
    scope = scope_of({"content-type": "application/json"})
    scope["headers"] *= 2
    with pytest.raises(InvalidRequest, match="more than once"):
        header(scope, b"content-type")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "a/json"),
        ("*/*", "a/json"),
        ("a/arrow", "a/arrow"),
        ("a/json;q=0.5, a/arrow", "a/arrow"),
        ("a/*;q=0.2, a/arrow;q=0.1", "a/json"),
        ("a/json;q=0, */*", "a/arrow"),
        ("A/ARROW ; Q=1", "a/arrow"),
    ],
)
def test_the_highest_quality_is_chosen(accept: str | None, chosen: str) -> None:
    assert negotiate(accept, ["a/json", "a/arrow"]) == chosen


@pytest.mark.parametrize("accept", ["application/xml", "a/json;q=0", "a/json;q=x", ","])
def test_nothing_acceptable_is_406(accept: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        negotiate(accept, ["a/json"])
    assert caught.value.code is Code.NOT_ACCEPTABLE


def refusal(body: bytes) -> Code:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    return caught.value.code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} {}",
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'{"records":[],"records":[]}',
        b'[{"a": {"b": 1, "b": 1}}]',
        b"[01]",
        b"'a'",
        b'"a\nb"',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_one_json_text_is_malformed_at_once(body: bytes) -> None:
    before = time.thread_time()
    assert refusal(body) is Code.MALFORMED_JSON
    assert time.thread_time() - before < 0.1


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+400", "1" * 250 + "e99", "1" * 400 + ".5", "1" * 5_000, "1e0999"]
)
def test_a_number_that_is_no_double_is_out_of_range(number: str) -> None:
    """Among few floats each is looked at, among many the text is: both refuse it."""
    assert refusal(f'{{"a": [{number}]}}'.encode()) is Code.NUMBER_OUT_OF_RANGE
    many = "0.5," * 100
    assert refusal(f'{{"a": [{many}{number}]}}'.encode()) is Code.NUMBER_OUT_OF_RANGE
    long = "x" * 1_000
    assert refusal(f'{{"a": ["{long}", 0.5, {number}]}}'.encode()) is Code.NUMBER_OUT_OF_RANGE


def test_what_is_read_is_what_was_written() -> None:
    body = '{"a": [1.5, 1e308, -0.0, 18446744073709551616, "e999", "é\\u0000"], "b": null}'
    assert parse_json(body.encode()) == {
        "a": [1.5, 1e308, -0.0, 2**64, "e999", "é\x00"],
        "b": None,
    }


def test_a_value_is_written_again_or_refused() -> None:
    assert encode_json({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    for value, code in (
        (2**64, Code.NUMBER_OUT_OF_RANGE),
        (-(2**63) - 1, Code.NUMBER_OUT_OF_RANGE),
        (parse_json(b'"\\ud800"'), Code.VALIDATION_FAILED),
        (parse_json(b"[" * 300 + b"]" * 300), Code.VALIDATION_FAILED),
    ):
        with pytest.raises(InvalidRequest) as caught:
            encode_json([value], "/records/1/json")
        assert caught.value.code is code
        assert caught.value.faults[0].pointer == "/records/1/json"
