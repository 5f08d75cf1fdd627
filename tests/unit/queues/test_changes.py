"""Receive, acknowledge, give back, extend and what is due by itself, each in a round of its own."""

import json
from typing import Any

import pytest
from support.ledgers import id_of
from support.queue_changes import Publish, wanted

from bottomless_server.queues.changes import receive as receive_module
from bottomless_server.queues.changes.queues import PurgeQueue
from bottomless_server.queues.changes.receive import GiveBack, Receive, Received
from bottomless_server.queues.changes.settle import Settled, ack, extend, nack
from bottomless_server.queues.changes.upkeep import Upkeep
from bottomless_server.queues.core.life import DELIVERIES_MAX
from bottomless_server.queues.core.origin import decode_origin
from bottomless_server.queues.core.receipt import read_receipt, write_receipt
from bottomless_server.queues.ledger.base import Sums, Totals
from unit.queues.round_harness import QUEUE, RoundHarness

VISIBILITY_MS = 30_000


class Queues(RoundHarness):
    def configure(self, **members: Any) -> None:
        self.ledger.begin()
        self.ledger.set_config(QUEUE, json.dumps(members))
        self.ledger.commit()

    def publish(self, count: int, size: int = 10) -> None:
        for number in range(count):
            self.do(Publish(QUEUE, b"%d" % number * size))

    def receive(self, limit: int = 10, bytes_max: int = 2**20) -> list[str]:
        """Receipts."""
        received = self.do(Receive(QUEUE, limit, bytes_max))
        assert isinstance(received, Received), received
        received.release()
        return [each.receipt for each in received.deliveries]

    def sequences(self) -> list[int]:
        received: Received = self.do(Receive(QUEUE, 100, 2**20))
        return [each.item.sequence for each in received.deliveries]

    @property
    def sums(self) -> Sums:
        row = self.ledger.queue(QUEUE)
        assert row is not None
        return row.sums

    @property
    def totals(self) -> Totals:
        row = self.ledger.queue(QUEUE)
        assert row is not None
        return row.totals

    def out(self) -> list[tuple[str, str, str, int]]:
        """Kind and name of the target, reason and deliveries of what has left."""
        return [
            (target.kind, target.name, origin.reason.value, origin.deliveries)
            for target in self.ledger.targets()
            for row in self.ledger.outgoing(target.id, 100)
            for origin in [decode_origin(row.origin)]
        ]


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_what_was_acknowledged_is_gone_and_a_repeat_hears_so(queues: Queues) -> None:
    queues.publish(3)
    one, two, three = queues.receive()
    assert queues.do(ack(QUEUE, [one, two, one])) == Settled(2, [], [])
    assert queues.do(ack(QUEUE, [one, three])) == Settled(1, [one], [])
    assert (queues.sums, queues.totals) == (Sums(), Totals(delivered=3, acked=3))
    queues.check()


def test_what_nobody_acknowledged_comes_back_and_its_receipt_is_stale_once_it_is_delivered(
    queues: Queues,
) -> None:
    queues.publish(1)
    (first,) = queues.receive()
    queues.now += VISIBILITY_MS
    assert queues.do(Upkeep()) is False
    assert queues.sums == Sums(ready=1, bytes=10)
    (second,) = queues.receive()
    assert queues.do(ack(QUEUE, [first])) == Settled(0, [], [first])
    assert queues.do(ack(QUEUE, [second])) == Settled(1, [], [])
    assert queues.totals == Totals(delivered=2, redelivered=1, acked=1)


def test_a_receipt_is_good_after_its_time_until_the_message_is_delivered_again(
    queues: Queues,
) -> None:
    queues.publish(1)
    receipts = queues.receive()
    queues.now += VISIBILITY_MS
    queues.do(Upkeep())
    assert queues.do(ack(QUEUE, receipts)) == Settled(1, [], [])
    assert queues.sequences() == []


