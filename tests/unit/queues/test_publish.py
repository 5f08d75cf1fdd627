"""Publish: fan-out, repeats, bounds and lives, each in a round of its own, on a ledger in memory."""

import json
from typing import Any

import pytest
from support.guards import remove
from support.ledgers import id_of
from support.queue_changes import wanted

from bottomless.errors import StoreError
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import decode_record
from bottomless.model.queue import QueueMessage
from bottomless_server.queues.calls import (
    OutMessage,
    PublishAnswer,
    PublishedMessage,
    PublishRequest,
)
from bottomless_server.queues.changes.publish import Publish
from bottomless_server.queues.changes.receive import Receive, Received
from bottomless_server.queues.changes.settle import ack
from bottomless_server.queues.core.repeats import Repeat
from bottomless_server.queues.core.reserving import BLOCK
from bottomless_server.queues.core.states import ItemState
from bottomless_server.queues.ledger.base import QueueRow, Stored, Totals
from unit.queues.round_harness import RoundHarness

NAMES = ("jobs", "mail")


class Queues(RoundHarness):
    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.ledger.begin()
        self.ledger.create_queue(id_of(2), "default", "mail", "{}")
        self.ledger.commit()
        self.round()

    def configure(self, name: str, **members: Any) -> None:
        self.ledger.begin()
        self.ledger.set_config(self.row(name).queue_id, json.dumps(members))
        self.ledger.commit()
        self.round()

    def row(self, name: str) -> QueueRow:
        row = self.ledger.queue_named("default", name)
        assert row is not None
        return row

    def items(self, name: str) -> list[Stored]:
        return self.ledger.page(self.row(name).inside, 0, 1_000)

    def publish(
        self, *names: str, messages: list[OutMessage] | None = None, most: int = 10, **more: Any
    ) -> Any:
        self.requests += 1
        request = PublishRequest("default", names, messages or [OutMessage(b"v")], **more)
        return self.do(Publish(request, self.requests.to_bytes(10, "big"), dedup_count_max=most))

    def refusal(self, *names: str, messages: list[OutMessage]) -> StoreError:
        """Why a publish is refused, with all that is told of it."""
        self.requests += 1
        request = PublishRequest("default", names, messages)
        change = Publish(request, self.requests.to_bytes(10, "big"))
        ended = self.writer.round(wanted(change))
        assert ended is not None
        error = ended.verdicts[0].error
        assert isinstance(error, StoreError)
        return error

    def told(self, *names: str, **more: Any) -> list[PublishedMessage]:
        """Answers, one queue after the other."""
        answer = self.publish(*names, **more)
        assert isinstance(answer, PublishAnswer), answer
        return [one for each in answer.queues for one in each.messages]

    def read(self, stored: Stored) -> QueueMessage:
        place = stored.message
        data = self.files.kept[place.file][place.position : place.position + place.size]
        record = decode_record(data)
        assert record.msg_id == place.msg_id
        return decode_envelope(record.body)

    def take(self, name: str) -> list[str]:
        received: Received = self.do(Receive(self.row(name).queue_id, 100, 2**20))
        received.release()
        return [each.receipt for each in received.deliveries]


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_a_fan_out_writes_one_record_that_names_all_of_its_queues(queues: Queues) -> None:
    queues.publish("mail", messages=[OutMessage(b"before")])
    told = queues.told("jobs", "mail", messages=[OutMessage(b"one"), OutMessage(b"two")])
    assert [(one.sequence, one.duplicate) for one in told] == [
        (0, False),
        (1, False),
        (1, False),
        (2, False),
    ]
    assert told[0].message_id == told[2].message_id
    assert int.from_bytes(told[1].message_id) == int.from_bytes(told[0].message_id) + 1
    first, second = queues.items("jobs")
    assert [each.message for each in queues.items("mail")[1:]] == [first.message, second.message]
    message = queues.read(second)
    assert bytes(message.value) == b"two"
    assert message.queues == ((queues.row("jobs").queue_id, 1), (queues.row("mail").queue_id, 2))
    queues.check()


