"""`/`: one page for all, which allows nothing but itself, and an index for programs."""

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256

import httpx
import pytest
from support.asgi import client_of

from bottomless_server.manifest.front.index_page import add_index_routes
from bottomless_server.runtime.http.app import create_api, wrap
from openapi.bundle import PUBLIC, bundled

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    api = create_api("test")
    add_index_routes(api)
    async with client_of(wrap(api)) as found:
        yield found


async def test_the_policy_names_its_own_style_and_script_and_nothing_else(
    client: httpx.AsyncClient,
) -> None:
    page = await client.get("/", headers=BROWSER)
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    for kind, tag in (("script", "script"), ("style", "style")):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r" on[a-z]+=| style=", page.text)


async def test_the_page_names_no_other_host_and_takes_nothing_for_markup(
    client: httpx.AsyncClient,
) -> None:
    text = (await client.get("/", headers=BROWSER)).text
    hosts = set(re.findall(r"https?://([^/'\"]+)", text))
    assert hosts == {"www.w3.org"}, "the name space of its icon"
    assert not re.search("innerHTML|outerHTML|insertAdjacent|document.write|eval", text)
    assert not re.search("localStorage|sessionStorage|document.cookie", text)


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
async def test_programs_get_an_index_of_what_the_contract_has(
    client: httpx.AsyncClient, accept: str
) -> None:
    answer = await client.get("/", headers={"accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"] == "accept"
    links = answer.json()["links"]
    assert set(links.values()) <= {*bundled(*PUBLIC)["paths"], "/openapi.json"}
    assert (links["streams"], links["queues"]) == ("/v1/streams", "/v1/queues")


async def test_every_line_to_copy_asks_for_what_the_contract_has(client: httpx.AsyncClient) -> None:
    text = (await client.get("/", headers=BROWSER)).text
    paths = {re.sub(r"{[^}]*}", "*", path) for path in bundled(*PUBLIC)["paths"]}
    begun = {"stream": "/v1/streams/*", "named": "/v1/streams/*", "queue": "/v1/queues/*"}
    asked = re.findall(
        r"""curl [^$\n]*?\$\{(stream|named|queue|location\.origin)\}([/a-z0-9]*)""", text
    )
    assert {"queue", "stream"} <= {name for name, _ in asked}
    found = {re.sub("/billing", "/*", begun.get(name, "") + rest) for name, rest in asked}
    assert found <= paths


async def test_another_form_is_refused_and_head_has_no_body(client: httpx.AsyncClient) -> None:
    assert (await client.get("/", headers={"accept": "image/png"})).status_code == 406
    assert (await client.head("/", headers=BROWSER)).status_code == 200
