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
from support.contract import Stream, new_stream
from support.devtools import Tab, a_tab
from support.server import AllInOne
from support.waiting import until

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


async def test_the_page_shows_on_which_drives_a_stream_lies_and_which_node_holds_it(
    tmp_path: Path,
) -> None:
    chromium()
    (tmp_path / "shelf").mkdir()
    shelf = {"number": 1, "url": (tmp_path / "shelf").as_uri()}
    settings = {
        "BOTTOMLESS_DRIVES": json.dumps({"shelf": shelf}),
        "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "200",
    }
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        stream = new_stream(client, {"fragment": {"max_age_ms": 100}})
        for value in ("a", "b"):
            stream.append(value)
            stream.wait_uploaded()
        assert client.post("/v1/admin/drives", json={"name": "shelf"}).status_code == 200
        moved = {"from_offset": 0, "to_offset": 1, "drive": "shelf"}
        assert client.post(f"{stream.path}/moves", json=moved).status_code == 202
        until(lambda: records_by_drive(stream) == [1, 1], what="a fragment on each drive")
        async with a_tab(tmp_path / "profile") as tab:
            await tab.open(f"{server.url}/")
            await tab.until("!document.getElementById('places').hidden")
            name, drives, nodes, shares = await tab.value(PLACES)
            assert tab.failures() == []
        [node] = client.get(f"{stream.path}/replicas").json()["nodes"]
    assert name == stream.name
    assert [line.partition(" ")[0] for line in drives] == ["default", "shelf"]
    assert all(", 1 record, the newest of them " in line for line in drives)
    assert (sum(shares), min(shares) > 0) == (pytest.approx(1), True)
    assert nodes == [f"{node['node']} owns it, up to offset 2"]


PLACES: Final = """(() => {
  const lines = id => [...document.querySelectorAll(`#${id} li`)].map(
    line => [...line.childNodes].map(each => each.textContent).filter(text => text !== "").join(" "));
  const shares = [...document.querySelectorAll("meter")].map(one => one.value / one.max);
  return [document.getElementById("places-name").textContent, lines("drives"), lines("nodes"), shares];
})()"""


def records_by_drive(stream: Stream) -> list[int]:
    told = stream.client.get(f"{stream.path}/tiers").json()
    return [drive["records"] for drive in told["drives"]] if not told["moves"] else []


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


HOLD: Final = """(() => {
  const send = window.fetch;
  window.held = []; window.shown = 0;
  window.fetch = async (path, options) => {
    const answer = await send(path, options);
    if (!String(path).startsWith("/v1/")) return answer;
    const body = await answer.json();
    await new Promise(go => held.push(go));
    // After all that the page does with it at once.
    setTimeout(() => { shown += 1; });
    return {status: answer.status, ok: answer.ok, json: async () => body};
  };
  return true;
})()"""
"""Lets no answer about streams reach the page before it is let go."""
SEEN: Final = (
    "['list', 'key-form', 'key-given'].map(id => !document.getElementById(id).hidden)"
    ".concat(document.getElementById('rows').children.length)"
)


async def let_go(tab: Tab, count: int) -> None:
    """Wait until `count` answers are held, and let them reach the page."""
    await tab.until(f"held.length >= {count}")
    await tab.value("(shown = 0, true)")
    await tab.value(f"(held.splice(0, {count}).forEach(go => go()), true)")
    await tab.until(f"shown >= {count}")


@pytest.mark.parametrize("answered", [0, 1])
async def test_what_is_on_its_way_when_a_key_is_forgotten_is_not_shown(
    known: AllInOne, tmp_path: Path, answered: int
) -> None:
    """The streams came back under the eyes of whoever had their key forgotten, and the page took no
    key any more. The test above waits for each answer before it goes on."""
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(f"{known.url}/")
        await tab.until("!document.getElementById('key-form').hidden")
        await tab.until(HOLD)
        await give_key(tab, ROOT_KEY)
        # The list, and the values of its one stream.
        for _ in range(answered):
            await let_go(tab, 1)
        await tab.until("held.length === 1")
        await tab.until("(document.getElementById('forget').click(), true)")
        await let_go(tab, 1)
        assert await tab.value(SEEN) == [False, True, False, 0]
        assert "hidden-orders" not in await tab.value("document.documentElement.outerHTML")

        # A key that is given while the list of another one is on its way is not passed over.
        await give_key(tab, ROOT_KEY)
        await tab.until("held.length === 1")
        await tab.until("(document.getElementById('forget').click(), true)")
        await give_key(tab, ROOT_KEY)
        await let_go(tab, 2)
        await let_go(tab, 1)
        assert await tab.until("!document.getElementById('list').hidden")
        assert await tab.value(SEEN) == [True, False, True, 1]


DAMAGED: Final = """(() => {
  const damaged = [{name: "<b>broken", stream_id: "", code: "data-corrupt"}];
  const body = {items: [], unreadable: damaged, next_page_token: null};
  window.fetch = async () => ({status: 200, ok: true, json: async () => body});
  document.getElementById("more").click();
  return true;
})()"""


async def test_streams_that_cannot_be_read_are_named(plain: AllInOne, tmp_path: Path) -> None:
    """The list that programs get names them; the page took no notice."""
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(f"{plain.url}/")
        settled = ["empty", "list"]
        await tab.until(f"{json.dumps(settled)}.some(id => !document.getElementById(id).hidden)")
        await tab.until(DAMAGED)
        told = await tab.until("document.getElementById('unreadable').textContent")
        assert told == "Cannot be read, and not in this list: <b>broken (data-corrupt)"
        assert await tab.value("document.getElementById('empty').hidden")


async def test_a_key_that_no_header_can_hold_is_told_so(known: AllInOne, tmp_path: Path) -> None:
    async with a_tab(tmp_path / "profile") as tab:
        await tab.open(f"{known.url}/")
        await tab.until("!document.getElementById('key-form').hidden")
        await give_key(tab, "sk_\u0151")
        told = await tab.until("document.getElementById('key-fault').textContent")
        assert told == "A key has letters, digits and signs of ASCII alone."
        assert await tab.value(SEEN) == [False, True, False, 0]


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
