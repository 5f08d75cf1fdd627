"""A queue that a later release has configured steps aside alone: all others go on."""

from pathlib import Path

import pytest

from bottomless.errors import NotServed, WrongOffset
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.changes.upkeep import ASIDE_MS
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.store.alone import a_round
from unit.queues.engine_harness import TENANT, Engine

LATER = '{"visibility_ms":10,"message_ttl_ms":50,"dead_letter":{"topic":"new"}}'


def configure(directory: Path, name: str, config: str) -> None:
    """Leave in a ledger what a later release has, and no object in the registry."""
    ledger = SqliteLedger(directory / "ledger.db", RealFileCalls(), bytes(16))
    row = ledger.queue_named(TENANT, name)
    assert row is not None
    with a_round(ledger):
        ledger.set_config(row.queue_id, config)
    ledger.close()


async def test_others_go_on_and_its_messages_wait_for_that_release(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.open()
    for name in ("jobs", "later"):
        await engine.create(name, visibility_ms=10, message_ttl_ms=50)
    await engine.publish("jobs", "later", values=[b"in flight", b"ready"])
    for name in ("jobs", "later"):
        assert await engine.values(name, limit=1) == [b"in flight"]
    await engine.close()
    configure(tmp_path, "later", LATER)
    await engine.open()

    # Both queues have a message whose visibility is over, and then one whose time is.
    await engine.pass_time(20)
    assert await engine.values("jobs", limit=1) == [b"in flight"]
    await engine.pass_time(ASIDE_MS // 2)
    assert (await engine.describe("jobs")).sums.item_count == 0
    for asked in (
        engine.receive("later"),
        engine.describe("later"),
        engine.publish("later"),
        engine.publish("jobs", "later"),
        engine.create("later"),
    ):
        with pytest.raises(NotServed, match="a later release has configured this queue"):
            await asked
    page = await engine.engine.list_queues(TENANT)
    assert ([queue.name for queue in page.queues], page.not_served) == (["jobs"], ["later"])
    assert await engine.engine.check() == []
    await engine.close()

    # That release is back.
    configure(tmp_path, "later", '{"visibility_ms":10}')
    await engine.open()
    assert (await engine.describe("later")).sums.item_count == 2
    await engine.pass_time(2 * ASIDE_MS)
    assert (await engine.describe("later")).sums.item_count == 0
    await engine.close()


async def test_a_queue_that_may_be_its_target_is_not_deleted_and_itself_is(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.open()
    for name in ("dead", "later"):
        await engine.create(name)
    await engine.close()
    configure(tmp_path, "later", '{"dead_letter":{"queue":"dead","share":2}}')
    await engine.open()
    with pytest.raises(WrongOffset):
        await engine.engine.delete_queue(TENANT, "dead")
    await engine.create("more", dead_letter={"queue": "later"})
    for name in ("more", "later", "dead"):
        await engine.engine.delete_queue(TENANT, name)
    await engine.close()
