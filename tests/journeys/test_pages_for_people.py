"""What a person sees in a browser: the page at the address of a server, and `/docs`.

The checks before these looked at what was answered, and never whether a browser shows it: `/docs`
answered 200, brought all its parts, and could not show the operation for which everybody comes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from support.browser import chromium
from support.devtools import Tab, a_tab
from support.server import AllInOne

SECRET: Final = "0123456789abcdef" * 4
ROOT_KEY: Final = f"sk_root_{SECRET}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    chromium()
    with AllInOne(tmp_path_factory.mktemp("plain") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    """A server that asks who somebody is, with one stream."""
    chromium()
    directory = tmp_path_factory.mktemp("known")
    root = directory / "root.secret"
    root.write_text(SECRET)
    root.chmod(0o600)
    settings = {"BOTTOMLESS_IDENTITY": "true", "BOTTOMLESS_ROOT_KEY_FILE": str(root)}
    with AllInOne(directory / "data", settings) as server:
        with server.client() as client:
            client.headers["authorization"] = f"Bearer {ROOT_KEY}"
            assert client.put("/v1/streams/hidden-orders").status_code == 201
        yield server


async def test_the_page_shows_the_streams_and_a_line_for_each_thing_to_do(
    plain: AllInOne, tmp_path: Path
) -> None:
    """D12: the url that the server prints was answered `not-found`."""
    with plain.client() as client:
        async with a_tab(tmp_path / "profile") as tab:
            await tab.open(f"{plain.url}/")
            await tab.until("!document.getElementById('empty').hidden")
            assert await tab.until("document.getElementById('health').textContent") == "ready"
            client.put("/v1/streams/orders")
            body = {"records": [{"value": "a"}, {"value": "b"}]}
            assert client.post("/v1/streams/orders/records", json=body).status_code == 200
            await tab.open(f"{plain.url}/?")
            await tab.until("!document.getElementById('list').hidden")
            cells = await tab.value(
                "[...document.querySelectorAll('td')].map(td => td.textContent)"
            )
            lines = await tab.value("[...document.querySelectorAll('pre')].map(p => p.textContent)")
            assert await tab.until("!document.getElementById('docs-link').hidden")
            assert (tab.failures(), tab.hosts()) == ([], {urlsplit(plain.url).netloc})
    assert cells[:2] == ["orders", "2"]
    assert f"curl '{plain.url}/v1/streams/orders/records?offset=first'" in lines
    # What removes data names no stream that nobody has chosen.
    assert [line for line in lines if "DELETE" in line] == [
        f"curl -X DELETE {plain.url}/v1/streams/NAME"
    ]


async def test_without_a_key_the_page_shows_no_stream_and_a_key_is_kept_in_memory_alone(
    known: AllInOne, tmp_path: Path
) -> None:
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(f"{known.url}/")
        await tab.until("!document.getElementById('key-form').hidden")
        assert "hidden-orders" not in await tab.value("document.documentElement.outerHTML")

        await give_key(tab, "sk_wrong")
        await tab.until("!document.getElementById('key-fault').hidden")
        await give_key(tab, ROOT_KEY)
        await tab.until("!document.getElementById('list').hidden")
        assert await tab.value("document.querySelector('td').textContent") == "hidden-orders"
        kept = await tab.value(
            "[localStorage.length, sessionStorage.length, document.cookie, location.href]"
        )
        assert kept == [0, 0, "", f"{known.url}/"]
        assert ROOT_KEY not in await tab.value("document.documentElement.outerHTML")

        await tab.open(f"{known.url}/?")
        await tab.until("!document.getElementById('key-form').hidden")
        assert "hidden-orders" not in await tab.value("document.documentElement.outerHTML")
        assert (tab.failures(), tab.hosts()) == ([], {urlsplit(known.url).netloc})


async def give_key(tab: Tab, key: str) -> None:
    await tab.until(
        f"(document.getElementById('key').value = {json.dumps(key)}, "
        "document.querySelector('#key-form button').click(), true)"
    )


async def test_the_main_operations_can_be_seen_and_executed_in_the_docs(
    plain: AllInOne, tmp_path: Path
) -> None:
    """D2: "Could not render", no answer to *Execute*, and an example that was refused."""
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(f"{plain.url}/docs")
        await execute(tab, "streams-put_stream")
        appended = await execute(tab, "records-append_records", "textarea.body-param__text")
        page = await execute(tab, "records-get_records")
        listed = await execute(tab, "streams-list_streams")
        assert (tab.failures(), tab.hosts()) == ([], {urlsplit(plain.url).netloc})
    assert appended["count"] == 2
    assert [record.get("value") for record in page["records"][-2:]] == [None, "hello"]
    assert [item["name"] for item in listed["items"]] == ["orders"]


async def execute(tab: Tab, operation: str, body: str | None = None) -> Any:
    """Open an operation, press *Execute*, and take what the page shows as the answer. `body` is
    where the example stands that is sent."""
    place = f"#operations-{operation}"

    async def press(what: str) -> None:
        await tab.until(f"(document.querySelector('{place} {what}').click(), true)")

    await press(".opblock-summary-control")
    if body is not None:
        await tab.until(f"document.querySelector('{place} {body}')?.value")
    # The button is there a moment before its operation is, and who presses it then waits for ever:
    # a parameter is shown from the same moment on as the operation.
    await tab.until(f"document.querySelector('{place} tr[data-param-name]') !== null")
    await press(".execute")
    shown = await tab.until(
        f"document.querySelector('{place} .live-responses-table .highlight-code pre')?.textContent"
    )
    assert "Could not render" not in await tab.value("document.body.textContent")
    await press(".opblock-summary-control")
    return json.loads(shown)
