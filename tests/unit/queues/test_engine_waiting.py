"""Receives that wait, that are given up, and that meet damage, on the whole engine."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from bottomless.errors import Code, NotFound, Outcome, Overloaded, Unavailable, WrongOffset
from bottomless.formats.message_file import HEADER_SIZE
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.calls import PublishRequest
from bottomless_server.queues.reading.receiving import ASIDE_MS, Receiving
from unit.queues.engine_harness import TENANT, Engine, an_engine

LONG = 240_000


def waits(engine: Engine, count: int = 1) -> Any:
    return eventually(lambda: engine.engine.figures().waiting_receives == count)


def asking(engine: Engine, **how: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(engine.values("jobs", wait_ms=LONG, **how))


async def test_who_waits_is_handed_what_is_published(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        first, second = asking(engine), asking(engine)
        await waits(engine, 2)
        await engine.publish("jobs", values=[b"one"])
        assert await first == [b"one"]
        await engine.publish("jobs", values=[b"two"])
        assert await second == [b"two"]


async def test_who_has_left_takes_nothing(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        gone = asking(engine)
        await waits(engine)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await engine.publish("jobs", values=[b"one"])
        assert await engine.values("jobs") == [b"one"]


async def test_who_may_not_have_messages_any_more_gives_them_back(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one"])
        assert await engine.values("jobs", allowed=lambda: False) == []
        (taken,) = await engine.receive("jobs", allowed=lambda: True, wait_ms=LONG)
        assert bytes(taken.value) == b"one"


async def test_what_cannot_be_sent_is_given_back_at_once(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one"])
        receipts = [each.receipt for each in await engine.receive("jobs")]
        engine.engine.give_back(TENANT, "jobs", receipts)
        assert await engine.values("jobs", wait_ms=LONG) == [b"one"]


async def test_it_is_given_back_also_where_the_name_of_its_queue_was_forgotten(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one"])
        receipts = [each.receipt for each in await engine.receive("jobs")]
        with pytest.raises(WrongOffset):
            # Whatever comes of it: the next one asks the ledger for the name.
            await engine.engine.delete_queue(TENANT, "jobs", if_empty=True)
        engine.engine.give_back(TENANT, "jobs", receipts)
        (message,) = await engine.receive("jobs", wait_ms=20_000)
        assert (bytes(message.value), message.deliveries) == (b"one", 1)


async def test_who_waits_in_a_queue_that_is_deleted_hears_of_it(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        waiting = asking(engine)
        await waits(engine)
        await engine.engine.delete_queue(TENANT, "jobs")
        with pytest.raises(NotFound) as caught:
            await waiting
        assert caught.value.code is Code.QUEUE_NOT_FOUND


async def test_a_name_that_is_another_queue_meanwhile_is_that_queue(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        assert await engine.values("jobs") == []
        await engine.engine.delete_queue(TENANT, "jobs")
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"new"])
        assert await engine.values("jobs") == [b"new"]


async def test_a_wait_ends_when_its_client_said_also_where_the_queue_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []
    receive = Receiving.receive

    async def noted(self: Receiving, change: Any, deadline: float, *rest: Any) -> Any:
        deadlines.append(deadline)
        return await receive(self, change, deadline, *rest)

    monkeypatch.setattr(Receiving, "receive", noted)
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        waiting = asking(engine)
        for again in (1, 2, 3):
            await waits(engine)
            known = len(deadlines)
            # Together, so that there is a queue of this name whenever it is looked for.
            await asyncio.gather(
                engine.engine.delete_queue(TENANT, "jobs"), engine.create("jobs", delay_ms=again)
            )
            while len(deadlines) == known:
                await asyncio.sleep(0)
        await waits(engine)
        engine.engine.stop_waiting()
        assert await waiting == []
    assert len(set(deadlines)) == 1


class Room:
    """Room for one answer, of which there is none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def take(self, size: int) -> None:
        self.asked.append(size)
        if size:
            raise Overloaded("too many receives are waiting")

    def give_back(self) -> None:
        pass


