"""Files of version 1: read where they lie, gone when they are empty, and written anew without a loss."""

import random
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import Finding, decode_record, reads_of, scan
from bottomless.model.queue import QueuePlace
from bottomless_server.node.file_calls import read_file
from bottomless_server.queues.core.start_plan import Refused, V1Files
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import Stored
from bottomless_server.queues.store.alone import a_round, drive_alone
from bottomless_server.queues.store.compaction import Ended, compact
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.migrating import migrate
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from bottomless_server.queues.store.steps import Step
from unit.queues.version_1_harness import QUEUE_IDS, ROOT, OldStore, PowerLost

FIRST = [b"%d of file %d" % (count, number) for number in range(2) for count in range(6)]
BOTH = [b"%d of file %d" % (count, number) for number in range(2) for count in (0, 3)]


def test_messages_are_read_where_they_lie() -> None:
    store = OldStore()
    report = store.start()
    assert (report.last_v1_file, report.damaged_count, report.migration.rewritten) == (1, 0, ())
    assert (store.values_of(0), store.values_of(1)) == (FIRST, BOTH)
    assert store.names() == ["0.rdq", "1.rdq"]


def test_a_file_of_which_nothing_is_needed_is_removed() -> None:
    store = OldStore()
    store.start()
    for number in range(2):
        store.ack(*(one for one in store.items(number) if one.message.file == 0))
    doomed = [row.number for row in store.ledger.files() if row.state is FileState.DOOMED]
    assert doomed == [0]
    descriptors = Descriptors(store.disk, 1)
    drive_alone(store.ledger, remove_doomed(store.disk, ROOT, 0, descriptors, is_version_1=True))
    assert store.names() == ["1.rdq"]
    assert store.start().last_v1_file == 1
    assert store.values_of(0) == FIRST[6:]


def test_one_that_is_worth_a_compaction_is_written_anew_and_never_written_to() -> None:
    store = OldStore()
    store.start()
    store.ack(*store.items(0)[1:3], *store.items(0)[4:6], store.items(1)[0])
    before = read_file(store.disk, ROOT / "0.rdq", 10_000)
    result = drive_alone(store.ledger, compact(store.disk, ROOT, 0))
    assert result.ended is Ended.REWRITE
    assert read_file(store.disk, ROOT / "0.rdq", 10_000) == before
    result = drive_alone(store.ledger, rewrite(store.disk, ROOT, 0))
    assert result.ended is Ended.COMPACTED
    assert store.names() == ["0.rdq", "1.rdq", "2.sqs"]
    assert store.values_of(0) == [FIRST[0], FIRST[3], *FIRST[6:]]
    assert store.values_of(1) == BOTH[1:]
    assert store.ledger.check() == []
    row = store.ledger.file(0)
    assert row is not None
    assert row.state is FileState.DOOMED


def test_what_is_written_anew_says_where_it_was_published_and_when() -> None:
    store = OldStore()
    store.start(V1Files.MIGRATE)
    data = read_file(store.disk, ROOT / "2.sqs", 10_000)
    found = [one for one in scan(reads_of(data), len(data)) if one.what is Finding.MESSAGE]
    assert len(found) == 6
    assert all(one.checked for one in found)
    first = found[0]
    body = decode_record(data[first.position : first.position + first.size]).body
    message = decode_envelope(body)
    assert message.queues == (QueuePlace(QUEUE_IDS[0], 0), QueuePlace(QUEUE_IDS[1], 0))
    assert (message.published_at, message.priority, message.value) == (1_000, 0, FIRST[0])
    assert ("amqp-routing-key", b"jobs") in message.headers
    third = decode_record(data[found[4].position : found[4].position + found[4].size]).body
    assert decode_envelope(third).priority == 4


