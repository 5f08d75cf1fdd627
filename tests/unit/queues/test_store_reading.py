"""Bodies are read under pins: the right ones, or none; and files that nobody needs go when nobody reads."""

import errno
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.guards import remove

from bottomless.errors import Corrupt
from bottomless.formats.message_file import StoredMessage
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger, Message, Move
from bottomless_server.queues.store.compaction import Ended, compact
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.names import FileName, parse_file_name
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from unit.queues.store_harness import ROOT, PowerLost, Store


class Readers:
    """Consumers that were told in a round where bodies lie, and read them later."""

    def __init__(self, store: Store, messages: list[Message]) -> None:
        self.store = store
        self.waiting = [(message, store.ledger.store().round) for message in messages]
        for message, round_ in self.waiting:
            store.pins.pin(message.file, round_)

    def read_one(self) -> None:
        message, round_ = self.waiting.pop()
        assert self.store.read(message) == self.store.bodies[message.msg_id]
        self.store.pins.unpin(message.file, round_)

    def read_all(self) -> None:
        while self.waiting:
            self.read_one()
        assert self.store.pins.count == 0


def half_dead() -> tuple[Store, Readers]:
    """A file of which a third is needed, with readers of everything in it."""
    store = Store()
    chance = random.Random(5)
    ids = []
    for _ in range(12):
        ids += store.publish([chance.randbytes(chance.randrange(900))]) or []
    readers = Readers(store, store.live())
    store.ack(set(ids) - set(ids[2::3]))
    store.seal()
    return store, readers


def compacted_under_readers() -> None:
    store, readers = half_dead()
    result = store.drive(compact(store.disk, ROOT, 0, has_room=False), wait=readers.read_one)
    assert result.ended is Ended.COMPACTED
    readers.read_all()
    store.check_ledger()
    store.check_files()


def removed_under_readers() -> None:
    store, readers = half_dead()
    store.ack([message.msg_id for message in store.live()])
    store.drive(remove_doomed(store.disk, ROOT, 0, store.descriptors), wait=readers.read_one)
    readers.read_all()
    assert store.disk.names(ROOT) == []
    assert store.ledger.files() == []


def test_readers_get_their_bodies_whatever_is_moved_cut_or_removed_meanwhile() -> None:
    compacted_under_readers()
    removed_under_readers()


def test_without_pins_a_reader_would_get_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "pins before a destination, the cut and the unlink", lambda *_: True)
    with pytest.raises(Corrupt):
        compacted_under_readers()
    with pytest.raises(FileNotFoundError):
        removed_under_readers()


def compacted_beside_an_acknowledgement() -> None:
    """What was about to move is acknowledged while it is copied, and something new is published."""
    store, readers = half_dead()
    readers.read_all()
    steps = 0

    def between() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            store.ack([max(store.live(), key=lambda message: message.position).msg_id])
            store.publish([b"new"])

    result = store.drive(compact(store.disk, ROOT, 0, has_room=False), between=between)
    assert result.ended is Ended.COMPACTED
    store.check_ledger()
    store.check_files()


def test_what_is_acknowledged_while_it_is_copied_is_gone() -> None:
    compacted_beside_an_acknowledgement()


def test_without_its_condition_a_move_gives_its_place_to_another_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_number(ledger: Ledger, moves: Sequence[Move]) -> int:
        """Who goes by a message's number alone meets the one that has the number now."""
        there = {one.position for one in ledger.live(0)}
        (new,) = ledger.live(1)
        return ledger.move(
            [
                each
                if each.position in there
                else Move(new.msg_id, new.file, new.position, 0, each.new_position)
                for each in moves
            ]
        )

    remove(monkeypatch, "only what is where its move says gets a new place", by_number)
    with pytest.raises((AssertionError, Corrupt)):
        compacted_beside_an_acknowledgement()


def test_a_pin_of_a_later_round_holds_up_nothing() -> None:
    pins = Pins()
    pins.pin(1, 7)
    pins.pin(1, 7)
    pins.pin(2, 3)
    assert [pins.is_free(1, up_to) for up_to in (6, 7, 8)] == [True, False, False]
    pins.unpin(1, 7)
    assert not pins.is_free(1, 7)
    pins.unpin(1, 7)
    assert pins.is_free(1, 9)
    assert pins.count == 1