def test_a_publish_into_a_queue_that_is_not_there_is_stored_in_none(queues: Queues) -> None:
    assert queues.publish("jobs", "nobody") == ("queue-not-found", "none")
    assert queues.items("jobs") == []
    queues.check()


def test_a_repeat_with_the_same_key_is_told_the_same_ids_when_the_messages_are_gone(
    queues: Queues,
) -> None:
    messages = [OutMessage(b"one"), OutMessage(b"two")]
    first = queues.told("jobs", "mail", messages=messages, principal="me", key="k", body_hash=b"h")
    for name in NAMES:
        queues.do(ack(queues.row(name).queue_id, queues.take(name)))
    again = queues.publish(
        "mail", "jobs", messages=messages, principal="me", key="k", body_hash=b"h"
    )
    assert again.replayed
    by_queue = [one for each in reversed(again.queues) for one in each.messages]
    assert by_queue == [one._replace(duplicate=True) for one in first]
    assert queues.items("jobs") == queues.items("mail") == []
    assert queues.row("jobs").totals == Totals(published=2, delivered=2, acked=2, duplicates=2)


def test_without_its_guard_a_repeat_is_stored_twice(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(
        monkeypatch,
        "a repeat of a publish is told what the first one was told",
        lambda *_: Repeat.NEW,
    )
    with pytest.raises(AssertionError):
        test_a_repeat_with_the_same_key_is_told_the_same_ids_when_the_messages_are_gone(queues)


@pytest.mark.parametrize(
    "other", [{"body_hash": b"other"}, {"names": ("jobs",)}], ids=["body", "queues"]
)
def test_a_key_that_was_used_for_something_else_is_refused(
    queues: Queues, other: dict[str, Any]
) -> None:
    queues.publish("jobs", "mail", principal="me", key="k", body_hash=b"h")
    names = other.pop("names", NAMES)
    request = {"principal": "me", "key": "k", "body_hash": b"h", **other}
    assert queues.publish(*names, **request) == ("idempotency-mismatch", "none")
    assert len(queues.items("jobs")) == 1


def test_the_same_key_of_another_principal_is_another_key(queues: Queues) -> None:
    for principal in ("me", "you"):
        (told,) = queues.told("jobs", principal=principal, key="k", body_hash=b"h")
        assert not told.duplicate


def test_a_dedup_id_stores_its_message_once_in_each_queue(queues: Queues) -> None:
    one = OutMessage(b"one", dedup_id="a")
    (first,) = queues.told("jobs", messages=[one])
    told = queues.told("jobs", "mail", messages=[one, OutMessage(b"two"), one])
    assert [(each.sequence, each.duplicate) for each in told] == [
        (0, True),
        (1, False),
        (0, True),
        (0, False),
        (1, False),
        (0, True),
    ]
    assert told[0].message_id == told[2].message_id == first.message_id
    # The other queue did not know it: there it is a message of this request.
    assert told[3].message_id != first.message_id
    assert queues.read(queues.items("mail")[0]).queues == ((queues.row("mail").queue_id, 0),)


@pytest.mark.parametrize(
    "other",
    [
        {"value": b"2"},
        {"priority": 1},
        {"headers": (("a", b""),)},
        {"headers": (("a", b"b"), ("c", b""))},
        {"delay_ms": 0},
        {"ttl_ms": 5},
    ],
)
def test_a_dedup_id_of_another_message_is_refused(queues: Queues, other: dict[str, Any]) -> None:
    one = OutMessage(b"1", dedup_id="a")
    queues.publish("jobs", messages=[one])
    refused = ("idempotency-mismatch", "none")
    assert queues.publish("jobs", messages=[one._replace(**other)]) == refused
    both = [one._replace(dedup_id="b"), one._replace(dedup_id="b", **other)]
    assert queues.publish("jobs", messages=both) == refused
    assert len(queues.items("jobs")) == 1


def test_the_message_is_named_whose_dedup_id_is_of_another_one(queues: Queues) -> None:
    one = OutMessage(b"1", dedup_id="a")
    queues.publish("jobs", messages=[one])
    good, other = OutMessage(b"2", dedup_id="b"), one._replace(value=b"3")
    for messages in ([good, other], [good, good._replace(value=b"3")]):
        (fault,) = queues.refusal("jobs", messages=messages).faults
        assert (fault.code, fault.pointer) == ("idempotency-mismatch", "/messages/1/dedup_id")


def test_a_queue_forgets_a_repeat_when_its_time_is_over_and_not_before(queues: Queues) -> None:
    queues.configure("jobs", dedup_ms=1_000)
    one = OutMessage(b"one", dedup_id="a")
    queues.publish("jobs", messages=[one])
    queues.now += 999
    assert queues.told("jobs", messages=[one])[0].duplicate
    queues.now += 1
    assert not queues.told("jobs", messages=[one])[0].duplicate


def test_a_queue_that_remembers_as_many_as_it_can_refuses_new_keys_and_no_repeat(
    queues: Queues,
) -> None:
    messages = [OutMessage(b"", dedup_id=name) for name in "ab"]
    queues.publish("jobs", messages=messages, most=2)
    new = OutMessage(b"", dedup_id="c")
    refused = ("quota-exceeded", "none")
    assert queues.publish("jobs", messages=[new], most=2) == refused
    assert queues.publish("jobs", key="k", body_hash=b"h", most=2) == refused
    assert queues.told("jobs", messages=messages, most=2)[0].duplicate
    assert not queues.told("jobs", most=2)[0].duplicate
    queues.configure("jobs", dedup_ms=0)
    assert not queues.told("jobs", messages=[new], most=2)[0].duplicate
    assert not queues.told("jobs", messages=[new], most=2)[0].duplicate


def test_a_full_queue_refuses_a_publish_for_all_queues(queues: Queues) -> None:
    queues.configure("jobs", max_messages=2)
    queues.publish("jobs")
    three = [OutMessage(b"v")] * 2
    assert queues.publish("mail", "jobs", messages=three) == ("queue-full", "none")
    assert queues.items("mail") == []
    assert queues.told("mail", "jobs")[1].sequence == 1
    # Of all that a refused publish did nothing stays but that it was counted.
    assert queues.row("jobs").totals == Totals(published=2, refused=2)
    assert queues.row("mail").totals == Totals(published=1)


def test_the_first_messages_make_room_and_become_dead_letters(queues: Queues) -> None:
    queues.configure("jobs", max_messages=2, overflow="drop-head", dead_letter={"queue": "mail"})
    queues.publish("jobs", messages=[OutMessage(b"1"), OutMessage(b"2")])
    told = queues.told("jobs", messages=[OutMessage(b"3")])
    assert told[0].sequence == 2
    assert [bytes(queues.read(each).value) for each in queues.items("jobs")] == [b"2", b"3"]
    (target,) = queues.ledger.targets()
    assert len(queues.ledger.outgoing(target.id, 10)) == 1
    totals = queues.row("jobs").totals
    assert (totals.dropped, totals.dead_lettered) == (1, 1)


def test_what_is_in_flight_is_not_dropped(queues: Queues) -> None:
    queues.configure("jobs", max_messages=1, overflow="drop-head")
    queues.publish("jobs")
    assert len(queues.take("jobs")) == 1
    assert queues.publish("jobs") == ("queue-full", "none")


def test_more_than_a_queue_can_ever_hold_is_refused(queues: Queues) -> None:
    queues.configure("jobs", max_bytes=1_000, overflow="drop-head")
    queues.publish("jobs")
    small, large = OutMessage(bytes(600)), OutMessage(bytes(2_000))
    refused = queues.refusal("jobs", messages=[small, large])
    assert (refused.code, refused.retryable) == ("record-too-large", False)
    assert [fault.pointer for fault in refused.faults] == ["/messages/1"]
    refused = queues.refusal("jobs", messages=[small] * 2)
    assert (refused.code, refused.retryable) == ("batch-too-large", False)
    assert refused.facts == {"queue": "jobs", "max_bytes": 1_000}
    assert len(queues.items("jobs")) == 1


@pytest.mark.parametrize("overflow", ["reject", "drop-head"])
def test_more_messages_than_a_queue_can_ever_hold_are_refused_for_good(
    queues: Queues, overflow: str
) -> None:
    queues.configure("jobs", max_messages=2, overflow=overflow)
    refused = queues.refusal("mail", "jobs", messages=[OutMessage(b"v")] * 3)
    assert (refused.code, refused.retryable) == ("batch-too-large", False)
    assert queues.items("mail") == queues.items("jobs") == []


def test_a_repeat_into_a_full_queue_is_answered_all_the_same(queues: Queues) -> None:
    queues.publish("jobs", key="k", body_hash=b"h")
    queues.configure("jobs", max_messages=1)
    assert queues.told("jobs", key="k", body_hash=b"h")[0].duplicate
    queues.configure("jobs")
    queues.publish("jobs", messages=[OutMessage(b"v")] * 2)
    queues.configure("jobs", max_messages=1)
    assert queues.told("jobs", key="k", body_hash=b"h")[0].duplicate


def test_a_message_has_its_delay_its_life_and_its_priority(queues: Queues) -> None:
    queues.configure("mail", delay_ms=50, message_ttl_ms=70)
    one = OutMessage(b"v", headers=(("a", b"b"),), priority=7, ttl_ms=100)
    queues.publish("jobs", "mail", messages=[one, one._replace(delay_ms=0)])
    now = queues.now
    lives = {
        name: [
            (each.item.state, each.item.due_at, each.item.expires_at, each.item.priority)
            for each in queues.items(name)
        ]
        for name in NAMES
    }
    assert lives == {
        "jobs": [(ItemState.READY, None, now + 100, 7)] * 2,
        "mail": [
            (ItemState.DELAYED, now + 50, now + 70, 7),
            (ItemState.READY, None, now + 70, 7),
        ],
    }
    message = queues.read(queues.items("mail")[0])
    # Its own end goes with it wherever it is; that of a queue is the queue's.
    assert (message.expires_at, message.priority) == (now + 100, 7)
    assert message.headers == (("a", b"b"),)


def test_the_registry_reserves_numbers_before_they_are_used(queues: Queues) -> None:
    queues.publish("jobs")
    assert queues.registry.rows[queues.row("jobs").queue_id].reserved_below == BLOCK


def test_a_queue_whose_registry_object_is_not_written_takes_nothing(queues: Queues) -> None:
    queues.registry.fails = True
    queues.ledger.begin()
    queues.ledger.reserve(queues.row("jobs").queue_id, 2 * BLOCK)
    queues.ledger.commit()
    queues.round()
    assert queues.publish("mail", "jobs") == ("storage-failed", "none")
    queues.registry.fails = False
    queues.round()
    assert not isinstance(queues.publish("mail", "jobs"), StoreError)


def test_a_record_says_when_its_message_becomes_ready_if_that_was_asked(queues: Queues) -> None:
    queues.configure("jobs", delay_ms=50)
    asked = [OutMessage(b"a"), OutMessage(b"b", delay_ms=7), OutMessage(b"c", delay_ms=0)]
    queues.publish("jobs", "mail", messages=asked)
    said = []
    for _, message in queues.items("jobs"):
        record = queues.files.kept[message.file][message.position :][: message.size]
        said.append(decode_envelope(decode_record(record).body).due_at)
    assert said == [None, queues.now + 7, queues.now]
    due = [each.item.due_at for each in queues.items("jobs")]
    assert due == [queues.now + 50, queues.now + 7, None]
