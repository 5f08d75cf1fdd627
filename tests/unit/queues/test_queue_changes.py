"""Queues are made, changed, emptied and deleted, each in a round of its own."""

from typing import Any

import pytest
from support.ledgers import id_of
from support.queue_changes import Publish

from bottomless.model.queue import parse_queue_config
from bottomless_server.queues.changes import queues as queues_module
from bottomless_server.queues.changes.damage import MarkDamaged
from bottomless_server.queues.changes.queues import (
    CreateQueue,
    DeleteQueue,
    PurgeDamaged,
    PurgeQueue,
    UpdateQueue,
)
from bottomless_server.queues.changes.receive import Receive
from bottomless_server.queues.changes.settle import ack
from bottomless_server.queues.changes.upkeep import Upkeep
from unit.queues.round_harness import QUEUE, RoundHarness


class Queues(RoundHarness):
    """With one queue, `jobs`."""

    def create(self, name: str, number: int = 7, **members: Any) -> Any:
        config = parse_queue_config(members)
        return self.do(CreateQueue(id_of(number), "default", name, config))

    def update(self, patch: Any, version: int = 1) -> Any:
        return self.do(UpdateQueue(QUEUE, patch, version))

    def delete(self, name: str, **how: Any) -> Any:
        return self.do(DeleteQueue("default", name, **how))

    def publish(self, count: int) -> None:
        for number in range(count):
            self.do(Publish(QUEUE, b"%d" % number))


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_a_queue_is_made_once_and_its_object_is_in_the_registry(queues: Queues) -> None:
    row, created = queues.create("mail")
    assert (row.name, created) == ("mail", True)
    assert queues.registry.rows[row.queue_id].name == "mail"
    same, created = queues.create("mail", 8)
    assert (same.queue_id, created) == (row.queue_id, False)
    assert queues.create("mail", 8, delay_ms=1) == ("queue-exists", "none")


def test_a_tenant_has_as_many_queues_as_it_may_have(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "QUEUE_COUNT_MAX", 2)
    queues.create("mail")
    assert queues.create("more", 8) == ("quota-exceeded", "none")
    other = CreateQueue(id_of(9), "other", "more", parse_queue_config({}))
    assert queues.do(other)[1] is True


def test_dead_letters_never_go_in_a_circle(queues: Queues) -> None:
    to_jobs = {"dead_letter": {"queue": "jobs"}}
    assert queues.create("a", 8, **to_jobs)[1] is True
    assert queues.create("self", 9, dead_letter={"queue": "self"}) == ("validation-failed", "none")
    assert queues.update({"dead_letter": {"queue": "a"}}) == ("validation-failed", "none")
    # Where nothing is yet they may go; what is made there later must not lead back.
    assert queues.update({"dead_letter": {"queue": "later"}}).version == 2
    assert queues.create("later", 10, dead_letter={"queue": "a"}) == ("validation-failed", "none")
    assert queues.create("later", 10)[1] is True


def test_an_update_is_of_one_version(queues: Queues) -> None:
    row = queues.update({"delay_ms": 5})
    assert row.version == 2
    assert queues.registry.rows[QUEUE].version == 2
    assert queues.update({"delay_ms": 6}) == ("etag-mismatch", "none")
    assert queues.update({"delay_ms": 5}, version=2).version == 2
    assert queues.update({"delay_ms": -1}, version=2) == ("validation-failed", "none")


def test_a_deleted_name_is_free_at_once_and_its_messages_go(queues: Queues) -> None:
    queues.publish(3)
    assert queues.delete("jobs", if_empty=True) == ("queue-not-empty", "none")
    assert queues.delete("jobs").queue_id == QUEUE
    assert QUEUE not in queues.registry.rows
    assert queues.delete("jobs") == ("queue-not-found", "none")
    assert queues.create("jobs")[1] is True
    assert queues.do(Receive(QUEUE, 1, 1)) == ("queue-not-found", "none")
    while queues.do(Upkeep()):
        pass
    assert sum(row.valid for row in queues.ledger.files()) == 0
    assert queues.ledger.check() == []


def test_a_queue_where_dead_letters_of_others_go_is_kept(queues: Queues) -> None:
    queues.create("a", 8, dead_letter={"queue": "jobs"})
    queues.create("jobs-2", 9, dead_letter={"stream": "jobs"})
    assert queues.delete("jobs") == ("queue-in-use", "none")
    queues.delete("a")
    assert queues.delete("jobs").queue_id == QUEUE


def test_a_purge_takes_what_is_in_flight_too(queues: Queues) -> None:
    queues.publish(3)
    taken = queues.do(Receive(QUEUE, 1, 2**20))
    assert queues.do(PurgeQueue(QUEUE)) == 3
    settled = queues.do(ack(QUEUE, [taken.deliveries[0].receipt]))
    assert len(settled.gone) == 1
    row = queues.ledger.queue(QUEUE)
    assert row is not None
    assert (row.sums.item_count, row.purged_below, row.next_sequence) == (0, 3, 3)
    assert row.totals.purged == 3
    assert queues.registry.rows[QUEUE].purged_below == 3


def test_damaged_messages_are_kept_from_consumers_until_they_are_purged(queues: Queues) -> None:
    queues.publish(3)
    row = queues.ledger.queue(QUEUE)
    assert row is not None
    there = queues.ledger.page(row.inside, 0, 10)
    taken = queues.do(Receive(QUEUE, 1, 2**20))
    assert queues.do(MarkDamaged(QUEUE, there[:2])) == 2
    assert queues.do(MarkDamaged(QUEUE, there[:2])) == 0
    assert [one.item.sequence for one in queues.do(Receive(QUEUE, 9, 2**20)).deliveries] == [2]
    # Whoever has a damaged one in hand may acknowledge it.
    assert queues.do(ack(QUEUE, [taken.deliveries[0].receipt])).done == 1
    assert queues.do(PurgeDamaged(QUEUE)) == 1
    assert queues.ledger.check() == []