def test_any_threads_pin_and_let_go_at_once() -> None:
    pins, ended = Pins(), list[int]()

    def read() -> None:
        for number in range(3_000):
            pins.pin(0, number % 3)
            assert not pins.is_free(0, 2)
            pins.unpin(0, number % 3)
        ended.append(1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (len(ended), pins.count) == (3, 0)


def test_acks_between_any_two_steps_of_a_compaction_disturb_nothing() -> None:
    for seed in range(6):
        chance = random.Random(seed)
        store, readers = half_dead()
        readers.read_all()

        def ack_one(chance: random.Random = chance, store: Store = store) -> None:
            live = store.live()
            if live:
                store.ack([chance.choice(live).msg_id])

        work = compact if seed % 2 else rewrite
        store.drive(work(store.disk, ROOT, 0), between=ack_one)
        store.check_ledger()
        store.check_files()
        store.check_started()


@pytest.mark.parametrize("point", range(6))
def test_a_purge_between_any_two_steps_of_a_compaction_takes_all_of_the_file(point: int) -> None:
    store, readers = half_dead()
    readers.read_all()
    steps = 0

    def purge_once() -> None:
        nonlocal steps
        if steps == point:
            store.purge()
        steps += 1

    store.drive(compact(store.disk, ROOT, 0, has_room=False), between=purge_once)
    assert steps > point
    store.check_files()
    store.check_ledger()
    [doomed] = store.started().doomed
    store.drive(remove_doomed(store.disk, ROOT, doomed, store.descriptors))
    assert store.disk.names(ROOT) == []


def test_a_file_of_which_all_goes_while_it_is_compacted_is_doomed() -> None:
    store, readers = half_dead()
    readers.read_all()
    gone = [message.msg_id for message in store.live()]

    def ack_all() -> None:
        row = store.ledger.file(0)
        assert row is not None
        if row.state is FileState.MOVING and row.valid:
            store.ack(gone)

    store.drive(compact(store.disk, ROOT, 0, has_room=False), between=ack_all)
    assert [row.state for row in store.ledger.files()] == [FileState.DOOMED]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("work", ["compact", "rewrite"])
def test_whatever_call_fails_the_file_is_as_it_was_or_done(work: str, number: int) -> None:
    failed = 0
    for point in range(60):
        store, readers = half_dead()
        readers.read_all()
        calls = 0

        def fault(call: str, path: Path, point: int = point) -> None:
            nonlocal calls
            calls += 1
            if calls - 1 == point:
                raise OSError(number, os.strerror(number), f"{path}: {call}")

        store.fault = fault
        steps = (
            compact(store.disk, ROOT, 0, has_room=False)
            if work == "compact"
            else rewrite(store.disk, ROOT, 0)
        )
        result = store.drive(steps)
        store.fault = lambda *_: None
        assert (result.ended is Ended.FAILED) is (calls > point)
        failed += calls > point
        store.check_ledger()
        store.check_files()
        for seed in range(3):
            found = store.after_power_loss(random.Random(seed))
            found.check_files()
            found.check_started()
        if calls <= point:
            break
    assert failed > 8


def damaged(store: Store, position: int, data: bytes) -> None:
    fd = store.disk.open(ROOT / "0.sqs")
    store.disk.pwritev(fd, [data], position)
    store.disk.fdatasync(fd)
    store.disk.close(fd)


def test_a_record_with_a_wrong_checksum_moves_as_it_is_and_no_other_is_held_up() -> None:
    store, readers = half_dead()
    readers.read_all()
    last = store.live()[-1]
    damaged(store, last.position + 25, b"\xff\xff")
    result = store.drive(compact(store.disk, ROOT, 0, has_room=False))
    assert result.ended is Ended.COMPACTED
    for message in store.live()[:-1]:
        assert store.read(message) == store.bodies[message.msg_id]
    with pytest.raises(Corrupt, match="checksum"):
        store.read(store.live()[-1])


@pytest.mark.parametrize("work", ["compact", "rewrite"])
def test_a_file_with_a_record_that_is_none_is_left_for_an_operator(work: str) -> None:
    store, readers = half_dead()
    readers.read_all()
    damaged(store, store.live()[-1].position, b"\0")
    steps = (
        compact(store.disk, ROOT, 0, has_room=False)
        if work == "compact"
        else rewrite(store.disk, ROOT, 0)
    )
    assert store.drive(steps).ended is Ended.DAMAGED
    assert [row.state for row in store.ledger.files()] == [FileState.DAMAGED]


def test_a_body_is_never_another_one() -> None:
    store = Store()
    store.publish([b"one", b"two"])
    one, two = store.live()
    for wrong in (
        one._replace(msg_id=two.msg_id),
        one._replace(position=two.position),
        one._replace(size=one.size - 1),
        one._replace(position=two.position + two.size),
    ):
        with pytest.raises(Corrupt):
            store.read(wrong)


def test_without_its_check_a_read_would_hand_out_another_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    store.publish([b"one", b"two"])
    one, two = store.live()

    def believed(_: object, data: bytes) -> StoredMessage:
        return StoredMessage(data[5:21], memoryview(data)[25:], checked=False)

    remove(monkeypatch, "type, size, id and checksum of a body", believed)
    assert store.read(one._replace(position=two.position)) == b"two"


def removed_with_a_loss_of_power() -> None:
    """A file is removed and the power goes after its row is gone: the next start must not find it."""
    for seed in range(8):
        store, readers = half_dead()
        readers.read_all()
        store.ack([message.msg_id for message in store.live()])
        store.drive(remove_doomed(store.disk, ROOT, 0, store.descriptors))
        store.after_power_loss(random.Random(seed)).check_started()


def test_a_file_that_is_removed_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    removed_with_a_loss_of_power()
    remove(monkeypatch, "sync of the directory before a row goes", lambda *_: None)
    with pytest.raises(Exception, match="the ledger is older than its files"):
        removed_with_a_loss_of_power()


def test_a_removal_may_die_at_any_call() -> None:
    for point in range(20):
        store, readers = half_dead()
        readers.read_all()
        store.ack([message.msg_id for message in store.live()])
        store.calls, store.dies_at = 0, point
        try:
            store.drive(remove_doomed(store.disk, ROOT, 0, store.descriptors))
        except PowerLost:
            store.died()
        else:
            return
        found = store.after_power_loss(random.Random(point))
        for number in found.started().doomed:
            found.drive(remove_doomed(found.disk, ROOT, number, found.descriptors))
        assert found.disk.names(ROOT) == []
        assert found.ledger.files() == []
    raise AssertionError("it never ended")


@pytest.mark.parametrize("call", ["unlink", "fsync_dir"])
def test_a_removal_that_the_disk_refuses_is_done_by_the_next_try(call: str) -> None:
    store, readers = half_dead()
    readers.read_all()
    store.ack([message.msg_id for message in store.live()])

    def fault(called: str, path: Path) -> None:
        if called == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    store.fault = fault
    with pytest.raises(OSError, match="Input/output error"):
        store.drive(remove_doomed(store.disk, ROOT, 0, store.descriptors))
    store.fault = lambda *_: None
    assert [row.state for row in store.ledger.files()] == [FileState.DOOMED]
    store.drive(remove_doomed(store.disk, ROOT, 0, store.descriptors))
    assert store.ledger.files() == []


def test_files_that_are_open_are_bounded_but_for_those_in_use(tmp_path: Path) -> None:
    files = RealFileCalls()
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(path.name.encode())
    descriptors = Descriptors(files, 2)
    with descriptors.use(paths[0]) as first:
        for path in paths[1:]:
            with descriptors.use(path) as fd:
                assert os.pread(fd, 1, 0) == path.name.encode()
        descriptors.forget(paths[0])
        paths[0].unlink()
        assert os.pread(first, 1, 0) == b"0"
    assert descriptors.count == 1, "the last one; what is forgotten is closed with its last user"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)
    with pytest.raises(FileNotFoundError), descriptors.use(paths[0]):
        pass
    descriptors.close()
    assert descriptors.count == 0


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    files = RealFileCalls()
    for number in range(4):
        (tmp_path / str(number)).write_bytes(bytes([number]))
    descriptors = Descriptors(files, 1)
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            number = chance.randrange(4)
            with descriptors.use(tmp_path / str(number)) as fd:
                if os.pread(fd, 1, 0) != bytes([number]):
                    wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert descriptors.count == 1


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("0.sqs", FileName(0, is_version_1=False)),
        ("17.rdq", FileName(17, is_version_1=True)),
        ("017.sqs", None),
        ("17.sqs.new", None),
        ("-1.sqs", None),
        ("17", None),
        ("9" * 20 + ".sqs", None),
    ],
)
def test_a_file_has_one_name(name: str, parsed: FileName | None) -> None:
    assert parse_file_name(name) == parsed
