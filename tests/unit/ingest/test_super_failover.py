"""Requests to super streams whose partitions lie on three nodes, of which one is lost meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless_server.ingest.front import super_produce
from bottomless_server.ingest.producers.super_requests import coordinating_partition
from bottomless_server.protocol.parts import STEPS, StepAsked, decode_step_said, encode_step
from bottomless_server.protocol.paths import of_stream
from unit.ingest.harness import IngestHarness, RecordedFiles
from unit.ingest.replica_services import Node, ThreeServices
from unit.ingest.super_streams import TEN, an_id, declare_super, send, values
from unit.ingest.test_rounds_of_replicas import Others

THREE_NODES = StreamConfig(replication=ReplicationConfig(replicas=3))
SHOWN = "what is known of requests, shown once all in sync have it"
PRODUCER = "loader"
COORDINATING = coordinating_partition(PRODUCER, 3)
AFTER_BEGIN, BEFORE_COMPLETE = "ingest.super.after-begin", "ingest.super.before-complete"


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    made = await ThreeServices(tmp_path).start()
    await declare_super(made.first, config=THREE_NODES)
    yield made
    await made.aclose()


async def sent(three: ThreeServices, node: Node, seq: int) -> httpx.Response:
    """A request of ten records, sent as it is until all partitions have their parts."""
    while True:
        task = asyncio.create_task(
            send(node.harness, TEN, producer_id=PRODUCER, producer_epoch=1, producer_seq=seq)
        )
        while not task.done():
            await three.step()
        answer = task.result()
        if answer.status_code == 200:
            return answer
        # What stands at the address of a node that is gone says 500 here.
        assert answer.status_code in (207, 500, 503), answer.text
        await three.step()


async def spread(three: ThreeServices) -> None:
    """Let each node own one partition, with all three in sync in each."""
    assert (await sent(three, three.nodes[0], 0)).status_code == 200
    streams = three.first.streams

    async def all_in_sync() -> bool:
        records = [await streams.load(an_id(index)) for index in range(3)]
        return all(len(one.in_sync) == 3 for one in records)

    await three.until(all_in_sync)
    for index in (1, 2):
        heir = three.nodes[index]
        giving = three.nodes[0].harness.service.replicas.transfers.give(an_id(index), heir.node_id)
        task = asyncio.ensure_future(giving)
        while not task.done():
            await three.step()
        assert task.result() == heir.node_id

    async def each_has_one() -> bool:
        return all(
            node.harness.service.streams.owns(an_id(index))
            for index, node in enumerate(three.nodes)
        )

    await three.until(each_has_one)
    await three.until(all_in_sync)


async def shown(three: ThreeServices, index: int, nodes: list[Node]) -> list[str]:
    """All values of a partition, as its owner shows them."""

    async def is_shown() -> bool:
        for node in nodes:
            if node.harness.service.streams.owns(an_id(index)):
                found = node.harness.service.streams.find(an_id(index))
                return found is not None and found.log.committed_next == found.log.synced_next
        return False

    await three.until(is_shown)
    [owner] = [node for node in nodes if node.harness.service.streams.owns(an_id(index))]
    return await values(owner.harness, index)


@pytest.mark.parametrize(
    ("index", "at"),
    [(COORDINATING, BEFORE_COMPLETE), ((COORDINATING + 1) % 3, AFTER_BEGIN)],
    ids=["before it is noted as whole", "before its parts are stored"],
)
async def test_each_record_is_there_once_whichever_owner_is_lost_in_a_request(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch, index: int, at: str
) -> None:
    """The owner of the coordinating partition, and of another one."""
    await spread(three)
    lost = three.nodes[index]
    alive = [node for node in three.nodes if node is not lost]
    gone: list[str] = []

    async def reach(point: str) -> None:
        if point == at and not gone:
            gone.append(point)
            await three.cut_off(lost)

    monkeypatch.setattr(super_produce, "reach", reach)
    assert (await sent(three, alive[0], 10)).status_code == 200
    assert gone == [at]
    # As it was, and by another node: nothing is stored twice. The next one goes on.
    again = (await sent(three, alive[1], 10)).json()
    assert (again["count"], again["duplicates"]) == (0, 10)
    assert (await sent(three, alive[1], 20)).json()["count"] == 10
    stored = [value for part in range(3) for value in await shown(three, part, alive)]
    assert sorted(stored) == sorted(
        f"{number} {key}" for number, key in enumerate(TEN) for _ in "abc"
    )
    record = await three.first.streams.load(an_id(index))
    assert record.home in {node.node_id for node in alive}
    assert record.epoch > 1


async def asked_to_begin(harness: IngestHarness) -> httpx.Response:
    """The first step of a request after the one that is whole, as another node asks it."""
    asked = StepAsked("begin", PRODUCER, epoch=1, first=10, last=19, layout=1)
    body = orjson.dumps(encode_step(asked))
    target = of_stream(STEPS, an_id(COORDINATING))
    return await harness.internal.post(
        target, content=body, headers={"content-type": "application/json"}
    )


async def claimed_anew(tmp_path: Path) -> tuple[IngestHarness, IngestHarness, Others]:
    """A partition that was claimed anew, of which it is not known what others have of its log."""
    files = RecordedFiles()
    first = IngestHarness(tmp_path / "ingest", files=files, replicate=Others(files).replicate)
    await first.start()
    await declare_super(first, config=THREE_NODES)
    stored = await send(first, TEN, producer_id=PRODUCER, producer_epoch=1, producer_seq=0)
    assert stored.status_code == 200, stored.text
    others = Others(files)
    others.answers.clear()
    after = await first.after_crash(replicate=others.replicate).start()
    return first, after, others


async def test_nothing_is_said_of_requests_before_all_in_sync_have_what_was_found(
    tmp_path: Path,
) -> None:
    """Else a request could be called whole of which the next owner knows nothing."""
    first, after, others = await claimed_anew(tmp_path)
    asking = asyncio.create_task(asked_to_begin(after))
    await eventually(lambda: others.waits > 0)
    await asyncio.sleep(0)
    assert not asking.done()
    others.answers.set()
    answer = await asking
    assert decode_step_said(answer.json()).state == "go-on"
    assert after.service.streams.find(an_id(COORDINATING)) is not None
    await after.aclose()
    await first.aclose()


async def test_without_that_a_request_is_known_that_the_next_owner_may_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, SHOWN, lambda _: True)
    first, after, others = await claimed_anew(tmp_path)
    answer = await asked_to_begin(after)
    assert decode_step_said(answer.json()).last == 9
    found = after.service.streams.find(an_id(COORDINATING))
    assert found is not None
    assert found.awaits_found
    others.answers.set()
    await after.aclose()
    await first.aclose()