def test_an_extended_message_stays_with_its_consumer(queues: Queues) -> None:
    queues.publish(1)
    receipts = queues.receive()
    queues.now += VISIBILITY_MS - 1
    assert queues.do(extend(QUEUE, receipts, 5_000)) == Settled(1, [], [])
    queues.now += 4_999
    queues.do(Upkeep())
    assert queues.sequences() == []
    queues.now += 1
    queues.do(Upkeep())
    assert queues.sequences() == [0]


def test_what_is_given_back_keeps_its_turn_or_waits_for_its_delay(queues: Queues) -> None:
    queues.publish(3)
    one, two, _ = queues.receive()
    queues.do(nack(QUEUE, [one]))
    queues.do(nack(QUEUE, [two], delay_ms=100))
    assert queues.sequences() == [0]
    queues.now += 100
    queues.do(Upkeep())
    assert queues.sequences() == [1]


def test_what_was_delivered_too_often_leaves_for_the_dead_letters(queues: Queues) -> None:
    queues.configure(max_deliveries=2, dead_letter={"queue": "dead"})
    queues.publish(1)
    for _ in range(2):
        queues.do(nack(QUEUE, queues.receive()))
    assert queues.sequences() == []
    assert queues.out() == [("queue", "dead", "max-deliveries", 2)]
    assert queues.totals == Totals(delivered=2, redelivered=1, dead_lettered=1)
    queues.check()


def test_what_is_rejected_leaves_at_once_and_what_is_acknowledged_for_the_archive(
    queues: Queues,
) -> None:
    queues.configure(archive={"stream": "done"})
    queues.publish(2)
    one, two = queues.receive()
    queues.do(nack(QUEUE, [one], dead_letter=True))
    queues.do(ack(QUEUE, [two]))
    assert queues.out() == [("stream", "done", "acknowledged", 1)]
    assert queues.totals == Totals(delivered=2, acked=1, rejected=1)
    queues.check()


def test_what_has_expired_is_not_delivered_also_before_upkeep_finds_it(queues: Queues) -> None:
    for _ in range(2):
        queues.do(Publish(QUEUE, b"short", expires_at=queues.now + 1_000))
    queues.publish(1)
    queues.now += 1_000
    assert queues.sequences() == [2]
    assert queues.totals == Totals(delivered=1, expired=2)
    queues.check()


def test_a_message_may_be_delivered_more_often_than_can_be_counted(queues: Queues) -> None:
    queues.publish(1)
    queues.ledger.begin()
    row = queues.ledger.queue(QUEUE)
    assert row is not None
    (stored,) = queues.ledger.ready(row.inside, 1)
    often = stored.item._replace(deliveries=DELIVERIES_MAX - 1)
    queues.ledger.change_items([(stored, often)])
    queues.ledger.commit()
    for _ in range(3):
        (receipt,) = queues.receive()
        assert queues.do(nack(QUEUE, [receipt])) == Settled(1, [], [])
    (receipt,) = queues.receive()
    assert queues.do(ack(QUEUE, [receipt])) == Settled(1, [], [])


def test_many_that_have_expired_do_not_hide_what_comes_after_them(queues: Queues) -> None:
    for _ in range(30):
        queues.do(Publish(QUEUE, b"old", expires_at=queues.now + 10))
    queues.publish(3)
    queues.now += 10
    assert len(queues.receive(limit=1)) == 1
    assert queues.totals.expired == 30
    assert len(queues.receive(limit=5)) == 2


def test_a_receive_that_looks_at_too_many_that_have_expired_is_asked_again(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_module, "LOOK_SIZE", 1)
    for _ in range(30):
        queues.do(Publish(QUEUE, b"old", expires_at=queues.now + 10))
    queues.publish(1)
    queues.now += 10
    woken = 0
    while True:
        ended = queues.writer.round(wanted(Receive(QUEUE, 1, 2**20)))
        assert ended is not None
        (verdict,) = ended.verdicts
        if verdict.answer.deliveries:
            break
        assert ended.made_ready[QUEUE], "nobody else would wake it"
        woken += 1
    assert woken == 3


