"""A live broker fills queues of every kind, is killed and stopped, and what it left is imported.

The oracle is a broker on a copy of the directory, drained: each queue has the same messages in the
same order. Without a broker `unit/queues/test_rabbit_golden.py` does the same to a directory that one
wrote.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.imported_queues import RENAMES, TENANTS, check_imported
from support.rabbit_broker import (
    SECOND_VHOST,
    SMALL,
    as_json,
    copied,
    drain,
    fill,
    pika,
    stop,
    store_of,
)

from bench.install import rabbitmq
from bench.place import Missing
from bench.servers.rabbitmq import running_rabbitmq
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.start_plan import V1Files
from bottomless_server.queues.offline.inspection import verify_store
from bottomless_server.queues.offline.rabbit_import import Importing, import_node
from bottomless_server.queues.offline.rabbit_survey import survey
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.start import start_store

pytestmark = pytest.mark.slow

SIZES = (0, 100, 4_095, 4_096, 70_000)
FAN_SIZES = (300, 4_096, 5_000_000)
Nodes = tuple[Path, Path, dict[str, dict[str, list[dict[str, Any]]]]]


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Nodes:
    """Directories of a broker that was killed and of one that was stopped, and what both have."""
    try:
        rabbitmq()
        pika()
    except Missing as error:
        pytest.skip(f"no RabbitMQ can be had here: {error}")
    killed = tmp_path_factory.mktemp("killed")
    with running_rabbitmq(killed, SMALL) as rabbit:
        fill(rabbit, "/", SIZES, FAN_SIZES, 60)
        fill(rabbit, SECOND_VHOST, SIZES[:3], FAN_SIZES[:1], 0)
        stop(rabbit, signal.SIGKILL)
    stopped = copied(killed, tmp_path_factory.mktemp("stopped"))
    with running_rabbitmq(stopped, SMALL) as rabbit:
        drained = {vhost: as_json(drain(rabbit, vhost)) for vhost in TENANTS}
        stop(rabbit, signal.SIGTERM)
    return killed, stopped, drained


@pytest.mark.parametrize("ended", ["killed", "stopped"])
@pytest.mark.parametrize("setting", [V1Files.READ, V1Files.MIGRATE])
def test_what_a_broker_left_is_imported_as_it_would_have_delivered_it(
    nodes: Nodes,
    tmp_path: Path,
    ended: str,
    setting: V1Files,
) -> None:
    killed, stopped, drained = nodes
    node = store_of(killed if ended == "killed" else stopped).parents[1]
    found = survey(node)
    assert found.losses() == []
    store = StoreDirectory(RealFileCalls(), tmp_path / "queues")
    now = time.time_ns() // 1_000_000
    import_node(store, found, Importing(TENANTS, RENAMES), now=now, randomness=os.urandom)
    ledger = store.open_ledger()
    try:
        report = start_store(store.files, store.messages, ledger, v1_files=setting)
        assert report.damaged_count == 0
        check_imported(store, ledger, drained)
        assert verify_store(store, ledger).counts == {}
        row = ledger.queue_named("default", "plain-1")
        assert row is not None
        ends = [one.item.expires_at for one in ledger.ready(row.inside, 1_000)]
        assert any(end is not None and end > now for end in ends)
    finally:
        ledger.close()
