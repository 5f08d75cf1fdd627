"""Whom a client talks to and as whom: the url, and the token that nobody else gets to see."""

import logging
import traceback

import pytest
from support.raw_server import answer, problem, raw_server

from bottomless.client import AsyncClient
from bottomless.client.address import parse_url
from bottomless.client.credential import Credential
from bottomless.errors import InvalidRequest, StoreError

SECRET = "sk_1_very-secret"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:8080",
        "ftp://host",
        "http://",
        "http://user:pass@host",
        "http://host/?a=b",
        "http://host/#a",
        "http://host:99999",
        "http://host:0",
        "http://ho st",
        "http://host\r\nX: y",
        "http://host?",
        "http://host/#",
        "http://@host",
        "http://host\\path",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url(text)
    assert "pass" not in str(caught.value)


def test_a_url_may_have_a_path_and_loses_its_last_slash() -> None:
    assert parse_url("https://host:8443/streams/") == "https://host:8443/streams"


@pytest.mark.parametrize("token", ["two words", "line\r\nX: y", "ümlaut", "x" * 8193])
def test_a_token_that_cannot_stand_in_a_header_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Credential(token)
    assert token not in str(caught.value)


def test_the_token_of_the_environment_is_taken_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOTTOMLESS_TOKEN", "theirs")
    assert Credential().headers() == {"Authorization": "Bearer theirs"}
    assert Credential("mine").headers() == {"Authorization": "Bearer mine"}
    assert Credential("").headers() == {}
    monkeypatch.delenv("BOTTOMLESS_TOKEN")
    assert Credential().headers() == {}


async def test_every_request_carries_the_token() -> None:
    async with (
        raw_server(
            lambda _: answer(value={"records": [], "next_offset": 0, "up_to_date": True})
        ) as server,
        AsyncClient(server.url, token=SECRET) as client,
    ):
        await client.describe("orders")
        await client.read("orders", 0)
    assert [asked.header("authorization") for asked in server.asked] == [f"Bearer {SECRET}"] * 2


async def test_no_redirect_leads_the_token_to_another_host() -> None:
    async with raw_server(lambda _: answer(value={})) as other:
        location = {"Location": f"{other.url}/v1/streams/orders"}
        async with (
            raw_server(lambda _: answer(307, {}, headers=location)) as server,
            AsyncClient(server.url, token=SECRET) as client,
        ):
            for call in (client.describe("orders"), client.read("orders", 0)):
                with pytest.raises(StoreError):
                    await call
    assert len(server.asked) == 2
    assert other.asked == []


async def test_neither_repr_nor_log_nor_traceback_shows_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        raw_server(lambda _: problem(401, "unauthenticated")) as server,
        AsyncClient(server.url, token=SECRET) as client,
    ):
        shown = [repr(client), repr(Credential(SECRET))]
        for call in (client.describe("orders"), client.read("orders", 0)):
            with pytest.raises(StoreError) as caught:
                await call
            shown.append("".join(traceback.format_exception(caught.value)))
    assert len(server.asked) == 2
    assert SECRET not in "".join([*shown, caplog.text])
