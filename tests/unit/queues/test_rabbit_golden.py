"""A directory that a RabbitMQ 3.10 wrote and was killed over: what it would have delivered is what is imported."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.imported_queues import RENAMES, TENANTS, check_imported

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.start_plan import V1Files
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.offline.rabbit_import import Importing, ImportReport, import_node
from bottomless_server.queues.offline.rabbit_survey import NO_BODY, survey
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.start import start_store

GOLDEN: Final = Path(__file__).parents[2] / "golden/rabbitmq-queues"
NOW: Final = 1_795_000_000_000


def drained() -> dict[str, dict[str, list[dict[str, Any]]]]:
    found: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(
        (GOLDEN / "drained.json").read_bytes()
    )
    return found


def imported(directory: Path) -> tuple[StoreDirectory, ImportReport]:
    store = StoreDirectory(RealFileCalls(), directory)
    importing = Importing(TENANTS, RENAMES)
    found = survey(GOLDEN / "node")
    count = iter(range(1_000_000))

    def randomness(size: int) -> bytes:
        return next(count).to_bytes(size, "big")

    return store, import_node(store, found, importing, now=NOW, randomness=randomness)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[StoreDirectory, Ledger]]:
    store, _ = imported(tmp_path / "queues")
    ledger = store.open_ledger()
    yield store, ledger
    ledger.close()


def test_a_survey_finds_everything_and_nothing_that_it_does_not_know() -> None:
    found = survey(GOLDEN / "node")
    assert found.losses() == []
    assert set(found.findings.counts) <= {NO_BODY}
    counts = {
        one.vhost.name: {queue.name: queue.message_count for queue in one.queues}
        for one in found.vhosts
    }
    assert counts == {
        vhost: {name: len(expected) for name, expected in queues.items()}
        for vhost, queues in drained().items()
    }


@pytest.mark.parametrize("setting", [V1Files.READ, V1Files.MIGRATE])
def test_what_is_imported_is_what_the_broker_would_have_delivered(
    opened: tuple[StoreDirectory, Ledger], setting: V1Files
) -> None:
    store, ledger = opened
    assert ledger.check() == []
    report = start_store(store.files, store.messages, ledger, v1_files=setting)
    assert (report.removed, report.cut, report.lost, report.damaged_count) == ((), (), (), 0)
    check_imported(store, ledger, drained())
    names = [path.suffix for path in store.messages.iterdir()]
    assert (".rdq" in names) is (setting is V1Files.READ)
    assert ledger.check() == []


def test_a_message_of_a_fan_out_is_there_once_and_in_all_of_its_queues(
    opened: tuple[StoreDirectory, Ledger],
) -> None:
    _, ledger = opened
    places = []
    for name in ("fan-a", "fan-b", "fan-c"):
        row = ledger.queue_named("default", name)
        assert row is not None
        places.append(
            {one.message for one in ledger.ready(row.inside, 9) if one.message.size > 4_096}
        )
    assert places[0]
    assert places[0] == places[1] == places[2]


def test_every_queue_that_was_made_has_its_object_in_the_registry(
    opened: tuple[StoreDirectory, Ledger],
) -> None:
    store, ledger = opened
    rows = [row for tenant in TENANTS.values() for row in ledger.queues(tenant, "", 1_000)]
    assert sorted(path.stem for path in store.registry_path.iterdir()) == sorted(
        row.queue_id.hex() for row in rows
    )
    assert ledger.registry_due(1) == []


def test_the_source_is_as_it_was(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}
    imported(tmp_path / "queues")
    assert {path: path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()} == before
