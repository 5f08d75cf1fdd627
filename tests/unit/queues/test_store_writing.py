"""How message files grow: durable before the COMMIT, and nothing of a round that was not committed."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.guards import remove

from bottomless.errors import Corrupt
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.rounds.round_bodies import ALONE_SIZE
from unit.queues.store_harness import ROOT, PowerLost, Store


def refusing(call: str, number: int, *, times: int = 1) -> Callable[[str, Path], None]:
    left = times

    def fault(called: str, path: Path) -> None:
        nonlocal left
        if called == call and left:
            left -= 1
            raise OSError(number, os.strerror(number), str(path))

    return fault


def states(store: Store) -> list[FileState]:
    return [row.state for row in store.ledger.files()]


def test_what_was_published_is_read_and_files_grow_up_to_their_bound() -> None:
    store = Store(file_size_max=400)
    for size in (0, 100, 300, 500, 10):
        assert store.publish([b"x" * size, b"y"])
    store.check_files()
    store.check_ledger()
    assert states(store) == [*[FileState.SEALED] * 3, FileState.OPEN]
    assert store.disk.names(ROOT) == ["0.sqs", "1.sqs", "2.sqs", "3.sqs"]


def test_the_large_bodies_of_a_round_get_a_file_for_themselves() -> None:
    store = Store()
    large = bytes(ALONE_SIZE)
    assert store.publish([b"small"])
    assert store.publish([b"small too", large, large, b"last"])
    assert states(store) == [FileState.OPEN, FileState.SEALED]
    assert [message.file for message in store.live()] == [0, 0, 1, 1, 0]
    store.check_ledger()
    assert store.publish([b"after"])
    assert store.live()[-1].file == 0


def test_a_round_makes_one_file_at_most() -> None:
    store = Store(file_size_max=400)
    for sizes in ((150, 200), (300, 300, 300), (ALONE_SIZE, 300, ALONE_SIZE)):
        before = len(states(store))
        assert store.publish([bytes(size) for size in sizes])
        assert len(states(store)) <= before + 1
        store.check_ledger()
        store.check_files()
    assert states(store) == [FileState.SEALED, FileState.SEALED, FileState.OPEN]


def test_large_bodies_without_an_open_file_are_sealed_and_with_a_small_one_are_not() -> None:
    store = Store()
    assert store.publish([bytes(ALONE_SIZE)])
    assert states(store) == [FileState.SEALED]
    assert store.publish([bytes(ALONE_SIZE), b"small", bytes(ALONE_SIZE)])
    assert states(store) == [FileState.SEALED, FileState.OPEN]
    store.check_ledger()


@pytest.mark.parametrize("call", ["create", "pwritev", "fdatasync", "fsync_dir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_round_that_the_disk_refuses_leaves_nothing_and_the_next_one_is_stored(
    call: str, number: int, *, is_first: bool
) -> None:
    store = Store()
    if not is_first:
        assert store.publish([b"before"])
    store.fault = refusing(call, number)
    refused = store.publish([b"refused" * 100])
    if not is_first and call in ("create", "fsync_dir"):
        assert refused is not None
    else:
        assert refused is None
    store.fault = lambda *_: None
    assert store.publish([b"after"])
    store.check_files()
    store.check_ledger()
    bodies = [store.bodies[message.msg_id] for message in store.live()]
    assert (b"refused" * 100 in bodies) is (refused is not None)


def test_a_file_whose_sync_failed_gets_nothing_more() -> None:
    store = Store()
    assert store.publish([b"before"])
    store.fault = refusing("fdatasync", errno.EIO)
    assert store.publish([b"lost"]) is None
    assert store.publish([b"after"])
    assert states(store) == [FileState.SEALED, FileState.OPEN]
    store.check_files()
    store.check_ledger()


def test_a_file_that_cannot_be_written_to_any_more_is_left_for_another() -> None:
    store = Store()
    assert store.publish([b"before"])

    def bad_place(call: str, path: Path) -> None:
        if call == "pwritev" and path.name == "0.sqs":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    store.fault = bad_place
    assert store.publish([b"refused"]) is None
    assert store.publish([b"after"])
    assert states(store) == [FileState.SEALED, FileState.OPEN]
    store.check_files()
    store.check_ledger()


def test_a_file_that_could_not_be_cut_gets_nothing_more_and_is_cut_at_the_next_start() -> None:
    store = Store()
    assert store.publish([b"before"])
    store.fault = refusing("truncate", errno.EIO)
    sync_failing = refusing("fdatasync", errno.EIO)
    cut_failing = store.fault

    def both(call: str, path: Path) -> None:
        sync_failing(call, path)
        cut_failing(call, path)

    store.fault = both
    assert store.publish([b"lost"]) is None
    assert store.publish([b"after"])
    assert states(store) == [FileState.SEALED, FileState.OPEN]
    store.died()
    store.check_started()
    store.check_files()


def rounds(store: Store) -> None:
    for number in range(6):
        assert store.publish([bytes([number]) * 300, bytes([number])])


def lost_at_any_call(file_size_max: int = 1_000) -> int:
    """The power goes at each call of some rounds; what was answered must be there after a start."""
    for point in range(200):
        store = Store(file_size_max)
        store.calls, store.dies_at = 0, point
        try:
            rounds(store)
        except PowerLost:
            ended = False
        else:
            ended = True
        store.died()
        for seed in range(4):
            found = store.after_power_loss(random.Random(seed))
            found.check_started()
            found.check_files()
            assert found.publish([b"after"])
            found.check_ledger()
            found.check_files()
        if ended:
            return point
    raise AssertionError("it never ended")


def test_after_a_loss_of_power_at_any_call_what_was_committed_is_there_and_nothing_else() -> None:
    assert lost_at_any_call() > 20


@pytest.mark.parametrize(
    "name",
    [
        "the bytes of a round are durable before its rows",
        "sync of a new file's directory",
        "cut to the row at a start",
    ],
)
def test_without_its_guard_a_store_loses_what_was_committed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, name, lambda *_: None)
    with pytest.raises((AssertionError, Corrupt, OSError)):
        lost_at_any_call()
