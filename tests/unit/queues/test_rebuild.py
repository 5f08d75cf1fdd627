"""A lost ledger is made anew of message files and registry: nothing that is needed is lost."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from golden.regenerate import golden
from support.classic_messages import a_term

from bottomless.errors import Corrupt
from bottomless.formats.envelope import decode_envelope, encode_envelope
from bottomless.formats.message_file import encode_file_header, encode_record
from bottomless.formats.queue_object import (
    QueueObject,
    decode_queue_object,
    encode_queue_object,
)
from bottomless.formats.rdq import encode_rdq_record
from bottomless.model.queue import QueueConfig, QueueMessage, QueuePlace
from bottomless.model.record import Content
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.start_plan import Refused
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import SEQUENCE_BLOCK, Ledger
from bottomless_server.queues.offline.inspection import (
    FILES,
    MESSAGES,
    scan_files,
    verify_store,
)
from bottomless_server.queues.offline.rebuild import (
    DAMAGED,
    LOST,
    NO_QUEUE,
    PURGED,
    UNCHECKED,
    Rebuilding,
    RebuildRefused,
    RebuildReport,
    rebuild_store,
)
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import path_of
from bottomless_server.queues.store.start import start_store
from unit.formats.examples import a_msg_id

NOW = 1_795_000_000_000
JOBS, ORDERS = b"j" * 16, b"o" * 16


@pytest.fixture
def store(tmp_path: Path) -> StoreDirectory:
    found = StoreDirectory(RealFileCalls(), tmp_path / "queues")
    found.make()
    register(found, JOBS, "jobs")
    register(found, ORDERS, "orders", purged_below=2)
    return found


def register(
    store: StoreDirectory,
    queue_id: bytes,
    name: str,
    *,
    purged_below: int = 0,
    file: bytes | None = None,
    config: QueueConfig | None = None,
) -> None:
    known = QueueObject(
        queue_id, "default", name, config or QueueConfig(), 3, purged_below, SEQUENCE_BLOCK
    )
    path = store.registry_path / f"{(file or queue_id).hex()}.json"
    path.write_bytes(encode_queue_object(known))


def a_message(value: bytes, *places: tuple[bytes, int], priority: int = 0) -> QueueMessage:
    queues = tuple(QueuePlace(*place) for place in places)
    return QueueMessage(Content.BYTES, priority, 1_000, None, queues, (), value)


def a_body(value: bytes, *places: tuple[bytes, int], priority: int = 0) -> bytes:
    return b"".join(encode_envelope(a_message(value, *places, priority=priority)))


def record(number: int, body: bytes, *, checksum: bool = True) -> bytes:
    return b"".join(encode_record(a_msg_id(number), [body], checksum=checksum))


def write(store: StoreDirectory, number: int, *records: bytes) -> None:
    path_of(store.messages, number).write_bytes(encode_file_header() + b"".join(records))


def write_old(store: StoreDirectory, number: int, values: Sequence[bytes], first: int = 90) -> None:
    data = b"".join(
        encode_rdq_record(a_msg_id(first + count), a_term(value)) + bytes(7)
        for count, value in enumerate(values)
    )
    path_of(store.messages, number, is_version_1=True).write_bytes(data)


def rebuilt(store: StoreDirectory, rebuilding: Rebuilding | None = None) -> RebuildReport:
    return rebuild_store(store, rebuilding or Rebuilding(), now=NOW, stray_id=b"s" * 16)


def opened(store: StoreDirectory) -> Iterator[Ledger]:
    ledger = store.open_ledger()
    yield ledger
    ledger.close()


def contents(store: StoreDirectory) -> dict[str, list[tuple[int, bytes]]]:
    """What consumers would get, by queue, after a start."""
    [ledger] = [store.open_ledger()]
    try:
        start_store(store.files, store.messages, ledger)
        assert ledger.check() == []
        assert verify_store(store, ledger).counts == {}
        reader = Bodies(store.files, store.messages, Descriptors(store.files, 2))
        return {
            row.name: [
                (
                    one.item.sequence,
                    bytes(decode_envelope(reader.read(BodyPlace(*one.message[1:])).body).value),
                )
                for one in ledger.ready(row.inside, 100)
            ]
            for row in ledger.queues("default", "", 100)
        }
    finally:
        ledger.close()


def test_each_message_is_where_its_envelope_says(store: StoreDirectory) -> None:
    write(
        store,
        4,
        record(1, a_body(b"in both", (JOBS, 7), (ORDERS, 3))),
        record(2, a_body(b"urgent", (JOBS, 9), priority=5)),
    )
    write(store, 2, record(3, a_body(b"first", (JOBS, 0))))
    report = rebuilt(store)
    assert (report.item_count, report.queue_count, report.file_count) == (4, 2, 2)
    assert report.findings.counts == {}
    assert contents(store) == {
        "jobs": [(9, b"urgent"), (0, b"first"), (7, b"in both")],
        "orders": [(3, b"in both")],
    }


def test_the_golden_files_are_rebuilt(tmp_path: Path) -> None:
    """A store whose bytes nobody writes anew: what they say is what every release makes of them."""
    store = StoreDirectory(RealFileCalls(), tmp_path / "queues")
    store.make()
    known = golden("queue_object")
    queue = decode_queue_object(known)
    (store.registry_path / f"{queue.queue_id.hex()}.json").write_bytes(known)
    path_of(store.messages, 7).write_bytes(golden("message_file"))
    message = decode_envelope(golden("envelope"))

    # One record has no checksum, and another queue is not in the registry.
    report = rebuilt(store)

    assert (report.item_count, report.queue_count, report.file_count) == (1, 1, 1)
    ledger = store.open_ledger()
    row = ledger.queue_named("default", "jobs")
    assert row is not None
    assert (row.version, row.next_sequence) == (queue.version, queue.reserved_below)
    [item] = [one.item for one in ledger.page(row.inside, 0, 9)]
    ledger.close()
    assert (item.sequence, item.priority) == (message.queues[0].sequence, message.priority)
    assert (item.published_at, item.expires_at) == (message.published_at, message.expires_at)


def test_queues_go_on_above_what_was_reserved_and_with_the_next_file(store: StoreDirectory) -> None:
    write(store, 4, record(1, a_body(b"one", (JOBS, 7))))
    rebuilt(store)
    ledger = store.open_ledger()
    row = ledger.queue_named("default", "jobs")
    assert row is not None
    assert (row.next_sequence, row.version) == (SEQUENCE_BLOCK, 3)
    assert row.reserved_below >= SEQUENCE_BLOCK + SEQUENCE_BLOCK // 2
    assert ledger.store().next_file == 5
    assert ledger.registry_due(1) == [], "the registry has them reserved already"
    first = ledger.store().store_id
    ledger.close()
    store.remove_ledger()
    rebuilt(store)
    ledger = store.open_ledger()
    assert ledger.store().store_id != first, "old receipts are good for nothing"
    row = ledger.queue_named("default", "jobs")
    assert row is not None
    assert row.next_sequence == 3 * SEQUENCE_BLOCK
    ledger.close()


def test_what_was_purged_or_whose_queue_is_gone_does_not_come_back(store: StoreDirectory) -> None:
    write(
        store,
        0,
        record(1, a_body(b"purged", (ORDERS, 1))),
        record(2, a_body(b"in one still", (ORDERS, 0), (JOBS, 4))),
        record(3, a_body(b"deleted", (b"d" * 16, 0))),
    )
    report = rebuilt(store)
    assert report.findings.counts == {PURGED: 2, NO_QUEUE: 1}
    assert contents(store) == {"jobs": [(4, b"in one still")], "orders": []}


def test_of_a_message_in_two_files_that_of_the_higher_number_counts(store: StoreDirectory) -> None:
    body = a_body(b"one", (JOBS, 7))
    write(store, 1, record(1, body), record(2, a_body(b"two", (JOBS, 8))))
    write(store, 3, record(1, body))
    assert rebuilt(store).item_count == 2
    ledger = store.open_ledger()
    assert [(one.msg_id, one.file) for one in [*ledger.live(1), *ledger.live(3)]] == [
        (a_msg_id(2), 1),
        (a_msg_id(1), 3),
    ]
    ledger.close()


def test_damage_costs_what_is_damaged_and_is_said(store: StoreDirectory) -> None:
    bad = bytearray(record(2, a_body(b"damaged", (JOBS, 8))))
    bad[-1] ^= 1
    write(
        store,
        0,
        record(1, a_body(b"one", (JOBS, 7))),
        bytes(bad),
        record(3, a_body(b"three", (JOBS, 9))),
        b"\0torn",
    )
    (store.messages / "5.sqs").write_bytes(b"no header")
    report = rebuilt(store)
    assert report.findings.counts == {DAMAGED: 1, LOST: 2}
    ledger = store.open_ledger()
    assert {row.number: row.state for row in ledger.files()} == {
        0: FileState.DAMAGED,
        5: FileState.DAMAGED,
    }
    ledger.close()
    assert contents(store)["jobs"] == [(7, b"one"), (9, b"three")]


def test_a_message_without_a_checksum_is_believed_only_where_that_is_said(
    store: StoreDirectory,
) -> None:
    write(store, 0, record(1, a_body(b"one", (JOBS, 7)), checksum=False))
    report = rebuilt(store)
    assert (report.item_count, report.findings.counts) == (0, {UNCHECKED: 1})
    store.remove_ledger()
    assert rebuilt(store, Rebuilding(take_unchecked=True)).item_count == 1


def test_messages_of_version_1_go_where_somebody_says(store: StoreDirectory) -> None:
    write_old(store, 0, [b"old one", b"old two"])
    write_old(store, 1, [b"old two again", b"old three"], first=91)
    write(store, 2, record(1, a_body(b"one", (JOBS, 7))), record(90, a_body(b"moved", (JOBS, 8))))
    with pytest.raises(RebuildRefused, match=r"there are 3 messages of version 1.*--strays NAME"):
        rebuilt(store)
    report = rebuilt(store, Rebuilding(strays="strays"))
    assert (report.stray_count, report.item_count, report.last_v1_file) == (2, 2, 1)
    found = contents(store)
    assert found["jobs"] == [(7, b"one"), (8, b"moved")]
    assert [value for _, value in found["strays"]] == [b"old two", b"old three"]


def test_strays_may_go_into_a_queue_that_is_there(store: StoreDirectory) -> None:
    write_old(store, 0, [b"old"])
    rebuilt(store, Rebuilding(strays="jobs"))
    assert contents(store)["jobs"] == [(SEQUENCE_BLOCK, b"old")]


def test_the_time_to_live_of_a_queue_counts_from_the_publish(store: StoreDirectory) -> None:
    register(store, JOBS, "jobs", config=QueueConfig(message_ttl_ms=500))
    write(store, 0, record(1, a_body(b"one", (JOBS, 7))))
    rebuilt(store)
    ledger = store.open_ledger()
    row = ledger.queue_named("default", "jobs")
    assert row is not None
    assert [one.item.expires_at for one in ledger.ready(row.inside, 9)] == [1_500]
    ledger.close()


def test_what_was_delayed_by_its_publish_waits_still(store: StoreDirectory) -> None:
    register(store, ORDERS, "orders", config=QueueConfig(delay_ms=1_000))
    later = a_message(b"later", (JOBS, 7))._replace(due_at=NOW + 1)
    over = a_message(b"over", (JOBS, 8))._replace(due_at=NOW)
    by_queue = a_message(b"as the queue", (ORDERS, 0))._replace(published_at=NOW - 400)
    messages = [b"".join(encode_envelope(one)) for one in (later, over, by_queue)]
    write(store, 0, *(record(number, body) for number, body in enumerate(messages)))
    rebuilt(store)
    ledger = store.open_ledger()
    found = {}
    for name in ("jobs", "orders"):
        row = ledger.queue_named("default", name)
        assert row is not None
        for one in ledger.page(row.inside, 0, 9):
            found[name, one.item.sequence] = (one.item.state, one.item.due_at)
    ledger.close()
    assert found == {
        ("jobs", 7): (ItemState.DELAYED, NOW + 1),
        ("jobs", 8): (ItemState.READY, None),
        ("orders", 0): (ItemState.DELAYED, NOW + 600),
    }


def test_nothing_is_rebuilt_over_a_ledger_or_a_log_or_half_an_import(store: StoreDirectory) -> None:
    rebuilt(store)
    with pytest.raises(RebuildRefused, match="there is a ledger"):
        rebuilt(store)
    (store.path / "ledger.db").rename(store.path / "aside.db")
    (store.path / "ledger.db-wal").write_bytes(b"")
    with pytest.raises(RebuildRefused, match="there is a ledger"):
        rebuilt(store)
    (store.path / "ledger.db-wal").unlink()
    (store.path / "import").touch()
    with pytest.raises(Refused, match="an import into this store was cut off"):
        rebuilt(store)


def test_without_a_registry_messages_are_not_thrown_away(store: StoreDirectory) -> None:
    write(store, 0, record(1, a_body(b"one", (JOBS, 7))))
    for path in store.registry_path.iterdir():
        path.unlink()
    with pytest.raises(RebuildRefused, match="bring registry/ back first"):
        rebuilt(store)
    assert not store.has_ledger()
    assert sorted(path.name for path in store.path.iterdir()) == ["messages", "registry"]


def test_two_objects_of_one_queue_are_for_an_operator_to_sort_out(store: StoreDirectory) -> None:
    register(store, b"x" * 16, "jobs")
    with pytest.raises(Corrupt, match="two objects of the registry are of the queue jobs"):
        rebuilt(store)


def test_a_dry_run_says_the_same_and_leaves_nothing(store: StoreDirectory) -> None:
    write(store, 0, record(1, a_body(b"one", (JOBS, 7))))
    before = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
    report = rebuild_store(store, Rebuilding(), now=NOW, stray_id=b"s" * 16, dry_run=True)
    assert report.item_count == 1
    assert {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()} == before


def test_a_scan_says_what_lies_in_files_without_a_ledger(store: StoreDirectory) -> None:
    write(store, 1, record(1, a_body(b"one", (JOBS, 7))), b"\x02\0\0\0\x09dead", b"\0")
    write_old(store, 0, [b"old"])
    old, new = scan_files(store)
    assert (old.name, old.counts) == ("0.rdq", {"message": 1})
    assert (new.name, new.counts) == ("1.sqs", {"message": 1, "hole": 1, "lost": 1})
    assert sum(new.bytes.values()) == new.size - 64


def test_a_check_finds_what_the_ledger_is_wrong_about(store: StoreDirectory) -> None:
    write(store, 0, record(1, a_body(b"one", (JOBS, 7))), record(2, a_body(b"two", (JOBS, 8))))
    rebuilt(store)
    path = path_of(store.messages, 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data) + b"more")
    (store.messages / "7.sqs").touch()
    ledger = store.open_ledger()
    findings = verify_store(store, ledger)
    ledger.close()
    assert findings.counts == {FILES: 2, MESSAGES: 1}
    assert "its checksum is wrong" in findings.named(MESSAGES)[0]
