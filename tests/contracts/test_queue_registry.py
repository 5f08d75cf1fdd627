"""What the registry of queues promises, on a disk and in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from support.ledgers import STORE_ID, id_of

from bottomless.formats.queue_object import QueueObject
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.directory.registry import FileRegistry, object_of, registry_objects
from bottomless_server.queues.ledger.base import QueueRow
from bottomless_server.queues.ledger.memory import MemoryLedger
from bottomless_server.queues.ports import Registry
from bottomless_server.queues.rounds.memory_files import MemoryRegistry


class Beside(NamedTuple):
    """A registry, and what somebody finds who looks at it alone."""

    registry: Registry
    found: Callable[[], list[QueueObject]]


@pytest.fixture(params=["files", "memory"])
def beside(request: pytest.FixtureRequest, tmp_path: Path) -> Beside:
    if request.param == "memory":
        memory = MemoryRegistry()
        return Beside(
            memory, lambda: [object_of(memory.rows[each]) for each in sorted(memory.rows)]
        )
    files = RealFileCalls()
    return Beside(FileRegistry(files, tmp_path), lambda: list(registry_objects(files, tmp_path)))


@pytest.fixture
def row() -> QueueRow:
    ledger = MemoryLedger(STORE_ID)
    ledger.begin()
    made = ledger.create_queue(id_of(1), "default", "jobs", '{"delay_ms": 5}')
    ledger.commit()
    return made


def test_what_was_written_is_found(beside: Beside, row: QueueRow) -> None:
    other = replace(row, queue_id=id_of(2), name="mail", purged_below=3, version=9)
    beside.registry.write(other)
    beside.registry.write(row)
    first, second = beside.found()
    assert (first.queue_id, first.tenant, first.name) == (id_of(1), "default", "jobs")
    assert (first.config.delay_ms, first.purged_below) == (5, 0)
    assert first.reserved_below == row.reserved_below
    assert (second.name, second.purged_below, second.version) == ("mail", 3, 9)


def test_the_last_one_counts(beside: Beside, row: QueueRow) -> None:
    beside.registry.write(row)
    beside.registry.write(replace(row, reserved_below=2**40))
    (found,) = beside.found()
    assert found.reserved_below == 2**40


def test_what_was_removed_is_not_found_and_may_be_removed_again(
    beside: Beside, row: QueueRow
) -> None:
    beside.registry.write(row)
    beside.registry.remove(row.queue_id)
    beside.registry.remove(row.queue_id)
    assert beside.found() == []
