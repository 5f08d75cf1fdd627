"""The port of ingest for streams that nobody owns: what any node answers, and what is stored of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from bottomless.errors import Code, NotFound, Outcome, Overloaded, StoreError
from bottomless.formats.keys import parse_staged_key
from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.tail import TailState
from bottomless_server.leaderless.tail_changes import TailBounds
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores import tails
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.tail_keys import tail_key
from unit.ingest.harness import ROUTE, STREAM, problem
from unit.ingest.leaderless.nodes import GENERATION, LeaderlessNode
from unit.ingest.staging import FRAMES, STAGE, body_of
from unit.ingest.test_both_profiles import Profile
from unit.ingest.test_producer_appends import PRODUCERS

OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2cff")


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[LeaderlessNode, LeaderlessNode]]:
    first = await (await LeaderlessNode(tmp_path / "first").declare()).start()
    second = await LeaderlessNode(tmp_path / "second", first).start()
    yield first, second
    await second.aclose()
    await first.aclose()


@pytest.fixture
def node(nodes: tuple[LeaderlessNode, LeaderlessNode]) -> LeaderlessNode:
    return nodes[0]


async def tail_becomes(node: LeaderlessNode, state: TailState) -> None:
    """What manifest does where a stream is fenced or deleted, as far as its tail goes."""
    tail = (await node.tail())._replace(state=state)
    node.coordination.write(Changes({tail_key(STREAM): encode_tail(tail)}))


def staged_objects(node: LeaderlessNode) -> list[str]:
    return [key for key in node.drive.object_keys if parse_staged_key(key) is not None]


async def refused(node: LeaderlessNode, stream_id: StreamId = STREAM) -> StoreError:
    with pytest.raises(StoreError) as error:
        await node.appenders.get(stream_id)
    return error.value


async def test_a_stream_is_looked_up_once_and_never_owned(node: LeaderlessNode) -> None:
    assert node.appenders.at_once(STREAM) is None
    found = await node.appenders.get(STREAM)
    before = node.coordination.peek(stream_key(STREAM))
    assert (found.stream_id, found.next_offset, found.durability) == (STREAM, 0, "object-store")

    again = node.appenders.at_once(STREAM)
    assert again is not None
    assert (await node.append("a", "b")).status_code == 200
    assert again.next_offset == 2
    assert node.coordination.peek(stream_key(STREAM)) == before, "an append changes the tail alone"


async def test_a_stream_that_is_not_there_is_not_found(node: LeaderlessNode) -> None:
    assert (await refused(node, OTHER)).code is Code.STREAM_NOT_FOUND
    await tail_becomes(node, TailState.CLOSED)
    assert (await refused(node)).code is Code.STREAM_NOT_FOUND


async def test_another_generation_is_believed_by_nobody(node: LeaderlessNode) -> None:
    node.ingest.show_generation(GENERATION + 1)
    assert (await refused(node)).code is Code.COORDINATION_REGRESSED
    node.ingest.show_generation(None)
    assert (await refused(node)).code is Code.COORDINATION_REGRESSED


async def test_a_tail_that_went_back_shows_no_producer_and_takes_no_change(
    node: LeaderlessNode,
) -> None:
    before = node.coordination.peek(tail_key(STREAM))
    assert (await node.append("a")).status_code == 200
    node.coordination.write(Changes({tail_key(STREAM): before}))

    regressed = (503, "coordination-regressed")
    assert problem(await node.client.get(f"{PRODUCERS}/p")) == regressed
    assert problem(await node.client.get(PRODUCERS)) == regressed
    assert problem(await node.client.post(f"{PRODUCERS}/p/epoch")) == regressed
    assert problem(await node.client.delete(f"{PRODUCERS}/p")) == regressed
    assert problem(await node.append("b")) == regressed


async def test_after_its_deletion_a_stream_is_looked_up_again(node: LeaderlessNode) -> None:
    assert (await node.append("a")).status_code == 200
    await tail_becomes(node, TailState.CLOSED)

    assert problem(await node.append("b")) == (404, "stream-not-found")
    assert node.appenders.at_once(STREAM) is None
    with pytest.raises(NotFound):
        await node.appenders.get(STREAM)


async def test_where_there_is_no_space_nothing_is_read(node: LeaderlessNode) -> None:
    await node.append("a")
    node.writer.full = Overloaded("for a test", code=Code.TAIL_BOUND, retry_after_seconds=1)

    assert node.appenders.at_once(STREAM) is None
    assert problem(await node.append("b")) == (429, "tail-bound")
    staged = await node.client.post(STAGE, content=body_of("c"), headers=FRAMES)
    assert problem(staged) == (429, "tail-bound")
    assert node.appenders.refusals == {Code.TAIL_BOUND: 2}


async def test_a_fenced_stream_answers_repeats_and_takes_nothing_new(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    await asked.strict(0, 2)
    await asked.send("v", idempotency_key="k")
    await tail_becomes(node, TailState.FENCED)

    assert (await asked.strict(0, 2)).json()["duplicates"] == 2
    assert (await asked.send("v", idempotency_key="k")).json()["first_offset"] == 2
    answers = await asyncio.gather(asked.strict(2), asked.strict(2), asked.send("plain"))
    assert [problem(answer) for answer in answers] == [(409, "stream-fenced")] * 3
    assert {answer.json()["outcome"] for answer in answers} == {"none"}
    assert problem(await asked.commit(await asked.stage("a"))) == (409, "stream-fenced")
    assert len(await node.values()) == 3


async def test_a_full_tail_is_told_so_and_may_be_tried_again(node: LeaderlessNode) -> None:
    await node.append("a")
    node.writer.tail_bounds = TailBounds(2**40, 1)

    answer = await node.append("b")
    assert problem(answer) == (429, "tail-bound")
    assert int(answer.headers["retry-after"]) > 0
    node.writer.tail_bounds = TailBounds(2**40, 2)
    assert (await node.append("b")).status_code == 200


async def test_a_key_is_in_flight_until_its_append_is_answered(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    both = await asyncio.gather(*(asked.send("v", idempotency_key="k") for _ in range(2)))
    assert sorted(answer.status_code for answer in both) == [200, 409]
    assert (await asked.send("v", idempotency_key="k")).status_code == 200


# Staged batches


async def test_staged_batches_are_objects_until_they_are_committed(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    staged = [await asked.stage("a"), await asked.stage("b")]
    assert [f"st_{parse_staged_key(key)}" for key in staged_objects(node)] == sorted(staged)
    prefix = f"default/{STREAM}/staged/"
    assert all(key.startswith(prefix) for key in staged_objects(node))

    assert (await asked.commit(*staged)).status_code == 200
    assert staged_objects(node) == []


async def test_a_commit_whose_batches_another_node_has_committed_meanwhile_is_a_repeat(
    nodes: tuple[LeaderlessNode, LeaderlessNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Profile("object-store", node) for node in nodes)
    staged = [await first.stage("a"), await first.stage("b")]
    read, answers = nodes[1].appenders.batches.read, list[httpx.Response]()

    async def overtaken(stream_id: StreamId, tenant: str, staged_id: str) -> list[Frame]:
        if not answers:
            answers.append(await first.commit(*staged))
        return await read(stream_id, tenant, staged_id)

    monkeypatch.setattr(nodes[1].appenders.batches, "read", overtaken)
    answer = await second.commit(*staged)

    assert (answers[0].status_code, answer.status_code) == (200, 200)
    assert answer.json()["first_offset"] == answers[0].json()["first_offset"]
    assert answer.headers["idempotent-replayed"] == "true"
    assert await nodes[0].values() == [b"a", b"b"]


async def test_batches_that_nobody_has_are_told_so(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    staged = await asked.stage("a")
    assert (await asked.commit(staged)).status_code == 200

    answer = await asked.commit(staged, number=8)
    assert problem(answer) == (404, "staged-not-found")


async def test_damage_of_a_staged_batch_is_never_committed(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    staged = [await asked.stage("a"), await asked.stage("b")]
    key = next(key for key in staged_objects(node) if staged[1][3:] in key)
    node.drive.flip(key, len(node.drive.peek(key) or b"") // 2)

    answer = await asked.commit(*staged)
    assert problem(answer) == (502, "data-corrupt")
    assert answer.json()["outcome"] == "none"
    assert await node.values() == []
    assert (await asked.commit(staged[0])).status_code == 200, "the number is free"


async def test_more_than_one_commit_may_have_is_refused(tmp_path: Path) -> None:
    node = LeaderlessNode(tmp_path / "small", commit_size_max=1_500)
    await (await node.declare()).start()
    asked = Profile("object-store", node)
    staged = [await asked.stage("x" * 600) for _ in range(3)]

    answer = await asked.commit(*staged)
    assert problem(answer) == (413, "batch-too-large")
    assert answer.json()["outcome"] == "none"
    assert (await asked.commit(*staged[:1])).status_code == 200
    await node.aclose()


async def test_a_commit_of_many_objects_is_one_exec(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    staged = [await asked.stage(f"{number}" * 2_000) for number in range(6)]
    before = (await node.tail()).number

    assert (await asked.commit(*staged)).json()["count"] == 6
    tail = await node.tail()
    assert (tail.number, tail.entry_count) == (before + 1, 6)
    producer = await node.appenders.producers.find(STREAM, "job")
    assert producer is not None
    assert [one.record_count for one in producer.appends] == [6], "all of it is one append"


async def test_a_store_that_takes_nothing_stages_nothing(node: LeaderlessNode) -> None:
    node.drive.is_away = True
    answer = await node.client.post(STAGE, content=body_of("a"), headers=FRAMES)
    assert problem(answer) == (503, "object-store-unavailable")
    assert answer.json()["outcome"] == "none"


# Two nodes


async def test_producers_of_all_modes_alternate_between_nodes_with_appends_in_flight(
    nodes: tuple[LeaderlessNode, LeaderlessNode],
) -> None:
    """Each node is sent each append, at the same time: each is stored once."""
    asked = Profile("object-store", *nodes)
    for number in range(6):
        answers = await asyncio.gather(
            *(asked.strict(number, who="s") for _ in range(4)),
            *(asked.send(f"t{number}", producer_id="t", txn_number=number) for _ in range(4)),
            *(asked.send(f"k{number}", idempotency_key=f"k{number}") for _ in range(2)),
        )
        assert {answer.status_code for answer in answers} <= {200, 409}
        for several in (answers[:4], answers[4:8], answers[8:]):
            [first] = {a.json()["first_offset"] for a in several if a.status_code == 200}
            assert first is not None
        for answer in answers[8:]:
            assert answer.status_code == 200, "another node's key is no reason to wait"
    values = await nodes[0].values()
    assert sorted(values) == sorted(
        text for n in range(6) for text in (b"s-%d" % n, b"t%d" % n, b"k%d" % n)
    )
    assert [one for one in values if one.startswith(b"s")] == [b"s-%d" % n for n in range(6)]


async def test_numbered_records_of_two_nodes_at_once_are_stored_once(
    nodes: tuple[LeaderlessNode, LeaderlessNode],
) -> None:
    """The pieces of one node have to be sealed anew whenever the other was faster."""
    headers = {"producer-id": "h"}
    for low in range(0, 40, 4):
        bodies = [
            {"records": [{"value": f"{n}", "publishing_id": n} for n in range(start, start + 4)]}
            for start in (low, low + 2)
        ]
        answers = await asyncio.gather(
            *(
                node.client.post(ROUTE, json=body, headers=headers)
                for node, body in zip(nodes, bodies, strict=True)
            )
        )
        assert [answer.status_code for answer in answers] == [200, 200]
        told = [answer.json() for answer in answers]
        assert all(one["count"] + one["duplicates"] == 4 for one in told)
    values = [int(value) for value in await nodes[1].values()]
    assert values == sorted(set(values)), "in their order, and once"


async def test_what_one_node_raises_the_other_knows(
    nodes: tuple[LeaderlessNode, LeaderlessNode],
) -> None:
    first, second = (Profile("object-store", node) for node in nodes)
    await first.strict(0)
    raised = await nodes[1].client.post(f"{PRODUCERS}/p/epoch")
    assert raised.json()["epoch"] == 1
    assert problem(await first.strict(1)) == (409, "producer-fenced")
    assert (await second.strict(1, producer_epoch=1)).status_code == 200
    assert (await nodes[0].client.get(f"{PRODUCERS}/p")).json()["last_seq"] == 1


async def test_nothing_is_staged_of_a_stream_that_is_being_deleted(node: LeaderlessNode) -> None:
    await node.append("a")
    await tail_becomes(node, TailState.CLOSED)
    staged = await node.client.post(STAGE, content=body_of("c"), headers=FRAMES)
    assert problem(staged) == (404, "stream-not-found")
    assert staged_objects(node) == []


async def test_a_deleted_stream_takes_its_producers_with_it(node: LeaderlessNode) -> None:
    asked = Profile("object-store", node)
    await asked.strict(0)
    record = await node.ingest.record()
    await tail_becomes(node, TailState.CLOSED)
    while await tails.clear_page(node.coordination, STREAM, record.generation):
        pass
    assert problem(await node.client.get(PRODUCERS)) == (404, "stream-not-found")
    assert (await refused(node)).outcome == Outcome.NONE
