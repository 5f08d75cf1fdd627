"""`kill -9` of a whole server under publishers and workers of queues: every message is accounted for.

How many kills there are comes from BOTTOMLESS_TEST_KILLS, and the seed from BOTTOMLESS_TEST_SEED. What is
killed publishes, receives, acknowledges, gives back and rejects, sends dead letters to another queue and to
a stream, archives what was acknowledged and compacts. In the end everything is worked off, and each
message is held against what anybody was told of it.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import lasting_ports
from support.queue_account import QueueAccount, QueuePlan
from support.queue_load import QueueLoad
from support.server import AllInOne
from support.waiting import until

KILLS = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "2"))
SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261127"))
SETTINGS = {
    "BOTTOMLESS_QUEUES_FILE_BYTES_MAX": "65536",
    "BOTTOMLESS_QUEUES_COMPACT_QUIET_MS": "0",
}
STREAM = {"fragment": {"target_bytes": 65_536, "max_age_ms": 500}}
PLANS = (
    QueuePlan("jobs", 2, dead_queue="dead", visibility_ms=500),
    QueuePlan("mails", 1, dead_stream="letters", archive="archive", visibility_ms=500),
    QueuePlan("dead", visibility_ms=500),
)
WAYS = ("stored", "delivered", "acked")
AT_ONCE = 15
"""Of each of these between two kills: a slow machine may do nothing else between them."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    with AllInOne(tmp_path / "data", SETTINGS, *lasting_ports(1)) as running:
        yield running


def clients(load: QueueLoad, way: Any) -> list[Any]:
    """What publishers and workers do, each in a thread of its own."""
    publishing = partial(load.publish, way)
    return [
        partial(publishing, name="keyed", queues=("jobs",), keyed=True),
        partial(publishing, name="fan", queues=("jobs", "mails"), keyed=True),
        partial(publishing, name="plain", queues=("mails",), keyed=False),
        *(partial(load.work, way, queue=one) for one in ("jobs", "jobs", "mails", "dead")),
    ]


def kill_under(server: AllInOne, load: QueueLoad, chance: random.Random) -> None:
    """Kill it some time after it has done some of everything, perhaps while it starts."""
    before = {what: load.counts[what] for what in WAYS}
    until(
        lambda: all(load.counts[what] >= before[what] + AT_ONCE for what in WAYS) or load.faults,
        what="work between two kills",
    )
    threading.Event().wait(chance.uniform(0, 0.3))
    server.kill()
    if chance.random() < 0.2:
        server.spawn()
        threading.Event().wait(chance.uniform(0, 1.0))
        server.kill()
    server.start()


@pytest.mark.timeout(300 + KILLS * 15)
def test_every_message_is_accounted_for_after_kills_at_any_moment(server: AllInOne) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    chance = random.Random(SEED)
    load = QueueLoad(QueueAccount(PLANS))
    with ExitStack() as open_clients:
        own = threading.local()

        def way() -> httpx.Client:
            """One for each thread."""
            if not hasattr(own, "client"):
                own.client = open_clients.enter_context(server.client())
            client: httpx.Client = own.client
            return client

        for stream in ("letters", "archive"):
            way().put(f"/v1/streams/{stream}", json=STREAM).raise_for_status()
        load.create(way())
        with load.running(clients(load, way), SEED):
            for _ in range(KILLS):
                kill_under(server, load, chance)
        assert not load.faults
        load.work_off(way, chance)
        load.check(way, "letters", "archive")
        store = way().get("/v1/admin/queue-store").json()
    print(dict(load.counts), store["compactions"])
    assert load.counts["letters"] > KILLS, "too few dead letters: the dangerous path did not run"
    assert load.counts["archived"] > KILLS, "too few were archived"
    assert len(load.account.queues["dead"].messages) > 0, "nothing came to the other queue"
