"""A node that owns streams and follows others: one task has the files of a stream."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import httpx
import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Code, Overloaded, Unavailable
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.ingest.log.segments import LogBroken
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.replicas.this_node import ThisNode
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.replica import (
    ITEMS,
    MEDIA_TYPE,
    NOWHERE,
    OPEN,
    Answer,
    EpochEnd,
    Opening,
    OpenSaid,
    Place,
    Taken,
    decode_answers,
    decode_open_said,
    encode_items,
    encode_opening,
)
from bottomless_server.stores.config_mark import CONFIGS_KEY
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM, IngestHarness, broken_disk, problem
from unit.ingest.replica_logs import OwnerLog

OTHER: Final = NodeId("b" * 32)
OWNED: Final = "the follower's task before an opening"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    harness = await IngestHarness(tmp_path / "ingest").declare()
    yield await harness.start()
    await harness.aclose()


async def opened(node: IngestHarness, opening: Opening) -> OpenSaid:
    answer = await node.internal.post(
        of_stream(OPEN, STREAM),
        content=encode_opening(opening),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    return decode_open_said(answer.content)


async def send(node: IngestHarness, owner: OwnerLog) -> Answer:
    """The first round of the owner's log."""
    piece = owner.piece(None)
    body = b"".join(encode_items([owner.item(piece)]))
    answer = await node.internal.post(ITEMS, content=body, headers={"content-type": MEDIA_TYPE})
    (taken,) = decode_answers(answer.content, 1)
    return taken


async def owned_by_other(node: IngestHarness, epoch: int) -> None:
    def claimed(record: StreamRecord) -> StreamRecord:
        return replace(
            record,
            home=OTHER,
            owner_url="http://other:1",
            epoch=epoch,
            epochs=(*record.epochs, EpochStart(epoch, record.published_next)),
            dirty=True,
            reserved_next=max(record.reserved_next, 1_000_000),
        )

    await node.streams.update(STREAM, claimed)
    await node.coordination.hold(node_key(OTHER), OTHER.encode(), 3_600_000)


async def followed(node: IngestHarness) -> OwnerLog:
    """A stream of another node, whose first record lies here too."""
    await owned_by_other(node, 1)
    owner = OwnerLog()
    assert await opened(node, owner.opening) == OpenSaid(None, None)
    owner.append(100)
    assert (await send(node, owner)).taken is Taken.OK
    assert [path.read_bytes() for path in node.segments()] == [
        data for name, data in owner.files.items() if name.endswith(".segment")
    ]
    return owner


def begin_a_write(node: IngestHarness) -> None:
    """What the next item leaves as long as it is being written."""
    (segment,) = node.segments()
    with segment.open("ab") as file:
        file.write(b"BLch")


async def test_a_followed_log_is_not_touched_as_long_as_its_owner_lives(
    node: IngestHarness,
) -> None:
    await followed(node)
    begin_a_write(node)
    before = node.segments()[0].read_bytes()
    for _ in range(2):
        with pytest.raises(OwnedElsewhere, match="another node owns") as elsewhere:
            await node.service.streams.get(STREAM)
        assert elsewhere.value.owner_url == "http://other:1"
    assert node.segments()[0].read_bytes() == before


async def test_without_the_look_at_its_follower_an_opening_cuts_what_is_being_written(
    node: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: object, __: object) -> None: ...

    remove(monkeypatch, OWNED, at_once)
    await followed(node)
    begin_a_write(node)
    before = node.segments()[0].read_bytes()
    with pytest.raises(OwnedElsewhere):
        await node.service.streams.get(STREAM)
    assert node.segments()[0].read_bytes() != before


async def test_a_node_that_may_lack_something_follows_on_when_the_owner_is_gone(
    node: IngestHarness,
) -> None:
    await followed(node)
    await node.coordination.release(node_key(OTHER), OTHER.encode())
    with pytest.raises(Unavailable) as refused:
        await node.service.streams.get(STREAM)
    assert refused.value.code is Code.NOT_OWNER
    assert node.service.replicas.following.in_use(STREAM)


async def test_a_followed_log_is_no_leftover(node: IngestHarness) -> None:
    await followed(node)
    await node.streams.update(
        STREAM, lambda record: replace(record, state=type(record.state)("deleting"))
    )
    await node.service.leftovers.sweep()
    assert node.segments()
    await node.service.replicas.following.let_go(STREAM)
    await node.service.leftovers.sweep()
    assert node.segments() == []


async def test_followed_logs_count_for_the_bound_of_the_disk(node: IngestHarness) -> None:
    disk = node.service.context.disk
    assert disk.held == 0
    await followed(node)
    held = disk.held
    assert held >= node.segments()[0].stat().st_size
    await node.service.replicas.following.let_go(STREAM)
    assert disk.held == held


