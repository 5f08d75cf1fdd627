"""A ledger and files of different moments: a start takes nothing away that a rebuild would find."""

import copy
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest
from support.guards import remove
from support.power_loss import PowerLossDisk

from bottomless_server.node.file_calls import read_file
from bottomless_server.queues.core.start_plan import Refused
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.store.compaction import CompactionResult, Ended, compact
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from bottomless_server.queues.store.steps import Step
from unit.queues.store_harness import ROOT, DyingLedger, Store

GUARD: Final = "what is not in its place is looked for before anything is cut"
Work = Callable[[Store], Generator[Step, Any, CompactionResult]]


def in_place(store: Store) -> Generator[Step, Any, CompactionResult]:
    return compact(store.disk, ROOT, 0, has_room=False)


def anew(store: Store) -> Generator[Step, Any, CompactionResult]:
    return rewrite(store.disk, ROOT, 0)


def copied(store: Store) -> tuple[PowerLossDisk, DyingLedger]:
    """What a back-up of a store that is stopped has."""
    store.disk.before = lambda _, __: None
    store.ledger.tick = lambda: None
    return copy.deepcopy((store.disk, store.ledger))


def two_moments(work: Work, *, is_removed: bool = True) -> tuple[Store, Store]:
    """A store of which two of eight messages are needed, and the same one after they were moved; then what
    is not needed any more is removed too.
    """
    store = Store()
    ids = store.publish([bytes([number]) * 300 for number in range(8)]) or []
    store.ack(one for number, one in enumerate(ids) if number not in (5, 7))
    store.seal()
    before = copy.copy(store)
    before.disk, before.ledger = copied(store)
    assert store.drive(work(store)).ended is Ended.COMPACTED
    for row in store.ledger.files():
        if is_removed and row.state is FileState.DOOMED:
            store.drive(remove_doomed(store.disk, ROOT, row.number, store.descriptors))
    after = copy.copy(store)
    after.disk, after.ledger = copied(store)
    return before, after


def together(ledger: Store, files: Store) -> Store:
    mixed = copy.copy(ledger)
    mixed.disk, mixed.ledger = copied(files)[0], copied(ledger)[1]
    return mixed


def contents(store: Store) -> dict[str, bytes]:
    return {name: read_file(store.disk, ROOT / name, 9_999) for name in store.disk.names(ROOT)}


@pytest.mark.parametrize("work", [in_place, anew])
@pytest.mark.parametrize("is_older", [False, True])
def test_a_ledger_and_files_of_different_moments_are_refused_and_nothing_is_changed(
    work: Work, is_older: bool
) -> None:
    before, after = two_moments(work)
    store = together(before, after) if is_older else together(after, before)
    found, rows = contents(store), store.ledger.files()
    with pytest.raises(Refused, match=r"different moments|it does not know"):
        store.started()
    assert (contents(store), store.ledger.files()) == (found, rows)


def test_a_file_that_is_about_to_be_removed_is_looked_into_too() -> None:
    """Its messages are in a new file for the ledger, which was copied after the files."""
    before, after = two_moments(anew, is_removed=False)
    with pytest.raises(Refused, match=r"different moments: 0.sqs"):
        together(after, before).started()


@pytest.mark.parametrize("work", [in_place, anew])
def test_each_with_its_own_moment_starts(work: Work) -> None:
    for store in two_moments(work):
        store.check_started()


@pytest.mark.parametrize(("work", "is_older"), [(in_place, False), (anew, True)])
def test_without_its_guard_a_start_takes_the_only_copy_of_a_message_away(
    work: Work, is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = two_moments(work)
    store = together(before, after) if is_older else together(after, before)
    last = store.bodies[store.live()[-1].msg_id]
    assert any(last in data for data in contents(store).values())
    remove(monkeypatch, GUARD, lambda *_: None)
    store.started()
    assert not any(last in data for data in contents(store).values())


def test_what_a_disk_has_lost_is_nowhere_and_the_start_goes_on() -> None:
    for store in two_moments(in_place):
        last = max(store.live(), key=lambda message: message.position)
        fd = store.disk.open(ROOT / "0.sqs")
        store.disk.truncate(fd, last.position + 30)
        store.disk.close(fd)
        assert store.started().damaged_count == 1
