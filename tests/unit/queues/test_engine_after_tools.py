"""An engine on what the tools of the store left: imported queues are served, a rebuilt ledger is complete."""

from pathlib import Path
from typing import Any

import pytest

from bottomless.model.queue import parse_queue_config
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.calls import OutMessage
from bottomless_server.queues.core.start_plan import V1Files
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.offline.rabbit_import import Importing, import_node
from bottomless_server.queues.offline.rabbit_survey import survey
from bottomless_server.queues.offline.rebuild import Rebuilding, RebuildReport, rebuild_store
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.runtime.base.cannot_start import CannotStart
from unit.queues.engine_harness import SETTINGS, Engine, an_engine
from unit.queues.import_harness import EXPECTED, counting, write_node

NOW = 1_700_000_000_000
JOBS = EXPECTED["default", "jobs"]
OF_DEFAULT = {name: values for (tenant, name), values in EXPECTED.items() if tenant == "default"}


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """The directory of a store with what a node written by hand had."""
    store = StoreDirectory(RealFileCalls(), tmp_path / "queues")
    importing = Importing({"/": "default", "eu": "europe"})
    found = survey(write_node(tmp_path / "node"))
    import_node(store, found, importing, now=NOW, randomness=counting())
    return store.path


def rebuilt(directory: Path, **rebuilding: Any) -> RebuildReport:
    """The ledger is lost, and made anew."""
    for path in directory.glob("ledger.db*"):
        path.unlink()
    store = StoreDirectory(RealFileCalls(), directory)
    return rebuild_store(store, Rebuilding(**rebuilding), now=NOW, stray_id=b"s" * 16)


def old_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "messages").glob("*.rdq"))


@pytest.mark.parametrize("setting", [V1Files.READ, V1Files.MIGRATE])
async def test_imported_queues_are_served_and_their_files_go_when_they_are_empty(
    imported: Path, setting: V1Files
) -> None:
    assert old_files(imported) == ["0.rdq", "1.rdq", "2.rdq"]
    async with an_engine(imported, v1_files=setting) as engine:
        assert (old_files(imported) == []) is (setting is V1Files.MIGRATE)
        await engine.publish("jobs", values=[b"new"])
        first, *_ = await engine.receive("jobs", limit=1)
        headers = dict(first.headers)
        assert (headers["amqp-routing-key"], first.published_at) == (b"jobs", NOW)
        await engine.ack("jobs", [first])
        assert await engine.drain("jobs") == [*JOBS[1:], b"new"]
        for name in ("orders", "urgent"):
            assert await engine.drain(name) == OF_DEFAULT[name]
        await tended(engine)
        assert set(old_files(imported)) <= {"2.rdq"}, "that of the other tenant is needed still"
    async with an_engine(imported, v1_files=setting) as engine:
        assert await engine.drain("jobs") == []


async def test_a_start_that_may_find_no_old_file_names_them_and_the_way(imported: Path) -> None:
    engine = Engine(imported, SETTINGS._replace(v1_files=V1Files.REFUSE))
    with pytest.raises(CannotStart, match=r"0\.rdq, 1\.rdq, 2\.rdq; run `bottomless queue-store"):
        await engine.open()
    async with an_engine(imported, v1_files=V1Files.MIGRATE):
        pass
    async with an_engine(imported, v1_files=V1Files.REFUSE) as engine:
        assert await engine.values("jobs") == JOBS


async def test_an_old_file_that_is_worth_it_is_written_anew_while_queues_are_served(
    imported: Path,
) -> None:
    async with an_engine(imported) as engine:
        # Half of it is dead already: it was so when it came.
        await engine.engine.compact()
        await tended(engine)
        assert old_files(imported) == ["1.rdq", "2.rdq"]
        assert await engine.drain("jobs") == JOBS
        assert await engine.drain("orders") == OF_DEFAULT["orders"]


async def test_a_lost_ledger_comes_back_with_all_that_is_needed(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        for name in ("jobs", "orders"):
            await engine.create(name)
        await engine.publish("jobs", "orders", values=[b"both"])
        await engine.publish("jobs", values=[b"one", b"two", b"three"])
        await engine.send("orders", messages=[OutMessage(b"urgent", priority=7)])
        await engine.send("orders", messages=[OutMessage(b"later", delay_ms=60_000)])
        taken = await engine.receive("jobs", limit=2)
        next_sequence = (await engine.describe("jobs")).next_sequence
    report = rebuilt(tmp_path)
    assert (report.item_count, report.findings.counts) == (7, {})
    async with an_engine(tmp_path) as engine:
        settled = await engine.engine.ack("default", "jobs", [one.receipt for one in taken])
        assert settled.done == 0, "receipts of the store before are good for nothing"
        assert await engine.drain("jobs") == [b"both", b"one", b"two", b"three"]
        assert await engine.drain("orders") == [b"urgent", b"both"]
        await engine.pass_time(60_000)
        assert await engine.drain("orders") == [b"later"]
        answer = await engine.publish("jobs")
        assert answer.queues[0].messages[0].sequence >= next_sequence


async def test_dead_letters_of_a_purged_and_of_a_deleted_queue_come_back(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        await engine.create("dead")
        for name in ("purged", "deleted"):
            await engine.create(name, max_deliveries=1, dead_letter={"queue": "dead"})
            await engine.publish(name, values=[name.encode()])
            taken = await engine.receive(name)
            await engine.engine.nack("default", name, [one.receipt for one in taken])
        await engine.arrived()
        await engine.engine.purge("default", "purged")
        await engine.engine.delete_queue("default", "deleted")
    rebuilt(tmp_path)
    async with an_engine(tmp_path) as engine:
        assert sorted(await engine.drain("dead")) == [b"deleted", b"purged"]
        assert await engine.drain("purged") == []


async def test_what_dies_after_a_rebuild_reaches_its_stream(tmp_path: Path) -> None:
    config = parse_queue_config({"max_deliveries": 1, "dead_letter": {"stream": "dead"}})
    engine = Engine(tmp_path)
    engine.streams.create("default", "dead")
    await engine.open()
    await engine.engine.create_queue("default", "jobs", config)
    await engine.publish("jobs", values=[b"before", b"after"])
    await die(engine.engine, 1)
    await engine.arrived()
    await engine.close()
    rebuilt(tmp_path)
    await engine.open()
    # What died before comes again, since its record lies in a file still.
    await die(engine.engine, 2)
    await engine.arrived()
    await engine.close()
    values = [bytes(one.value) for one in engine.streams.records["default", "dead"]]
    assert values.count(b"after") == 1


async def tended(engine: Engine) -> None:
    """Return when nothing is to be removed or compacted at present."""
    while await engine.engine.tend():
        pass


async def die(engine: QueueEngine, count: int) -> None:
    taken = await engine.receive("default", "jobs", limit=count)
    assert len(taken) == count
    await engine.nack("default", "jobs", [one.receipt for one in taken])