async def test_an_owner_follows_whoever_claimed_its_stream_since(node: IngestHarness) -> None:
    assert (await node.append("a")).status_code == 200
    end = Place(*node.appender.log.synced_place())
    await owned_by_other(node, 2)
    ends = (EpochEnd(1, end, 1),)
    assert await opened(node, Opening(1, (), 0, 0, 0)) == OpenSaid("fenced", None)
    assert node.service.streams.find(STREAM) is not None

    assert await opened(node, Opening(2, ends, 0, 0, 0)) == OpenSaid(None, end)

    assert node.service.streams.find(STREAM) is None
    assert await opened(node, Opening(1, (), 0, 0, 0)) == OpenSaid("fenced", None)
    # Of the one that has lost it no append is taken that it has not read to be somebody else's.
    with pytest.raises(OwnedElsewhere):
        await node.service.streams.get(STREAM)


async def test_of_an_owner_whose_log_failed_nothing_unsynced_is_believed(
    node: IngestHarness,
) -> None:
    streams = node.service.streams
    assert (await node.append("a")).status_code == 200
    assert await streams.give_files(STREAM) is None
    end = (await streams.get(STREAM)).log.synced_place()
    node.files.faults["fdatasync"].append(broken_disk())
    assert problem(await node.append("b"))[0] == 503
    assert await streams.give_files(STREAM) == end
    assert streams.find(STREAM) is None
    assert await streams.give_files(STREAM) is None


async def ask_for(node: IngestHarness, replicas: int) -> None:
    """A PATCH, and the owner looks."""
    config = StreamConfig(replication=ReplicationConfig(replicas=replicas))

    def changed(record: StreamRecord) -> StreamRecord:
        return replace(record, config=config, config_version=record.config_version + 1)

    await node.streams.update(STREAM, changed)
    node.coordination.write(Changes({CONFIGS_KEY: b"%d" % replicas}))
    await node.service.configs.take_up()


async def test_a_stream_that_is_to_be_on_three_nodes_is_claimed_anew_and_waits_for_them(
    node: IngestHarness,
) -> None:
    assert (await node.append("a")).status_code == 200
    await ask_for(node, 3)
    assert (await node.service.streams.get(STREAM)).claim.epoch == 2
    task = asyncio.create_task(node.append("b"))
    await eventually(lambda: node.service.under_way.count == 1)
    await node.advance(10_000)
    answer = await task
    assert problem(answer) == (503, "not-enough-replicas")
    assert answer.json()["outcome"] == "none"

    # On one node alone it goes on as it is.
    await ask_for(node, 1)
    assert (await node.append("c")).status_code == 200
    assert node.appender.claim.epoch == 2
    assert await node.values() == [b"a", b"c"]


async def test_a_member_that_begins_again_keeps_its_log_of_a_clean_stream_whose_owner_lives(
    node: IngestHarness,
) -> None:
    """The record counts on it, and the owner may write at any moment."""
    await followed(node)
    await node.published(1)
    nodes = OTHER, node.lease.node.node_id

    def clean(record: StreamRecord) -> StreamRecord:
        config = StreamConfig(replication=ReplicationConfig(replicas=2))
        return replace(record, dirty=False, members=nodes, in_sync=nodes, config=config)

    await node.streams.update(STREAM, clean)
    before = [path.read_bytes() for path in node.segments()]
    after = node.after_crash()
    await after.start()
    assert [path.read_bytes() for path in after.segments()] == before
    with pytest.raises(OwnedElsewhere):
        await after.service.streams.get(STREAM)
    await after.aclose()


async def test_of_a_log_that_fails_at_its_stop_nothing_unsynced_is_believed_by_who_follows(
    node: IngestHarness,
) -> None:
    assert (await node.append("a")).status_code == 200
    appender, rows = node.appender, Rows([b"b"], [Content.BYTES])
    synced = appender.log.synced_place()
    node.files.faults["fdatasync"].append(broken_disk())
    answer = appender.put(Append(1, rows.size, 1, rows))
    assert await node.service.streams.give_files(STREAM) == synced
    with pytest.raises(LogBroken):
        await answer
    assert node.service.streams.find(STREAM) is None


class OneBeingOpened:
    """Streams of which one is just being opened."""

    def is_opening(self, _: object) -> bool:
        return True

    def find(self, _: object) -> None:
        return None

    def note_followed(self, _: object) -> None: ...


async def test_a_stream_that_is_being_opened_here_is_not_followed_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = ThisNode(cast("OwnedStreams", OneBeingOpened()), cast("Owner", None))
    with pytest.raises(Overloaded):
        here.owned_epoch(STREAM)
    remove(monkeypatch, "one task for the files of a stream", lambda *_: None)
    assert here.owned_epoch(STREAM) is None


async def test_damaged_bodies_are_refused(node: IngestHarness) -> None:
    answers: list[httpx.Response] = [
        await node.internal.post(
            of_stream(OPEN, STREAM), content=b"{}", headers={"content-type": "application/json"}
        ),
        await node.internal.post(ITEMS, content=b"?" * 40, headers={"content-type": MEDIA_TYPE}),
    ]
    assert [problem(answer) for answer in answers] == [
        (422, "validation-failed"),
        (422, "crc-mismatch"),
    ]


async def test_a_body_for_streams_that_nobody_opened_is_answered(node: IngestHarness) -> None:
    owner = OwnerLog()
    owner.append(10)
    assert await send(node, owner) == Answer(Taken.NOT_OPEN, NOWHERE)