def test_what_has_expired_leaves_by_upkeep_too(queues: Queues) -> None:
    queues.configure(dead_letter={"stream": "late"})
    queues.do(Publish(QUEUE, b"short", expires_at=queues.now + 1_000))
    queues.now += 1_000
    queues.do(Upkeep())
    assert queues.out() == [("stream", "late", "expired", 0)]
    assert queues.totals == Totals(expired=1, dead_lettered=1)


def test_a_receive_stops_at_its_bytes_and_takes_one_always(queues: Queues) -> None:
    queues.publish(4, size=10)
    assert len(queues.receive(bytes_max=25)) == 2
    assert len(queues.receive(bytes_max=5)) == 1
    assert len(queues.receive(limit=1)) == 1
    assert queues.receive() == []


def test_what_cannot_be_handed_out_is_given_back_and_its_pins_are_released(
    queues: Queues,
) -> None:
    queues.publish(2)
    receive = Receive(QUEUE, 10, 2**20)
    received = queues.do(receive)
    assert receive.is_empty(received) is False
    assert [pin.released for pin in queues.files.pins] == [False]
    back = receive.give_back(received)
    assert back is not None
    ended = queues.writer.round(wanted(back))
    assert ended is not None
    assert ended.made_ready == {QUEUE: 2}
    assert [pin.released for pin in queues.files.pins] == [True]
    assert queues.sequences() == [0, 1]
    assert queues.totals.redelivered == 0, "what nobody heard of was no delivery"
    read = read_receipt(received.deliveries[0].receipt)
    assert read is not None
    for other in (
        read._replace(deliveries=2),
        read._replace(store=b"else"),
        read._replace(message=b"nobody"),
        read._replace(inside=9),
    ):
        late = GiveBack(QUEUE, [write_receipt(other)])
        assert queues.do(late) == 0, "it is of another delivery, store, message or queue"


def test_a_queue_that_is_not_there_is_said(queues: Queues) -> None:
    for change in (Receive(id_of(9), 1, 1), ack(id_of(9), ["x"])):
        assert queues.do(change) == ("queue-not-found", "none")


def test_receipts_that_nobody_was_given_are_gone(queues: Queues) -> None:
    queues.publish(1)
    (good,) = queues.receive()
    made_up = good[:-1] + ("A" if good[-1] != "A" else "B")
    settled = queues.do(ack(QUEUE, ["nonsense", made_up]))
    assert settled.done == 0
    assert queues.sums.in_flight == 1


def test_upkeep_does_less_in_a_round_while_others_use_queues(queues: Queues) -> None:
    queues.publish(450, size=1)
    queues.do(PurgeQueue(QUEUE))
    queues.do(Upkeep(200))
    assert len(queues.ledger.live(0)) == 350
    for _ in range(50):
        queues.do(Upkeep(0))
    queues.do(Upkeep(200))
    assert len(queues.ledger.live(0)) == 150


def test_upkeep_does_a_bounded_part_and_says_that_more_is_left(queues: Queues) -> None:
    queues.publish(5)
    queues.receive()
    queues.now += VISIBILITY_MS
    assert [queues.do(Upkeep(2)) for _ in range(3)] == [True, True, False]
    assert queues.sums == Sums(ready=5, bytes=50)


def test_what_is_due_in_a_purged_queue_is_gone_without_a_dead_letter(queues: Queues) -> None:
    queues.configure(max_deliveries=1, dead_letter={"queue": "dead"})
    queues.publish(2)
    queues.receive()
    queues.ledger.begin()
    queues.ledger.purge(QUEUE)
    queues.ledger.commit()
    queues.now += VISIBILITY_MS
    queues.do(Upkeep())
    assert (queues.out(), queues.ledger.live(0)) == ([], [])
    queues.check()
