"""A whole directory of queues is put back from a back-up: what was handed out since means nothing else."""

import asyncio
import shutil
from pathlib import Path

import pytest
from support.guards import remove

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.calls import ReceivedMessage
from bottomless_server.queues.directory.tokens import load_tokens
from bottomless_server.queues.offline.new_id import give_new_id
from bottomless_server.queues.offline.store_directory import StoreDirectory
from unit.queues.engine_harness import TENANT, Engine


async def put_back(directory: Path, *, new_id: bool = False) -> tuple[Engine, ReceivedMessage]:
    """An engine on a back-up, where another message has the numbers of one that was received since;
    and that one with its receipt.
    """
    engine = Engine(directory / "now")
    await engine.open()
    await engine.create("jobs")
    await engine.close()
    shutil.copytree(directory / "now", directory / "back-up")
    await engine.open()
    await engine.publish("jobs", values=[b"since the back-up"])
    (taken,) = await engine.receive("jobs")
    await engine.close()
    engine.directory = directory / "back-up"
    if new_id:
        await asyncio.to_thread(change_id, engine.directory)
    await engine.open()
    await engine.publish("jobs", values=[b"another"])
    (other,) = await engine.receive("jobs")
    assert (other.sequence, other.deliveries) == (taken.sequence, taken.deliveries)
    return engine, taken


def change_id(directory: Path) -> None:
    give_new_id(StoreDirectory(RealFileCalls(), directory), bytes(16))


async def settled(engine: Engine, taken: ReceivedMessage) -> tuple[int, int]:
    """How many messages an old receipt acknowledges, and for how many it is stale."""
    answer = await engine.engine.ack(TENANT, "jobs", [taken.receipt])
    await engine.close()
    return answer.done, len(answer.stale)


@pytest.mark.parametrize("new_id", [False, True], ids=["as it was", "under a new id"])
async def test_a_receipt_of_after_the_back_up_acknowledges_nothing(
    tmp_path: Path, *, new_id: bool
) -> None:
    engine, taken = await put_back(tmp_path, new_id=new_id)
    assert await settled(engine, taken) == (0, 1)


async def test_without_the_message_in_it_a_receipt_would_acknowledge_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the message in a receipt", lambda *_: True)
    engine, taken = await put_back(tmp_path)
    assert await settled(engine, taken) == (1, 0)


async def test_a_new_id_is_of_the_store_and_lets_the_next_start_in(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.open()
    await engine.create("jobs")
    await engine.publish("jobs", values=[b"one"])
    before = (await engine.engine.storage()).store_id
    await engine.close()
    await asyncio.to_thread(change_id, tmp_path)
    assert load_tokens(RealFileCalls(), tmp_path).accept_loss
    await engine.open()
    assert before != (await engine.engine.storage()).store_id == bytes(16)
    assert await engine.drain("jobs") == [b"one"]
    await engine.close()
