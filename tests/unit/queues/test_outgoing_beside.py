"""What leaves queues while something beside it fails: a registry object, or the node of other streams."""

import asyncio
import errno
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Unavailable
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.directory.opening import REGISTRY
from bottomless_server.queues.outgoing.outgoing import TARGETS_AT_ONCE
from bottomless_server.queues.rounds.rounds import Rounds
from unit.queues.engine_harness import SETTINGS, TENANT, Engine, an_engine
from unit.queues.test_outgoing import SOON, archive, values, work


class FullRegistry(RealFileCalls):
    """The disk has no room for objects of the registry, while it is full."""

    full = False

    def rename(self, old: Path, new: Path) -> None:
        if self.full and new.parent.name == REGISTRY:
            raise OSError(errno.ENOSPC, "no space left")
        super().rename(old, new)


async def looks_in_vain(directory: Path, patch: pytest.MonkeyPatch) -> int:
    """How often a target is looked at for nothing while others look twenty times. What stood aside was sent
    at last, and the round that took its row was answered with an error, since another queue was made in it
    whose object could not be written.
    """
    files = FullRegistry()
    engine = Engine(directory, SETTINGS._replace(**SOON), files)
    await engine.open()
    await archive(engine)
    engine.streams.value_size_max = 10
    await work(engine, b"large" * 10)
    await eventually(lambda: engine.engine.figures().outgoing_aside)
    append = engine.streams.append
    making: list[asyncio.Task[None]] = []

    async def sent(*arguments: Any) -> None:
        engine.streams.value_size_max = 100
        await append(*arguments)
        files.full = True
        making.append(asyncio.create_task(engine.create("other")))
        # It goes into the line before the change that takes the row.
        await asyncio.sleep(0)

    engine.streams.append = sent  # type: ignore[method-assign, assignment]
    await eventually(lambda: making and making[0].done())
    assert isinstance(making[0].exception(), Unavailable)
    files.full = False
    await engine.arrived()
    await eventually(lambda: not engine.engine.figures().outgoing_waiting)
    looked, look = Counter[str](), Rounds.look

    async def counted(rounds: Rounds, call: Any) -> Any:
        looked[call.__qualname__.partition(".")[0]] += 1
        return await look(rounds, call)

    patch.setattr(Rounds, "look", counted)
    for _ in range(20):
        await engine.describe("jobs")
    patch.undo()
    await engine.close()
    assert values(engine) == [b"large" * 10]
    return looked["OutgoingLines"]


async def test_a_target_rests_though_the_answer_was_an_error_when_its_last_row_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await looks_in_vain(tmp_path, monkeypatch) < 5


async def test_without_its_guard_a_target_is_looked_at_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as guards:
        remove(guards, "a row that is gone stands aside no more", lambda *_, **__: [])
        assert await looks_in_vain(tmp_path, monkeypatch) >= 5


async def rejected_beside_a_node_that_stands_still(engine: Engine, goes_on: asyncio.Event) -> None:
    """A dead letter is on its way to a queue while messages are on theirs to more streams than are sent to
    at once, whose node has stopped."""
    stuck: list[str] = []

    async def never(tenant: str, stream: str, producer: str) -> int | None:
        stuck.append(f"{tenant}: {stream}: {producer}")
        await goes_on.wait()
        return None

    engine.streams.last_id = never  # type: ignore[method-assign]
    await engine.create("dead")
    for number in range(TARGETS_AT_ONCE + 1):
        name = f"jobs-{number}"
        engine.streams.create(TENANT, name)
        await engine.create(name, archive={"stream": name}, dead_letter={"queue": "dead"})
        await engine.publish(name)
        await engine.ack(name, await engine.receive(name))
    await eventually(lambda: len(stuck) == TARGETS_AT_ONCE)
    await engine.publish("jobs-0", values=[b"rejected"])
    (taken,) = await engine.receive("jobs-0")
    await engine.engine.nack(TENANT, "jobs-0", [taken.receipt], dead_letter=True)


async def test_queues_do_not_wait_for_streams_whose_node_stands_still(tmp_path: Path) -> None:
    goes_on = asyncio.Event()
    async with an_engine(tmp_path) as engine:
        await rejected_beside_a_node_that_stands_still(engine, goes_on)
        await eventually(lambda: engine.engine.figures().outgoing_sent)
        assert await engine.drain("dead") == [b"rejected"]
        goes_on.set()


async def test_without_its_guard_dead_letters_in_queues_wait_for_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "targets that are queues do not wait for streams"
    remove(monkeypatch, guard, lambda _, __, of_streams: of_streams)
    goes_on = asyncio.Event()
    async with an_engine(tmp_path) as engine:
        await rejected_beside_a_node_that_stands_still(engine, goes_on)
        for _ in range(20):
            await engine.describe("dead")
        assert engine.engine.figures().outgoing_sent == 0
        goes_on.set()
        await engine.arrived()
        assert await engine.drain("dead") == [b"rejected"]
