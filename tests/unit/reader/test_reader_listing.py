"""GET …/offsets and the fragments: what a planner needs."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from support.s3 import CREDENTIALS
from unit.reader.harness import ReaderHarness, WatchedDrive
from unit.reader.protocol import STREAM_ID

from bottomless.formats.checks import crc32c
from bottomless.formats.fragment import decode_index
from bottomless.model.offset_spec import parse_timestamp
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_options import S3Options
from bottomless_server.reader.presigned import YIELD_COUNT, PresignedUrls


@pytest.fixture
async def stored(harness: ReaderHarness) -> ReaderHarness:
    """Ten fragments of ten records, and twenty records in the tail."""
    harness.fill(120)
    for _ in range(10):
        await harness.upload(1, free=True)
    return harness


class SigningDrive(WatchedDrive):
    """Objects in memory, URLs as S3 wants them: signing asks no store."""

    def __init__(self) -> None:
        super().__init__()
        self.signer = S3Drive(S3Options("bucket", "pre", "http://127.0.0.1:9"))

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        return await self.signer.presigned_get(object_key, valid_seconds=valid_seconds)


@pytest.fixture
async def signing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReaderHarness]:
    """Four fragments in a store that takes presigned URLs, which live for 70 s."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    drive = SigningDrive()
    harness = ReaderHarness(drive=drive, reader_url_seconds=70)
    harness.fill(40)
    for _ in range(4):
        await harness.upload(1, free=True)
    yield harness
    await harness.aclose()
    await drive.signer.aclose()


async def listed(harness: ReaderHarness, query: str = "") -> dict[str, Any]:
    answer = await harness.get(f"/fragments{query}")
    assert answer.status_code == 200, answer.text
    members: dict[str, Any] = answer.json()
    return members


async def test_offsets_of_an_empty_stream(harness: ReaderHarness) -> None:
    answer = await harness.get("/offsets")

    assert answer.json() == {
        "stream_id": STREAM_ID,
        "first_offset": 0,
        "committed_offset": None,
        "next_offset": 0,
        "first_timestamp": None,
        "last_timestamp": None,
        "object_store_next_offset": 0,
        "size_bytes": 0,
    }


async def test_offsets_come_from_both_tiers(stored: ReaderHarness) -> None:
    answer = await stored.get("/offsets")

    assert answer.json() == {
        "stream_id": STREAM_ID,
        "first_offset": 0,
        "committed_offset": 119,
        "next_offset": 120,
        "first_timestamp": "1970-01-01T00:00:01.000Z",
        "last_timestamp": "1970-01-01T00:00:01.110Z",
        "object_store_next_offset": 100,
        "size_bytes": sum(info.size for info in stored.fragments),
    }
    assert answer.headers["Stream-Next-Offset"] == "120"


async def test_the_list_describes_every_fragment(stored: ReaderHarness) -> None:
    page = await listed(stored)
    info = stored.fragments[3]

    assert [item["id"] for item in page["fragments"]] == [
        info.fragment_id for info in stored.fragments
    ]
    assert page["fragments"][3] == {
        "id": info.fragment_id,
        "first_offset": 30,
        "last_offset": 39,
        "record_count": 10,
        "size_bytes": info.size,
        "data_bytes": info.size - info.index_size - 128,
        "index_position": info.size - info.index_size,
        "format": "bottomless-fragment-1",
        "first_timestamp": "1970-01-01T00:00:01.030Z",
        "last_timestamp": "1970-01-01T00:00:01.030Z",
        "crc32c": f"{info.crc:08x}",
        "etag": f'"{info.uid}"',
        "href": f"/v1/streams/orders/fragments/{info.fragment_id}",
    }
    assert (page["first_offset"], page["next_offset"]) == (0, 120)
    assert (page["object_store_next_offset"], page["next_page_token"]) == (100, None)


async def test_a_range_takes_the_fragments_that_it_touches(stored: ReaderHarness) -> None:
    page = await listed(stored, "?from_offset=15&to_offset=41")
    beyond = await listed(stored, "?from_offset=100&to_offset=120")

    assert [item["first_offset"] for item in page["fragments"]] == [10, 20, 30, 40]
    assert beyond["fragments"] == []


