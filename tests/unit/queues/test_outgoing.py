"""What leaves queues: dead letters in queues, and records in streams that are in trouble."""

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import HEADER_SIZE, Finding, decode_record, scan
from bottomless.model.queue import QueuePlace
from bottomless_server.queues.calls import OutMessage
from bottomless_server.queues.outgoing.outgoing import BATCH_BYTES_MAX
from unit.queues.engine_harness import SETTINGS, TENANT, Engine, an_engine

SOON: dict[str, Any] = {"outgoing_retry_ms_min": 1, "outgoing_retry_ms_max": 1}


def values(engine: Engine, stream: str = "log") -> list[bytes]:
    return [bytes(record.value) for record in engine.streams.records[TENANT, stream]]


async def archive(engine: Engine) -> None:
    engine.streams.create(TENANT, "log")
    await engine.create("jobs", archive={"stream": "log"})


async def work(engine: Engine, *of: bytes) -> None:
    """Messages that are published and acknowledged, one after the other."""
    for value in of:
        await engine.publish("jobs", values=[value])
        await engine.ack("jobs", await engine.receive("jobs"))


async def test_what_is_acknowledged_is_in_its_archive_once(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await archive(engine)
        message = OutMessage(b"one", headers=(("kind", b"x"),))
        answer = await engine.send("jobs", messages=[message])
        published_at = engine.now
        engine.now += 5
        await engine.ack("jobs", await engine.receive("jobs"))
        await engine.arrived()
        (record,) = engine.streams.records[TENANT, "log"]
        assert (record.value, record.event_time) == (b"one", published_at)
        assert dict(record.headers) == {
            "kind": b"x",
            "queue": b"jobs",
            "queue-reason": b"acknowledged",
            "queue-message-id": answer.queues[0].messages[0].message_id.hex().encode(),
            "queue-deliveries": b"1",
        }


@pytest.mark.parametrize("late", [False, True], ids=["in vain", "unheard"])
async def test_a_stream_in_trouble_gets_everything_once_and_in_order(
    tmp_path: Path, *, late: bool
) -> None:
    async with an_engine(tmp_path, **SOON) as engine:
        await archive(engine)
        await work(engine, b"0")
        await engine.arrived()
        engine.streams.late = late
        engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
        await work(engine, b"1", b"2")
        await eventually(lambda: engine.engine.figures().outgoing_waiting)
        (waiting,) = (await engine.engine.storage()).outgoing
        assert (waiting.kind, waiting.name, waiting.waiting_for) == (
            "stream",
            "log",
            "peer-unavailable",
        )
        await engine.restart()
        engine.streams.error = None
        await engine.arrived()
        assert values(engine) == [b"0", b"1", b"2"]


async def test_a_node_that_drains_is_asked_again(tmp_path: Path) -> None:
    """Its answer is that of a stop, but it is not this service that stops."""
    async with an_engine(tmp_path, **SOON) as engine:
        await archive(engine)
        engine.streams.error = Unavailable("no", code=Code.DRAINING)
        await work(engine, b"1")
        await eventually(lambda: engine.engine.figures().outgoing_waiting)
        engine.streams.error = None
        await engine.arrived()
        assert values(engine) == [b"1"]


async def test_without_its_guard_what_is_sent_again_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = count(1_000)
    name = "the number of an outgoing row is its publishing id"
    remove(monkeypatch, name, lambda _: next(fresh))
    async with an_engine(tmp_path, **SOON) as engine:
        await archive(engine)
        await work(engine, b"0")
        await engine.arrived()
        engine.streams.late = True
        engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
        await work(engine, b"1")
        await eventually(lambda: values(engine).count(b"1") > 1)


async def test_what_a_stream_refuses_for_itself_steps_aside_and_is_tried_again(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path, **SOON) as engine:
        await archive(engine)
        engine.streams.value_size_max = 10
        await work(engine, b"large" * 10, b"1", b"2")
        await engine.arrived(but=1)
        assert values(engine) == [b"1", b"2"]
        assert engine.engine.figures().outgoing_aside > 0
        engine.streams.value_size_max = 100
        await engine.arrived()
        assert values(engine) == [b"1", b"2", b"large" * 10]


async def test_what_a_stream_has_and_refuses_when_it_is_sent_again_is_there_once(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path, **SOON) as engine:
        await archive(engine)
        await work(engine, b"0")
        await engine.arrived()
        engine.streams.late = True
        engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
        await work(engine, b"1")
        await eventually(lambda: engine.engine.figures().outgoing_waiting)
        engine.streams.error = None
        engine.streams.value_size_max = 0
        await eventually(lambda: not engine.engine.figures().outgoing_waiting)
        engine.streams.value_size_max = 100
        await work(engine, b"2")
        await engine.arrived()
        assert values(engine) == [b"0", b"1", b"2"]


async def test_what_stands_aside_holds_up_nothing_that_comes_later(tmp_path: Path) -> None:
    """It is larger than all that is sent together, and is not tried again for long."""
    async with an_engine(tmp_path) as engine:
        await archive(engine)
        engine.streams.value_size_max = 10
        await work(engine, bytes(BATCH_BYTES_MAX))
        await eventually(lambda: engine.engine.figures().outgoing_aside)
        await work(engine, b"1", b"2")
        await eventually(lambda: values(engine) == [b"1", b"2"])
        assert engine.engine.figures().outgoing_aside == 1


async def test_what_stepped_aside_is_sent_after_a_restart_too(tmp_path: Path) -> None:
    """Its old number is below what the stream knows: under that it would be taken for sent."""
    engine = Engine(tmp_path, SETTINGS)
    await engine.open()
    await archive(engine)
    engine.streams.value_size_max = 10
    await work(engine, b"large" * 10, b"1")
    await eventually(lambda: values(engine) == [b"1"])
    await engine.close()
    engine.streams.value_size_max = 100
    await engine.open()
    await engine.arrived()
    assert values(engine) == [b"1", b"large" * 10]
    await engine.close()


async def from_a_back_up(directory: Path) -> list[bytes]:
    """A ledger is put back that is older than what the stream has; then more is acknowledged."""
    engine = Engine(directory / "now")
    await engine.open()
    await archive(engine)
    await work(engine, b"0")
    await engine.arrived()
    await engine.close()
    shutil.copytree(directory / "now", directory / "back-up")
    await engine.open()
    await work(engine, b"1", b"2")
    await engine.arrived()
    await engine.close()
    engine.directory = directory / "back-up"
    await engine.open()
    await work(engine, b"3")
    await engine.arrived()
    await engine.close()
    return values(engine)


async def test_a_ledger_from_a_back_up_gives_no_number_that_the_stream_knows(
    tmp_path: Path,
) -> None:
    assert await from_a_back_up(tmp_path) == [b"0", b"1", b"2", b"3"]


async def test_without_its_guard_a_stream_takes_what_is_new_for_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(
        monkeypatch,
        "the last id of a stream is asked after a start, and numbers go on above it",
        lambda *_: None,
    )
    assert b"3" not in await from_a_back_up(tmp_path)


async def refused_in_a_back_up(directory: Path) -> list[bytes]:
    """A ledger is put back in which a row stands aside; since then it got numbers that mean nothing here,
    and other messages were sent. It is refused once more, and then the stream takes it.
    """
    engine = Engine(directory / "now", SETTINGS._replace(**SOON))
    await engine.open()
    await archive(engine)
    engine.streams.value_size_max = 10
    await work(engine, b"large" * 10)
    await eventually(lambda: engine.engine.figures().outgoing_aside)
    await engine.close()
    shutil.copytree(directory / "now", directory / "back-up")
    await engine.open()
    await work(engine, *(b"%d" % number for number in range(20)))
    await engine.arrived(but=1)
    await engine.close()
    engine.directory = directory / "back-up"
    await engine.open()
    figures = engine.engine.figures
    await eventually(lambda: figures().outgoing_aside or figures().outgoing_sent)
    engine.streams.value_size_max = 100
    await engine.arrived()
    await engine.close()
    return values(engine)


async def test_what_stood_aside_in_a_back_up_is_not_taken_for_sent(tmp_path: Path) -> None:
    assert (await refused_in_a_back_up(tmp_path))[-1] == b"large" * 10


async def test_without_its_guard_what_stood_aside_in_a_back_up_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a row of an older ledger that is refused was never there"
    remove(monkeypatch, name, lambda *_: True)
    assert b"large" * 10 not in await refused_in_a_back_up(tmp_path)


async def test_dead_letters_wait_for_a_queue_that_is_not_there(tmp_path: Path) -> None:
    async with an_engine(tmp_path, **SOON) as engine:
        await engine.create("jobs", message_ttl_ms=10, dead_letter={"queue": "dead"})
        await engine.publish("jobs", values=[b"one", b"two"])
        await engine.pass_time(10)
        await eventually(lambda: engine.engine.figures().outgoing_waiting)
        shown = await engine.describe("jobs")
        assert (shown.outgoing, shown.outgoing_waiting_for) == (2, "queue-not-found")
        assert shown.outgoing_oldest_at == engine.now
        (listed,) = (await engine.engine.list_queues(TENANT)).queues
        assert listed == shown
        await engine.create("dead")
        await engine.arrived()
        assert await engine.drain("dead") == [b"one", b"two"]
        shown = await engine.describe("jobs")
        assert (shown.outgoing, shown.outgoing_waiting_for, shown.outgoing_oldest_at) == (
            0,
            None,
            None,
        )


async def test_a_description_says_at_once_that_the_queue_for_dead_letters_is_not_there(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs", dead_letter={"queue": "dead"})
        assert (await engine.describe("jobs")).outgoing_waiting_for == "queue-not-found"
        await engine.create("dead")
        assert (await engine.describe("jobs")).outgoing_waiting_for is None


async def test_a_message_that_moved_has_a_record_of_its_own_that_names_its_queue(
    tmp_path: Path,
) -> None:
    """So a rebuild without a ledger finds it there, though its first queue is gone."""
    assert await is_named_where_it_is(tmp_path)


async def test_without_its_own_record_a_message_that_moved_is_named_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[bytes] = []

    def of_the_first_queue(sequences: dict[bytes, int]) -> tuple[QueuePlace, ...]:
        first.extend(sequences)
        return (QueuePlace(first[0], 0),)

    remove(monkeypatch, "the own record of a moved message", of_the_first_queue)
    assert not await is_named_where_it_is(tmp_path)


async def is_named_where_it_is(tmp_path: Path) -> bool:
    """Whether the record of a dead letter names the queue in which it is."""
    async with an_engine(tmp_path) as engine:
        await engine.create("dead")
        await engine.create("jobs", dead_letter={"queue": "dead"})
        await engine.publish("jobs", values=[b"one"])
        (taken,) = await engine.receive("jobs")
        await engine.engine.nack(TENANT, "jobs", [taken.receipt], dead_letter=True)
        await engine.arrived()
        dead = await engine.describe("dead")
        await engine.engine.delete_queue(TENANT, "jobs")
    places = [place for path in (tmp_path / "messages").iterdir() for place in named(path)]
    return (dead.queue_id, 0) in places


def named(path: Path) -> list[tuple[bytes, int]]:
    """Queues and sequences that the messages of a file name."""
    data = path.read_bytes()
    found = scan(lambda at, size: data[at : at + size], len(data), start=HEADER_SIZE)
    return [
        (place.queue_id, place.sequence)
        for one in found
        if one.what is Finding.MESSAGE
        for place in decode_envelope(
            decode_record(data[one.position : one.position + one.size]).body
        ).queues
    ]


async def test_a_damaged_dead_letter_holds_up_no_other(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("jobs", message_ttl_ms=10, dead_letter={"queue": "dead"})
        await engine.publish("jobs", values=[b"one", b"two"])
        for path in (tmp_path / "messages").iterdir():
            path.write_bytes(path.read_bytes().replace(b"one", b"0ne"))
        await engine.pass_time(10)
        await engine.create("dead")
        await eventually(lambda: engine.engine.figures().outgoing_sent)
        assert await engine.drain("dead") == [b"two"]
        await engine.arrived(but=1)


async def test_redriven_messages_are_where_they_were_without_what_they_were_given(
    tmp_path: Path,
) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("dead")
        await engine.create("jobs", message_ttl_ms=10, dead_letter={"queue": "dead"})
        await engine.send(
            "jobs",
            messages=[OutMessage(b"%d" % number, headers=(("a", b"b"),)) for number in range(5)],
        )
        await engine.pass_time(10)
        await engine.arrived()
        await engine.publish("dead", values=[b"its own"])
        answer = await engine.engine.redrive(TENANT, "dead", limit=2)
        assert (answer.moved, answer.left) == (2, 4)
        answer = await engine.engine.redrive(TENANT, "dead")
        assert (answer.moved, answer.left) == (3, 1)
        back = await engine.receive("jobs")
        assert [bytes(each.value) for each in back] == [b"0", b"1", b"2", b"3", b"4"]
        assert {(tuple(each.headers), each.deliveries, each.dead_letter) for each in back} == {
            ((("a", b"b"),), 1, None)
        }
        answer = await engine.engine.redrive(TENANT, "dead", to="jobs")
        assert (answer.moved, answer.left) == (1, 0)
        with pytest.raises(NotFound) as missing:
            await engine.engine.redrive(TENANT, "dead", to="missing")
        assert missing.value.facts == {"queue": "missing"}
