"""What a producer is promised, over both profiles, through the routes of ingest.

The leaderless stream is served by two nodes in turn, neither of which knows what the other did.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from unit.ingest.harness import ROUTE, STREAM, IngestHarness, arrow, problem
from unit.ingest.leaderless.nodes import LeaderlessNode, ServedNode, two_served
from unit.ingest.staging import FRAMES, SETTINGS, STAGE, STAGED, body_of
from unit.ingest.test_producer_appends import ARROW, PRODUCERS


class Profile:
    """One stream of a profile, and the nodes at which it is asked for in turn."""

    def __init__(
        self, durability: str, *nodes: IngestHarness | LeaderlessNode | ServedNode
    ) -> None:
        self.durability = durability
        self.nodes = nodes
        self._asked = 0

    @property
    def client(self) -> httpx.AsyncClient:
        """A client of the next node."""
        self._asked += 1
        return self.nodes[self._asked % len(self.nodes)].client

    async def values(self) -> list[bytes]:
        return await self.nodes[0].values()

    async def send(self, *values: str, **headers: object) -> httpx.Response:
        sent = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        records = [{"value": value} for value in values]
        return await self.client.post(ROUTE, json={"records": records}, headers=sent)

    async def raw(self, body: bytes, **headers: str) -> httpx.Response:
        return await self.client.post(ROUTE, content=body, headers=headers)

    async def strict(
        self, number: int, count: int = 1, who: str = "p", **headers: object
    ) -> httpx.Response:
        values = [f"{who}-{n}" for n in range(number, number + count)]
        return await self.send(*values, producer_id=who, producer_seq=number, **headers)

    async def stage(self, *values: str) -> str:
        answer = await self.client.post(STAGE, content=body_of(*values), headers=FRAMES)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["staged_id"])

    async def commit(
        self, *staged_ids: str, number: int = 7, producer: str = "job", **headers: str
    ) -> httpx.Response:
        named = {
            "content-type": STAGED,
            "producer-id": producer,
            "txn-number": str(number),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return await self.client.post(ROUTE, json={"staged": list(staged_ids)}, headers=named)


@pytest.fixture(params=["local", "leaderless"])
async def profile(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Profile]:
    if request.param == "local":
        owner = await (await IngestHarness(tmp_path / "ingest", **SETTINGS).declare()).start()
        yield Profile("fsync", owner)
        await owner.aclose()
        return
    async with two_served(tmp_path) as nodes:
        yield Profile("object-store", *nodes)


async def test_an_answer_says_what_was_stored_and_what_was_there(profile: Profile) -> None:
    first, again = await profile.strict(0, 10), await profile.strict(0, 10)

    assert first.json() == {
        "stream_id": STREAM,
        "first_offset": 0,
        "last_offset": 9,
        "next_offset": 10,
        "count": 10,
        "duplicates": 0,
        "timestamp": "2025-06-15T15:06:40.000Z",
        "durability": profile.durability,
    }
    assert "idempotent-replayed" not in first.headers
    assert again.json() == {**first.json(), "count": 0, "duplicates": 10}
    assert again.headers["idempotent-replayed"] == "true"
    minimal = await profile.strict(0, 10, prefer="return=minimal")
    assert (minimal.status_code, minimal.headers["stream-first-offset-appended"]) == (204, "0")
    assert minimal.headers["idempotent-replayed"] == "true"
    for number in range(10, 16):
        assert (await profile.strict(number)).status_code == 200
    old = await profile.strict(0, 10)
    assert (old.json()["first_offset"], old.json()["last_offset"]) == (None, None)
    assert (old.json()["timestamp"], old.json()["next_offset"]) == (None, 16)
    assert await profile.values() == [f"p-{n}".encode() for n in range(16)]


@pytest.mark.parametrize(
    "conditions", [{"producer-id": "p", "producer-seq": "0"}, {"idempotency-key": "i"}]
)
async def test_a_raw_record_with_another_key_is_no_repeat(
    profile: Profile, conditions: dict[str, str]
) -> None:
    raw = {"content-type": "application/octet-stream", **conditions}
    first, again = [await profile.raw(b"", **raw, **{"stream-key": "a"}) for _ in range(2)]
    assert (first.status_code, again.headers["idempotent-replayed"]) == (200, "true")

    others: list[dict[str, str]] = [
        {"stream-key": "b"},
        {"stream-key": "a", "stream-filter-value": ""},
        {"stream-filter-value": "a"},
        {},
    ]
    for other in others:
        answer = await profile.raw(b"", **raw, **other)
        assert answer.status_code in (409, 422), answer.text
    assert len(await profile.values()) == 1


async def test_repeats_of_a_pending_append_get_its_offsets(profile: Profile) -> None:
    answers = await asyncio.gather(*(profile.strict(0, 3) for _ in range(8)))

    assert {answer.json()["first_offset"] for answer in answers} == {0}
    assert sorted(answer.json()["duplicates"] for answer in answers) == [0] + [3] * 7
    assert len(await profile.values()) == 3


async def test_highwater_ids_of_json_and_arrow_are_one_sequence(profile: Profile) -> None:
    async def by_json(*ids: int) -> httpx.Response:
        records = [{"value": f"{n}", "publishing_id": n} for n in ids]
        headers = {"producer-id": "p"}
        return await profile.client.post(ROUTE, json={"records": records}, headers=headers)

    async def by_arrow(*ids: int) -> httpx.Response:
        table = pa.table({"value": [b"%d" % n for n in ids], "publishing_id": pa.array(ids)})
        headers = {**ARROW, "producer-id": "p"}
        return await profile.client.post(ROUTE, content=arrow(table), headers=headers)

    assert (await by_json(1, 2, 5)).json()["count"] == 3
    mixed = (await by_arrow(3, 6, 7)).json()
    assert (mixed["first_offset"], mixed["count"], mixed["duplicates"]) == (3, 2, 1)
    assert (await by_arrow(6, 7)).json()["first_offset"] is None
    assert (await by_json(7, 8)).json()["duplicates"] == 1
    assert await profile.values() == [b"1", b"2", b"5", b"6", b"7", b"8"]


async def test_of_ten_who_expect_the_same_offset_one_gets_it(profile: Profile) -> None:
    await profile.send("a", "b")
    answers = await asyncio.gather(
        *(profile.send(str(n), stream_expected_offset=2) for n in range(10))
    )
    kept = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 412]
    assert (len(kept), len(refused)) == (1, 9)
    assert kept[0].json()["first_offset"] == 2
    assert all(problem(answer) == (412, "offset-mismatch") for answer in refused)
    assert {answer.json()["next_offset"] for answer in refused} == {3}


async def test_one_key_is_written_once_however_many_ask(profile: Profile) -> None:
    answers = await asyncio.gather(*(profile.send("v", idempotency_key="k") for _ in range(10)))

    assert {answer.status_code for answer in answers} <= {200, 409}
    for answer in answers:
        if answer.status_code == 409:
            assert problem(answer) == (409, "idempotency-in-flight")
            assert answer.headers["retry-after"] == "1"
    again = await profile.send("v", idempotency_key="k")
    first = next(a for a in answers if a.status_code == 200)
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert problem(await profile.send("w", idempotency_key="k")) == (422, "idempotency-mismatch")
    assert await profile.values() == [b"v"]


async def test_many_appends_of_one_producer_under_way_are_stored_in_their_order(
    profile: Profile,
) -> None:
    node = profile.nodes[0]
    told = await asyncio.gather(
        *(
            node.client.post(
                ROUTE,
                json={"records": [{"value": f"{n}"}]},
                headers={"producer-id": "p", "producer-seq": str(n)},
            )
            for n in range(20)
        )
    )
    assert [answer.json()["first_offset"] for answer in told] == list(range(20))
    assert await profile.values() == [b"%d" % n for n in range(20)]


async def test_an_append_larger_than_a_chunk_is_stored_whole_and_once(profile: Profile) -> None:
    large = ["x" * 6_000] * 5
    first = await profile.send(*large, producer_id="p", producer_seq=0)
    again = await profile.send(*large, producer_id="p", producer_seq=0)

    assert (first.json()["count"], again.json()["duplicates"]) == (5, 5)
    assert again.json()["first_offset"] == 0
    assert len(await profile.values()) == 5


# Producers


async def test_producers_are_listed_in_pages(profile: Profile) -> None:
    for name in ("c", "a", "b"):
        await profile.strict(0, who=name)
    await profile.send("v", idempotency_key="b")

    page = (await profile.client.get(PRODUCERS, params={"limit": 2})).json()
    assert [item["producer_id"] for item in page["items"]] == ["a", "b"]
    assert page["items"][0] == {
        "producer_id": "a",
        "mode": "strict",
        "epoch": 0,
        "last_seq": 0,
        "updated_at": "2025-06-15T15:06:40.000Z",
    }
    rest = await profile.client.get(PRODUCERS, params={"page_token": page["next_page_token"]})
    assert [item["producer_id"] for item in rest.json()["items"]] == ["c"]
    assert rest.json()["next_page_token"] is None
    wrong: list[dict[str, str]] = [{"page_token": "%%"}, {"limit": "0"}]
    for params in wrong:
        answer = await profile.client.get(PRODUCERS, params=params)
        assert problem(answer) == (400, "bad-parameter")


async def test_an_epoch_is_raised_and_a_producer_forgotten_at_any_node(profile: Profile) -> None:
    await profile.strict(0, 3)
    raised = await profile.client.post(f"{PRODUCERS}/p/epoch")
    assert (raised.json()["epoch"], raised.json()["last_seq"]) == (1, 2)

    assert problem(await profile.strict(3)) == (409, "producer-fenced")
    assert (await profile.strict(3, producer_epoch=1)).status_code == 200
    forgotten = await profile.client.delete(f"{PRODUCERS}/p")
    assert (forgotten.status_code, forgotten.content) == (204, b"")
    assert problem(await profile.client.delete(f"{PRODUCERS}/p")) == (404, "producer-not-found")
    assert problem(await profile.client.get(f"{PRODUCERS}/p")) == (404, "producer-not-found")
    assert problem(await profile.strict(4)) == (409, "producer-unknown")


async def test_an_epoch_is_raised_of_a_producer_that_never_wrote(profile: Profile) -> None:
    raised = await profile.client.post(f"{PRODUCERS}/new/epoch")
    assert (raised.json()["epoch"], raised.json()["last_seq"]) == (1, None)
    assert problem(await profile.strict(0, who="new")) == (409, "producer-fenced")
    assert (await profile.strict(0, who="new", producer_epoch=1)).status_code == 200


# Staged batches


async def test_staged_batches_are_seen_by_nobody_until_they_are_committed_in_order(
    profile: Profile,
) -> None:
    first, second = await profile.stage("a", "b"), await profile.stage("c")
    assert await profile.values() == []

    answer = await profile.commit(second, first)

    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "stream_id": STREAM,
        "first_offset": 0,
        "last_offset": 2,
        "next_offset": 3,
        "count": 3,
        "duplicates": 0,
        "timestamp": "2025-06-15T15:06:40.000Z",
        "durability": profile.durability,
    }
    assert await profile.values() == [b"c", b"a", b"b"]


async def test_what_staging_answers_says_what_is_there_and_until_when(profile: Profile) -> None:
    answer = await profile.client.post(STAGE, content=body_of("a", "b"), headers=FRAMES)
    staged: dict[str, Any] = answer.json()

    assert answer.headers["stream-id"] == STREAM
    assert staged == {
        "stream_id": STREAM,
        "staged_id": staged["staged_id"],
        "count": 2,
        "size_bytes": len(body_of("a", "b")),
        "expires_at": "2025-06-15T15:07:40.000Z",
    }


async def test_a_repeat_of_a_commit_gets_the_first_answer_with_whatever_batches(
    profile: Profile,
) -> None:
    staged = await profile.stage("a", "b")
    first = (await profile.commit(staged)).json()
    again = await profile.commit(await profile.stage("b"), await profile.stage("a"))

    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == {**first, "count": 0, "duplicates": 2}
    assert (await profile.commit(staged)).json() == again.json()
    assert await profile.values() == [b"a", b"b"]


async def test_a_commit_of_much_takes_one_number_and_is_one_append(profile: Profile) -> None:
    large = "x" * 3_000
    staged = [await profile.stage(f"{large}{n}") for n in range(4)]
    first = await profile.commit(*staged, number=3)

    assert first.status_code == 200, first.text
    assert (first.json()["first_offset"], first.json()["count"]) == (0, 4)
    again = (await profile.commit(await profile.stage("other"), number=3)).json()
    assert (again["first_offset"], again["next_offset"], again["duplicates"]) == (0, 4, 4)
    shown = (await profile.client.get(f"{PRODUCERS}/job")).json()
    assert (shown["last_seq"], shown["mode"]) == (3, "txn")
    assert (await profile.commit(await profile.stage("next"), number=4)).status_code == 200
    values = await profile.values()
    assert [value[3_000:] for value in values] == [b"0", b"1", b"2", b"3", b""]
    listed = (await profile.client.get(PRODUCERS)).json()["items"]
    assert [one["producer_id"] for one in listed] == ["job"]


async def test_gaps_between_numbers_are_allowed_and_what_was_passed_over_is_refused(
    profile: Profile,
) -> None:
    await profile.commit(await profile.stage("a"), number=7)
    await profile.commit(await profile.stage("b"), number=900)
    refused = await profile.commit(await profile.stage("c"), number=8)

    assert problem(refused) == (409, "producer-sequence-overlap")
    assert (refused.json()["last_seq"], refused.json()["outcome"]) == (900, "none")
    again = await profile.commit(await profile.stage("a"), number=7)
    assert again.json()["duplicates"] == 1
    assert await profile.values() == [b"a", b"b"]


async def test_a_repeat_that_is_too_old_counts_what_it_names(profile: Profile) -> None:
    for number in range(6):
        await profile.commit(await profile.stage("a"), number=number)
    old = (await profile.commit(await profile.stage("a", "b"), number=0)).json()
    assert (old["first_offset"], old["duplicates"], old["next_offset"]) == (None, 2, 6)


async def test_a_batch_that_is_not_there_is_told_so_and_nothing_is_stored(
    profile: Profile,
) -> None:
    there = await profile.stage("a")
    answer = await profile.commit(there, "st_" + "0" * 32)

    assert problem(answer) == (404, "staged-not-found")
    assert answer.json()["outcome"] == "none"
    assert (await profile.commit(there)).json()["count"] == 1


async def test_an_expected_offset_holds_for_a_commit_too(profile: Profile) -> None:
    staged = await profile.stage("a")
    refused = await profile.commit(staged, stream_expected_offset="1")
    assert problem(refused) == (412, "offset-mismatch")
    assert (await profile.commit(staged, stream_expected_offset="0")).status_code == 200


async def test_a_commit_needs_a_number_of_its_own(profile: Profile) -> None:
    staged = await profile.stage("a")
    answer = await profile.client.post(
        ROUTE, json={"staged": [staged]}, headers={"content-type": STAGED, "producer-id": "job"}
    )
    assert problem(answer) == (400, "bad-header")


async def test_commits_of_one_number_at_once_store_one_of_them(profile: Profile) -> None:
    staged = [await profile.stage(f"{n}") for n in range(6)]
    answers = await asyncio.gather(*(profile.commit(one, number=1) for one in staged))

    assert sum(answer.json()["count"] for answer in answers) == 1
    assert {answer.json()["first_offset"] for answer in answers} == {0}
    assert len(await profile.values()) == 1


async def test_a_fence_locks_out_a_commit_of_before(profile: Profile) -> None:
    await profile.client.post(f"{PRODUCERS}/job/epoch")
    staged = await profile.stage("a")
    assert problem(await profile.commit(staged)) == (409, "producer-fenced")
    assert (await profile.commit(staged, producer_epoch="1")).status_code == 200