def test_a_start_writes_all_of_them_anew_if_it_is_to() -> None:
    store = OldStore()
    report = store.start(V1Files.MIGRATE)
    assert (report.migration.rewritten, report.migration.message_count) == ((0, 1), 12)
    assert (report.last_v1_file, report.migration.kept) == (None, ())
    assert store.names() == ["2.sqs", "3.sqs"]
    assert (store.values_of(0), store.values_of(1)) == (FIRST, BOTH)
    assert store.ledger.check() == []
    assert store.start(V1Files.REFUSE).last_v1_file is None


def test_items_keep_their_state_when_their_messages_are_written_anew() -> None:
    store = OldStore()
    store.start()
    taken = store.items(0)[1]
    item = taken.item._replace(state=ItemState.IN_FLIGHT, due_at=77, deliveries=3)
    with a_round(store.ledger):
        store.ledger.change_items([(taken, item)])
    migrate(store.disk, ROOT, store.ledger)
    assert store.items(0)[1].item == item
    assert store.ledger.check() == []


def test_what_is_acknowledged_while_a_file_is_written_anew_does_not_come_back() -> None:
    store = OldStore()
    store.start()
    gone = store.items(0)[0]
    acknowledged: list[Stored] = []

    def steps() -> Generator[Step, Any, None]:
        inner = rewrite(store.disk, ROOT, 0)
        sent = None
        with suppress(StopIteration):
            while True:
                step = inner.send(sent)
                if not acknowledged and "2.sqs" in store.names():
                    store.ack(gone)
                    acknowledged.append(gone)
                sent = yield step

    drive_alone(store.ledger, steps())
    assert acknowledged
    assert store.values_of(0) == FIRST[1:]
    assert store.values_of(1) == BOTH, "the other queue has it still"
    assert store.ledger.check() == []


def test_a_start_that_may_have_none_names_them_and_the_way() -> None:
    store = OldStore()
    with pytest.raises(Refused, match=r"0\.rdq, 1\.rdq; run `bottomless queue-store migrate`"):
        store.start(V1Files.REFUSE)
    assert store.start().last_v1_file == 1


def test_a_message_of_no_known_shape_stays_and_is_damaged_and_said() -> None:
    store = OldStore(file_count=1)
    number = store.add_file(3, bad=1)
    with a_round(store.ledger):
        store.ledger.set_last_v1_file(number)
    report = store.start(V1Files.MIGRATE)
    assert (report.migration.rewritten, report.migration.kept) == ((0,), (1,))
    assert (report.migration.unreadable_count, report.last_v1_file) == (1, 1)
    assert "1.rdq" in report.migration.reasons[0]
    assert "Erlang term is corrupt" in report.migration.reasons[0]
    states = [one.item.state for one in store.items(0)]
    assert states == [ItemState.READY] * 7 + [ItemState.DAMAGED] + [ItemState.READY]
    assert store.ledger.check() == []
    store.ack(store.items(0)[7])
    assert store.start(V1Files.MIGRATE).last_v1_file is None, "its file has gone with it"


def test_a_migration_that_dies_anywhere_loses_nothing_and_goes_on() -> None:
    whole = OldStore()
    whole.start(V1Files.MIGRATE)
    chance = random.Random(7)
    seen: set[tuple[str, ...]] = set()
    for dies_at in range(whole.calls):
        store = OldStore()
        store.dies_at = dies_at
        with pytest.raises(PowerLost):
            store.start(V1Files.MIGRATE)
        for mode in (V1Files.READ, V1Files.MIGRATE):
            other = store.after_power_loss(chance)
            seen.add(tuple(other.names()))
            report = other.start(mode)
            assert (report.damaged_count, report.lost) == (0, ())
            assert (other.values_of(0), other.values_of(1)) == (FIRST, BOTH)
            assert other.ledger.check() == []
            if mode is V1Files.MIGRATE:
                assert other.ledger.store().last_v1_file is None
                assert not [name for name in other.names() if name.endswith(".rdq")]
    assert len(seen) > 5, "it died in different states"
