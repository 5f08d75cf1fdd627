"""The manifest over HTTP, and requests for a collection and a verification."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.asgi import client_of
from support.manifest import STREAM, ManifestHarness

from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.streams import tree_routes

PATH = "/v1/streams/orders/manifest"


@pytest.fixture
def harness() -> ManifestHarness:
    return ManifestHarness()


@pytest.fixture
async def http(harness: ManifestHarness) -> AsyncIterator[httpx.AsyncClient]:
    service = ManifestService(harness.context)
    async with client_of(service.public) as client:
        yield client
    await service.stop()


async def filled(harness: ManifestHarness, count: int) -> Any:
    committer = await harness.open()
    await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(count)))
    await committer.flush()
    return committer


async def test_the_root_is_shown_with_an_etag_that_changes_with_it(
    harness: ManifestHarness, http: httpx.AsyncClient
) -> None:
    """T15."""
    committer = await filled(harness, 12)
    first = await http.get(PATH)
    assert first.status_code == 200, first.text
    body = first.json()
    root = committer.keeper.root
    assert (body["version"], body["uid"]) == (root.version, root.uid)
    assert (body["first_offset"], body["next_offset"]) == (0, 120)
    assert body["size_bytes"] == committer.record.root.size
    assert len(body["entries"]) == len(root.entries)
    assert sum(one.get("fragments", 1) for one in body["entries"]) == 12
    again = await http.get(PATH, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")

    await harness.register(committer, (120, 130))
    await committer.flush()
    changed = await http.get(PATH, headers={"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.json()["version"] > body["version"]


async def test_groups_are_opened_by_depth_or_one_by_one(
    harness: ManifestHarness, http: httpx.AsyncClient
) -> None:
    await filled(harness, 12)
    deep = (await http.get(PATH, params={"depth": 8})).json()

    def leaves(entries: list[dict[str, Any]]) -> list[int]:
        found: list[int] = []
        for one in entries:
            found += leaves(one["entries"]) if one["kind"] == "group" else [one["first_offset"]]
        return found

    assert leaves(deep["entries"]) == [n * 10 for n in range(12)]

    async def follow(entries: list[dict[str, Any]]) -> list[int]:
        found: list[int] = []
        for one in entries:
            if one["kind"] == "group":
                node = await http.get(one["children_url"])
                assert node.json()["height"] == one["height"]
                assert node.json()["size_bytes"] == one["size_bytes"]
                found += await follow(node.json()["entries"])
            else:
                found.append(one["first_offset"])
        return found

    assert await follow((await http.get(PATH)).json()["entries"]) == [n * 10 for n in range(12)]


async def test_what_was_cut_is_not_shown(harness: ManifestHarness, http: httpx.AsyncClient) -> None:
    committer = await filled(harness, 16)
    await trim(harness.context, committer, 50, allow_empty=False)
    body = (await http.get(PATH, params={"depth": 8})).json()
    text = str(body)
    assert body["first_offset"] == 50
    assert "'href': '/v1/streams/orders/fragments/00000000000000000050-" in text
    assert "fragments/00000000000000000040-" not in text
    group = body["entries"][0]
    assert (await http.get(group["children_url"])).status_code == 200


async def test_groups_are_not_opened_beyond_the_bound(
    harness: ManifestHarness, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = await filled(harness, 12)
    monkeypatch.setattr(tree_routes, "ENTRY_COUNT_MAX", len(committer.keeper.root.entries) + 3)
    body = (await http.get(PATH, params={"depth": 8})).json()
    opened = [one for one in body["entries"] if "entries" in one]
    closed = [one for one in body["entries"] if one["kind"] == "group" and "entries" not in one]
    assert opened
    assert closed or any("entries" not in one for one in opened[0]["entries"])


async def test_an_empty_stream_has_an_empty_root(
    harness: ManifestHarness, http: httpx.AsyncClient
) -> None:
    await harness.open()
    body = (await http.get(PATH)).json()
    assert (body["uid"], body["entries"], body["next_offset"]) == (None, [], 0)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("depth=0", 400, "bad-parameter"),
        ("depth=9", 400, "bad-parameter"),
        ("group=../x", 400, "bad-parameter"),
        (f"group={0:020d}-{'a' * 32}", 404, "not-found"),
        (f"group={10**15:020d}-{'a' * 32}", 404, "not-found"),
        ("deep=1", 400, "unknown-parameter"),
    ],
)
async def test_what_cannot_be_shown_is_refused(
    harness: ManifestHarness, http: httpx.AsyncClient, query: str, status: int, code: str
) -> None:
    await filled(harness, 4)
    answer = await http.get(f"{PATH}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"dry_run": False, "minimum_age": "1s"}, 422, "validation-failed"),
        ({"minimum_age": "soon"}, 422, "validation-failed"),
        ({"force": True}, 422, "validation-failed"),
        ({"stream": "nothing"}, 404, "stream-not-found"),
    ],
)
async def test_a_collection_that_must_not_be_is_refused(
    harness: ManifestHarness, http: httpx.AsyncClient, body: dict[str, Any], status: int, code: str
) -> None:
    del harness
    answer = await http.post("/v1/admin/gc", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_a_collection_that_nobody_qualified_deletes_nothing(
    harness: ManifestHarness, http: httpx.AsyncClient
) -> None:
    await harness.open()
    answer = await http.post("/v1/admin/gc")
    assert answer.status_code == 202, answer.text
    shown = (await http.get(answer.headers["location"])).json()
    assert (shown["kind"], shown["state"]) == ("gc", "pending")
    named = await http.post("/v1/admin/gc", json={"stream": "orders", "dry_run": False})
    assert (await http.get(named.headers["location"])).json()["stream_id"] == STREAM


async def test_a_verification_is_an_operation(
    harness: ManifestHarness, http: httpx.AsyncClient
) -> None:
    await harness.open()
    answer = await http.post(f"{PATH}/verify", json={"checksums": True})
    assert answer.status_code == 202, answer.text
    assert (await http.get(answer.headers["location"])).json()["kind"] == "verify"
    assert (await http.post("/v1/streams/none/manifest/verify")).status_code == 404
