"""Messages on their way to a stream while the home of their tenant's queues is taken over, or copied."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Code, Unavailable
from bottomless_server.node.forwarding import Answer, Forwarding
from bottomless_server.node.stream_nodes import StreamNodes
from bottomless_server.queues.outgoing.stream_appends import StreamAppends
from bottomless_server.stores.streams import Streams
from unit.queues.engine_harness import TENANT, Engine
from unit.queues.service_harness import QUEUE, Installation, QueuesHarness

AT_EACH_SEND = "the home of a tenant's queues, at each send of what leaves them"


class Log:
    """A stream, the node that has it, and the way there. What it has been sent it has once for each
    producer and number.
    """

    def __init__(self) -> None:
        self.values: list[str] = []
        self.producers: list[str] = []
        self.last: dict[str, int] = {}
        self.tried = 0
        """How often somebody was about to send something."""
        self.silent = False
        """Whether nobody answers, and nothing is stored."""
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        """An append waits for it before it is stored."""

    async def find(self, _: Any) -> str:
        return "stream"

    async def url_of(self, _: Any) -> str:
        self.tried += 1
        return "unix:///nowhere"

    def forget(self, _: str) -> None:
        return

    async def send(
        self, _: str, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> Answer:
        if self.silent:
            raise Unavailable("nobody answers", code=Code.PEER_UNAVAILABLE)
        if method == "GET":
            last = self.last.get(target.rpartition("/")[2])
            if last is None:
                problem = {"code": "producer-not-found", "status": 404, "outcome": "none"}
                return Answer(404, [], orjson.dumps(problem))
            return Answer(200, [], orjson.dumps({"last_seq": last}))
        self.reached.set()
        await self.goes_on.wait()
        self._store(headers["producer-id"], orjson.loads(body)["records"])
        return Answer(200, [], b"{}")

    def _store(self, producer: str, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            if record["publishing_id"] > self.last.get(producer, -1):
                self.last[producer] = record["publishing_id"]
                self.values.append(record["value"])
                self.producers.append(producer)


@asynccontextmanager
async def two_homes(
    directory: Path, log: Log
) -> AsyncIterator[tuple[QueuesHarness, QueuesHarness]]:
    """Two nodes whose acknowledged messages go to one stream."""
    installation = await Installation().start()
    await installation.create_stream("log")
    nodes = [installation.node(directory / name) for name in ("old", "new")]
    for node in nodes:
        settings = node.service.settings
        node.service.settings = settings._replace(outgoing_retry_ms_min=1, outgoing_retry_ms_max=1)
        node.service.streams = StreamAppends(
            cast("Streams", log),
            cast("StreamNodes", log),
            cast("Forwarding", log),
            node.service.homes.require_to_send,
        )
        await node.start()
    yield nodes[0], nodes[1]
    for node in nodes:
        await node.aclose()
    await installation.manifest.stop()


async def acknowledge(node: QueuesHarness, value: str) -> None:
    await node.create(archive={"stream": "log"})
    await node.publish(value)
    (message,) = await node.receive()
    acked = await node.client.post(f"{QUEUE}/ack", json={"receipts": [message["receipt"]]})
    assert acked.json()["acked"] == 1


async def take_over(old: QueuesHarness, new: QueuesHarness) -> None:
    await old.service.lease.stop()
    asked = {
        "tenant": "default",
        "accept_loss": True,
        "expect_home": old.service.directory.node_id,
    }
    taken = await new.client.post("/v1/admin/queues/takeover", json=asked)
    assert taken.status_code == 200, taken.text


async def until_waiting(node: QueuesHarness, code: str) -> None:
    """Return when what leaves a node's queues waits, and for this."""
    while True:
        outgoing = (await node.service.place.there().storage()).outgoing
        if [each.waiting_for for each in outgoing] == [code]:
            return


async def test_a_home_that_was_deposed_sends_nothing_more(tmp_path: Path) -> None:
    log = Log()
    async with two_homes(tmp_path, log) as (old, new):
        log.silent = True
        await acknowledge(old, "of the old home")
        await until_waiting(old, "peer-unavailable")
        await take_over(old, new)
        log.silent = False
        await acknowledge(new, "of the new home")
        await eventually(lambda: log.values == ["of the new home"])
        # Without a lease, and with one in which it is not the home any more.
        await until_waiting(old, "not-owner")
        await old.service.lease.start()
        tried = log.tried
        await eventually(lambda: log.tried >= tried + 2)
        await until_waiting(old, "not-owner")
        assert log.values == ["of the new home"]


async def test_without_the_guard_a_deposed_home_goes_on_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def anybody(*_: object) -> None:
        return

    remove(monkeypatch, AT_EACH_SEND, anybody)
    log = Log()
    async with two_homes(tmp_path, log) as (old, new):
        log.silent = True
        await acknowledge(old, "of the old home")
        await take_over(old, new)
        log.silent = False
        await eventually(lambda: log.values == ["of the old home"])


async def test_what_was_under_way_at_a_takeover_is_there_once(tmp_path: Path) -> None:
    """The new home has none of its messages, and another producer: nobody sends it a second time."""
    log = Log()
    async with two_homes(tmp_path, log) as (old, new):
        log.goes_on.clear()
        await acknowledge(old, "under way")
        await log.reached.wait()
        await take_over(old, new)
        await acknowledge(new, "of the new home")
        log.goes_on.set()
        await eventually(lambda: len(log.values) == 2)
        await old.service.lease.start()
        while (await old.service.place.there().storage()).outgoing:
            pass
        assert sorted(log.values) == ["of the new home", "under way"]
        assert len(set(log.producers)) == 2


async def test_two_copies_send_the_same_row_under_one_name_and_number(tmp_path: Path) -> None:
    """What was on its way when a directory was copied is there once, whichever copy sends it."""
    engine = Engine(tmp_path / "first")
    await engine.open()
    engine.streams.create(TENANT, "log")
    engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
    await engine.create("jobs", archive={"stream": "log"})
    await engine.publish("jobs", values=[b"one"])
    await engine.ack("jobs", await engine.receive("jobs"))
    await engine.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    copy = Engine(tmp_path / "second")
    copy.streams = engine.streams
    engine.streams.error = None
    for each in (engine, copy):
        await each.open()
    for each in (engine, copy):
        await each.arrived()
        await each.close()
    values = [bytes(record.value) for record in engine.streams.records[TENANT, "log"]]
    assert values == [b"one"]