async def test_what_there_is_no_room_for_goes_back_and_was_never_delivered(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs", max_deliveries=1, dead_letter={"stream": "dead"})
        await engine.publish("jobs", values=[b"one", b"two"])
        room = Room()
        for _ in range(2):
            with pytest.raises(Overloaded):
                await engine.receive("jobs", room=room)
        size = (await engine.describe("jobs")).sums.bytes
        assert room.asked == [0, size, 0, size]
        messages = await engine.receive("jobs", wait_ms=LONG)
        assert [each.deliveries for each in messages] == [1, 1]
        assert await engine.ack("jobs", messages) == 2


async def test_a_stop_answers_who_waits_with_nothing_and_refuses_the_rest(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.open()
    await engine.create("jobs")
    waiting = asking(engine)
    await waits(engine)
    engine.engine.stop_waiting()
    assert await waiting == []
    assert await engine.values("jobs", wait_ms=LONG) == []
    await engine.close()
    await engine.close()
    with pytest.raises(Unavailable) as caught:
        await engine.publish("jobs")
    assert caught.value.code is Code.DRAINING


def damage(directory: Path, value: bytes) -> None:
    """Change one byte of a message on the disk."""
    for path in (directory / "messages").iterdir():
        data = path.read_bytes()
        if value in data:
            place = data.index(value)
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


async def test_a_damaged_message_is_kept_from_consumers_and_the_others_are_delivered(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one", b"two", b"three"])
        damage(tmp_path, b"two")
        assert await engine.values("jobs") == [b"one", b"three"]
        assert await engine.peek("jobs", state="damaged") == [(1, "damaged", None)]
        assert (await engine.describe("jobs")).sums.damaged == 1
        assert await engine.engine.purge(TENANT, "jobs", damaged=True) == 1
        assert (await engine.describe("jobs")).sums.damaged == 0


class BadSector(RealFileCalls):
    """A disk that does not give what lies at one position."""

    def __init__(self) -> None:
        self.position: int | None = None

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if position == self.position and size > HEADER_SIZE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, size, position)


async def test_a_message_that_the_disk_does_not_give_holds_up_no_other(tmp_path: Path) -> None:
    files = BadSector()
    engine = Engine(tmp_path, files=files)
    await engine.open()
    await engine.create(
        "jobs", visibility_ms=1_000_000, max_deliveries=2, dead_letter={"stream": "dead"}
    )
    await engine.publish("jobs", values=[b"one", b"two", b"three"])
    files.position = HEADER_SIZE
    with pytest.raises(Unavailable) as caught:
        await engine.receive("jobs", limit=1)
    assert (caught.value.code, caught.value.outcome) == (Code.STORAGE_FAILED, Outcome.NONE)
    assert await engine.values("jobs", limit=1) == [b"two"]
    await engine.pass_time(ASIDE_MS)
    assert await engine.values("jobs") == [b"three"], "it is tried again, beside others"
    assert await engine.peek("jobs", state="delayed") == [(0, "delayed", None)]
    files.position = None
    await engine.pass_time(ASIDE_MS)
    (message,) = await engine.receive("jobs")
    assert bytes(message.value) == b"one", "nobody took it for damaged"
    assert message.deliveries == 1, "nobody had it before"
    assert (await engine.describe("jobs")).sums.damaged == 0
    await engine.close()


async def test_who_meets_damage_alone_waits_on(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[b"one"])
        damage(tmp_path, b"one")
        waiting = asking(engine)
        await waits(engine)
        await engine.publish("jobs", values=[b"two"])
        assert await waiting == [b"two"]


async def test_publishes_are_refused_where_files_have_all_the_bytes_that_they_may(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path, disk_bytes_max=1_000) as engine:
        await engine.create("jobs")
        await engine.publish("jobs", values=[bytes(2_000)])
        await engine.engine.tend()
        request = PublishRequest(TENANT, ["jobs"], [])
        with pytest.raises(Exception, match="as many bytes as they may") as caught:
            await engine.engine.publish(request)
        assert caught.value.code is Code.DISK_BOUND  # type: ignore[attr-defined]
        assert await engine.values("jobs") == [bytes(2_000)]