async def test_pages_are_pinned_to_the_end_of_the_first(stored: ReaderHarness) -> None:
    firsts, query = [], "?limit=3"
    while True:
        page = await listed(stored, query)
        firsts += [item["first_offset"] for item in page["fragments"]]
        if page["next_page_token"] is None:
            break
        await stored.upload(1) if stored.node.next_offset < 120 else None
        query = f"?limit=3&page_token={page['next_page_token']}"

    assert firsts == list(range(0, 100, 10))
    assert stored.node.next_offset > 100


async def test_a_token_of_somebody_else_is_refused(stored: ReaderHarness) -> None:
    token = (await listed(stored, "?limit=3"))["next_page_token"]
    spoilt = ("A" if token[0] != "A" else "B") + token[1:]

    answer = await stored.get(f"/fragments?page_token={spoilt}")

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-parameter")


async def test_what_was_trimmed_is_an_error_and_no_shorter_list(stored: ReaderHarness) -> None:
    await stored.trim(40)
    answer = await stored.get("/fragments?from_offset=10")

    assert (answer.status_code, answer.json()["code"]) == (410, "offset-trimmed")
    assert answer.json()["first_offset"] == 40


async def test_a_gap_is_listed_as_a_gap(harness: ReaderHarness) -> None:
    harness.fill(10)
    await harness.upload(1)
    await harness.lose(5)
    harness.fill(10)
    await harness.upload(1)

    page = await listed(harness)

    assert page["fragments"][1] == {"gap": "local-log-lost", "first_offset": 10, "last_offset": 14}
    assert [item["first_offset"] for item in page["fragments"]] == [0, 10, 15]


async def test_places_in_the_store_are_told_only_on_request(stored: ReaderHarness) -> None:
    plain = await listed(stored)
    told = await listed(stored, "?locations=true")

    assert "object_key" not in str(plain)
    item = told["fragments"][0]
    assert item["store"] == {
        "kind": "memory",
        "root": "",
        "endpoint": None,
        "region": None,
        "path_style": None,
    }
    assert (await stored.drive.head(item["object_key"])).size == item["size_bytes"]


async def test_a_store_without_presigned_urls_says_so(stored: ReaderHarness) -> None:
    answer = await stored.get("/fragments?urls=presigned")

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "bad-parameter")
    assert "href" in problem["detail"]
    assert problem["errors"][0]["parameter"] == "urls"


async def test_presigned_urls_stand_beside_the_rest_of_the_list(signing: ReaderHarness) -> None:
    before = int(time.time()) * 1000
    plain = await listed(signing)
    answer = await signing.get("/fragments?urls=presigned")
    after = time.time() * 1000

    page = answer.json()
    for item, bare in zip(page["fragments"], plain["fragments"], strict=True):
        url, ends = item.pop("url"), parse_timestamp(item.pop("url_expires_at"))
        assert item == bare
        assert url.startswith("http://127.0.0.1:9/bucket/pre/default/")
        assert bare["etag"].strip('"') in url
        asked = dict(parse_qsl(urlsplit(url).query))
        assert asked["X-Amz-Expires"] == "70"
        signed = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%S%z").timestamp() * 1000
        assert ends <= signed + 70_000, "it is said to live longer than it does"
        assert before + 70_000 <= ends <= after + 70_000


async def test_a_page_with_urls_is_kept_by_nobody(signing: ReaderHarness) -> None:
    assert (await signing.get("/fragments?urls=presigned")).headers["cache-control"] == "no-store"
    plain = await signing.get("/fragments?urls=none")
    assert plain.headers["cache-control"] == "private, no-cache"
    assert "X-Amz" not in plain.text


async def test_urls_come_page_by_page_and_a_gap_has_none(signing: ReaderHarness) -> None:
    await signing.lose(5)
    page = await listed(signing, "?urls=presigned&limit=2")
    rest = await listed(signing, f"?urls=presigned&page_token={page['next_page_token']}")

    urls = [item.get("url") for item in page["fragments"] + rest["fragments"]]
    assert len(set(urls)) == 5
    assert urls[-1] is None
    assert "gap" in rest["fragments"][-1]


async def test_signing_lets_everybody_else_have_a_turn(signing: ReaderHarness) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await PresignedUrls(signing.drive, 900).of([f"a/{number}" for number in range(1000)])
    others.cancel()

    assert turns >= 1000 // YIELD_COUNT


async def test_a_fragment_comes_whole_and_verifies(stored: ReaderHarness) -> None:
    info = stored.fragments[2]
    answer = await stored.get(f"/fragments/{info.fragment_id}")

    assert (answer.status_code, len(answer.content)) == (200, info.size)
    assert crc32c(answer.content) == info.crc
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["etag"] == f'"{info.uid}"'
    assert "immutable" in answer.headers["cache-control"]
    assert len(decode_index(answer.content[-info.index_size :])) == 1


async def test_bytes_damaged_on_their_way_to_one_download_do_not_reach_the_next(
    stored: ReaderHarness,
) -> None:
    info = stored.fragments[2]
    stored.drive.damage_count = 1
    damaged = await stored.get(f"/fragments/{info.fragment_id}")
    again = await stored.get(f"/fragments/{info.fragment_id}")

    assert crc32c(damaged.content) != info.crc
    assert crc32c(again.content) == info.crc


async def test_ranges(stored: ReaderHarness) -> None:
    info = stored.fragments[2]
    path = f"/fragments/{info.fragment_id}"
    whole = (await stored.get(path)).content
    size = len(whole)

    for header, expected in (
        ("bytes=0-9", whole[:10]),
        ("bytes=100-", whole[100:]),
        ("bytes=-64", whole[-64:]),
        (f"bytes=10-{size + 50}", whole[10:]),
        (f"bytes=-{size + 1}", whole),
    ):
        answer = await stored.get(path, range=header)
        assert (answer.status_code, answer.content) == (206, expected)
        start = size - len(expected) if not header.startswith(("bytes=0", "bytes=10-")) else 0
        assert answer.headers["content-range"].endswith(f"/{size}")
        assert int(answer.headers["content-length"]) == len(expected), start


async def test_a_fragment_has_one_form(stored: ReaderHarness) -> None:
    path = f"/fragments/{stored.fragments[2].fragment_id}"

    refused = await stored.get(path, accept="application/json")
    assert (refused.status_code, refused.json()["code"]) == (406, "not-acceptable")


async def test_ranges_that_are_not_served(stored: ReaderHarness) -> None:
    info = stored.fragments[2]
    path = f"/fragments/{info.fragment_id}"

    beyond = await stored.get(path, range=f"bytes={info.size}-")
    several = await stored.get(path, range="bytes=0-1,4-5")
    other_unit = await stored.get(path, range="lines=0-1")

    assert (beyond.status_code, beyond.json()["code"]) == (416, "range-not-satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{info.size}"
    assert (several.status_code, len(several.content)) == (200, info.size)
    assert (other_unit.status_code, len(other_unit.content)) == (200, info.size)


async def test_conditions(stored: ReaderHarness) -> None:
    info = stored.fragments[2]
    path, tag = f"/fragments/{info.fragment_id}", f'"{info.uid}"'

    same = await stored.get(path, if_none_match=tag)
    part = await stored.get(path, range="bytes=0-9", if_range=tag)
    whole = await stored.get(path, range="bytes=0-9", if_range='"old"')

    assert (same.status_code, same.content) == (304, b"")
    assert (part.status_code, whole.status_code) == (206, 200)


async def test_head_has_the_headers_and_no_body(stored: ReaderHarness) -> None:
    path = f"/v1/streams/orders/fragments/{stored.fragments[2].fragment_id}"
    head, get = await stored.client.head(path), await stored.client.get(path)

    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))
    assert head.headers["etag"] == get.headers["etag"]


async def test_a_trimmed_fragment_is_there_until_its_grace_ends(stored: ReaderHarness) -> None:
    info = stored.fragments[0]
    await stored.trim(40)
    within = await stored.get(f"/fragments/{info.fragment_id}")
    await stored.drive.delete([key for key in stored.drive.object_keys if info.uid in key])
    after = await stored.get(f"/fragments/{stored.fragments[0].fragment_id}")

    assert (within.status_code, len(within.content)) == (200, info.size)
    assert (after.status_code, after.json()["code"]) == (404, "fragment-not-found")
