"""Starts: what is found decides, and nothing that may be needed is removed."""

import copy
from pathlib import Path

import pytest
from support.guards import remove

from bottomless.formats.envelope import encode_envelope
from bottomless_server.node.file_calls import read_file
from bottomless_server.queues.core.start_plan import (
    KnownFile,
    NamedFile,
    Refused,
    StartPlan,
    plan_start,
)
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.store.start import start_store
from unit.formats.examples import QUEUE_MESSAGE
from unit.queues.store_harness import ROOT, DyingLedger, Store

OPEN, SEALED, MOVING = FileState.OPEN, FileState.SEALED, FileState.MOVING
DOOMED, DAMAGED = FileState.DOOMED, FileState.DAMAGED


def file(name: str) -> NamedFile:
    number, _, kind = name.partition(".")
    return NamedFile(int(number), kind == "rdq")


def planned(
    rows: list[tuple[int, int, int, FileState]],
    found: dict[str, int],
    *,
    last_v1_file: int | None = None,
    is_clean: bool = False,
) -> StartPlan:
    return plan_start(
        [KnownFile(*row) for row in rows],
        {file(name): size for name, size in found.items()},
        next_file=10,
        last_v1_file=last_v1_file,
        is_clean=is_clean,
    )


ROWS = [(1, 500, 300, SEALED), (2, 400, 200, OPEN)]
THERE = {"1.sqs": 500, "2.sqs": 400}


def test_after_an_orderly_stop_nothing_is_scanned() -> None:
    assert planned(ROWS, THERE, is_clean=True) == StartPlan(None)
    assert planned(ROWS, THERE) == StartPlan(None, scans=(file("2.sqs"),))


def test_what_no_round_was_committed_for_goes() -> None:
    plan = planned(ROWS, {**THERE, "2.sqs": 450, "10.sqs": 90}, is_clean=True)
    assert plan.cuts == (file("2.sqs"),)
    assert plan.removals == (file("10.sqs"),)


@pytest.mark.parametrize("name", ["3.sqs", "11.sqs", "0.sqs"])
def test_a_file_that_the_ledger_does_not_know_is_not_touched(name: str) -> None:
    with pytest.raises(Refused, match=f"older than its files: it does not know {name}"):
        planned(ROWS, {**THERE, name: 90})


def test_without_its_guard_an_old_ledger_removes_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a ledger that is older than its files is refused", lambda *_: None)
    assert file("11.sqs") in planned(ROWS, {**THERE, "11.sqs": 90}).removals


def test_what_is_short_or_missing_is_said_and_what_is_doomed_may_be_missing() -> None:
    plan = planned([*ROWS, (3, 90, 0, DOOMED), (4, 90, 50, DAMAGED)], {"2.sqs": 399}, is_clean=True)
    assert plan == StartPlan(None, short=(file("1.sqs"), file("2.sqs")))


def test_files_of_which_none_is_there_are_elsewhere_and_nothing_is_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for found in ({}, {"10.sqs": 64}):
        with pytest.raises(Refused, match="none of the 2 message files that are needed is there"):
            planned(ROWS, found, is_clean=True)
    assert planned(ROWS[:1], {}).short == (file("1.sqs"),), "a disk may lose one"
    assert planned([(1, 500, 0, DOOMED), (2, 90, 0, OPEN)], {}).short == (file("2.sqs"),)
    remove(monkeypatch, "message files of which none is there are elsewhere", lambda *_: None)
    assert planned(ROWS, {}).short == (file("1.sqs"), file("2.sqs"))


def test_what_was_being_moved_is_scanned_and_goes_if_nothing_of_it_is_needed() -> None:
    rows = [(1, 500, 300, MOVING), (2, 400, 0, MOVING), (3, 0, 0, MOVING)]
    plan = planned(rows, {"1.sqs": 500, "2.sqs": 400})
    assert plan.scans == (file("1.sqs"),)
    assert plan.removals == (file("2.sqs"),)
    assert plan.rows_that_go == (2, 3)


def test_version_1_ends_with_its_highest_file_unless_the_ledger_says_where() -> None:
    rows = [(1, 500, 300, SEALED), (2, 400, 200, OPEN)]
    assert planned(rows, {"1.rdq": 500, "2.sqs": 400}).last_v1_file == 1
    assert planned(rows, {"1.rdq": 500, "2.sqs": 400}, last_v1_file=1).last_v1_file == 1
    assert planned(ROWS, THERE).last_v1_file is None
    for found, last, why in (
        ({"1.rdq": 500, "1.sqs": 500}, None, "two files of one number: 1.rdq and 1.sqs"),
        ({"1.sqs": 500, "2.rdq": 400}, None, "1.sqs cannot be"),
        ({"1.rdq": 500, "2.rdq": 400}, 1, "2.rdq cannot be"),
    ):
        with pytest.raises(Refused, match=why):
            planned(rows, found, last_v1_file=last)


def test_without_its_guard_messages_of_version_1_are_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "files of version 1 are up to a boundary", lambda _, last: last)
    rows = [(1, 500, 300, SEALED), (2, 400, 300, OPEN)]
    assert planned(rows, {"1.rdq": 500, "2.sqs": 400}).short == (file("1.sqs"),)


def test_files_of_version_1_are_not_scanned() -> None:
    rows = [(1, 500, 300, MOVING), (2, 400, 200, MOVING)]
    assert planned(rows, {"1.rdq": 500, "2.sqs": 400}).scans == (file("2.sqs"),)


def written(store: Store, name: str, data: bytes, position: int | None = None) -> None:
    path = Path(ROOT / name)
    fd = store.disk.open(path, create=name not in store.disk.names(ROOT))
    store.disk.pwritev(fd, [data], store.disk.size(fd) if position is None else position)
    store.disk.fdatasync(fd)
    store.disk.fsync_dir(ROOT)
    store.disk.close(fd)


def cut_to(store: Store, name: str, size: int) -> None:
    fd = store.disk.open(ROOT / name)
    store.disk.truncate(fd, size)
    store.disk.fdatasync(fd)
    store.disk.close(fd)


def a_store() -> Store:
    store = Store(file_size_max=320)
    for number in range(4):
        store.publish([bytes([number]) * 100])
    return store


def states(store: Store) -> list[ItemState]:
    row = store.ledger.queue(bytes(16))
    assert row is not None
    return [one.item.state for one in store.ledger.page(row.inside, 0, 100)]


def test_a_start_takes_away_what_is_not_committed_and_goes_on_after_what_is() -> None:
    store = a_store()
    before = {row.number: row.size for row in store.ledger.files()}
    written(store, "1.sqs", b"torn")
    written(store, f"{len(before)}.sqs", b"RSQS")
    written(store, "7.sqs.new", b"half")
    report = store.started()
    assert report.cut == ("1.sqs",)
    assert sorted(report.removed) == ["2.sqs", "7.sqs.new"]
    assert report.open_file == (1, before[1])
    assert store.publish([b"after"])
    store.check_ledger()
    store.check_files()


def test_a_start_says_which_messages_are_lost_and_keeps_the_others() -> None:
    store = a_store()
    live = store.live()
    cut_to(store, "1.sqs", live[-1].position + 10)
    report = store.started()
    assert (report.lost, report.damaged_count) == (("1.sqs",), 1)
    assert states(store) == [ItemState.READY] * 3 + [ItemState.DAMAGED]
    assert report.open_file is None
    for message in live[:3]:
        assert store.read(message) == store.bodies[message.msg_id]
    assert store.publish([b"after"])


def test_a_start_finds_damage_in_the_open_file_and_writes_no_more_to_it() -> None:
    store = a_store()
    written(store, "1.sqs", b"\0", store.live()[-1].position)
    report = store.started()
    assert (report.lost, report.damaged_count, report.open_file) == (("1.sqs",), 1, None)
    assert [row.state for row in store.ledger.files()] == [SEALED, DAMAGED]


def test_a_missing_file_damages_its_items_and_no_others() -> None:
    store = a_store()
    store.disk.unlink(ROOT / "0.sqs")
    store.disk.fsync_dir(ROOT)
    report = store.started()
    assert (report.lost, report.damaged_count) == (("0.sqs",), 2)
    assert states(store) == [ItemState.DAMAGED] * 2 + [ItemState.READY] * 2
    assert store.started().damaged_count == 0, "what is damaged is not found again"


def test_a_refused_start_changes_nothing() -> None:
    store = a_store()
    written(store, "1.sqs", b"torn")
    written(store, "9.sqs", b"whose is it")
    names, rows = sorted(store.disk.names(ROOT)), store.ledger.files()
    with pytest.raises(Refused):
        store.started()
    assert (sorted(store.disk.names(ROOT)), store.ledger.files()) == (names, rows)


def test_a_file_with_another_header_is_not_scanned_as_if_it_were_ours() -> None:
    store = a_store()
    written(store, "1.sqs", b"XXXX", 0)
    report = store.started()
    assert report.damaged_count == 2
    assert [row.state for row in store.ledger.files()] == [SEALED, DAMAGED]


def test_after_an_orderly_stop_a_file_with_another_header_gets_nothing_and_loses_nothing() -> None:
    store = a_store()
    written(store, "1.sqs", b"XXXX", 0)
    store.ledger.begin()
    store.ledger.set_clean(clean=True)
    store.ledger.commit()
    report = store.started()
    assert (report.damaged_count, report.open_file) == (0, None)
    assert [row.state for row in store.ledger.files()] == [SEALED, DAMAGED]
    store.check_ledger()


def envelope(published_at: int, size: int = 100) -> bytes:
    message = QUEUE_MESSAGE._replace(published_at=published_at, value=bytes(size))
    return b"".join(encode_envelope(message))


def rounds_after_a_backup(store: Store, *times: int, checksum: bool = True) -> DyingLedger:
    """Rounds of one message each, at these times; returns the ledger as it was before them."""
    backup = copy.deepcopy(store.ledger)
    for at in times:
        assert store.publish([envelope(at)], checksum=checksum)
    return backup


@pytest.mark.parametrize(
    ("times", "checksum", "is_refused"),
    [((7, 8), False, True), ((7, 7), False, False), ((0, 7), False, False), ((7, 8), True, False)],
    ids=["several rounds", "one round", "a torn one", "not asked for"],
)
def test_messages_without_checksums_tell_their_rounds_where_none_are_written(
    times: tuple[int, int], checksum: bool, is_refused: bool
) -> None:
    store = Store()
    assert store.publish([envelope(1)], checksum=False)
    store.ledger.tick = lambda: None
    store.ledger = rounds_after_a_backup(store, *times, checksum=False)
    if is_refused:
        with pytest.raises(Refused, match="messages of several rounds"):
            start_store(store.disk, ROOT, store.ledger, checksum=checksum)
    else:
        report = start_store(store.disk, ROOT, store.ledger, checksum=checksum)
        assert report.cut == ("0.sqs",)


@pytest.mark.parametrize("is_new_file", [False, True])
def test_a_ledger_from_before_several_rounds_is_refused_and_nothing_is_cut(
    is_new_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    if not is_new_file:
        assert store.publish([envelope(1)])
    store.ledger.tick = lambda: None
    store.ledger = rounds_after_a_backup(store, 2, 3)
    before = {name: read_file(store.disk, ROOT / name, 9_999) for name in store.disk.names(ROOT)}
    with pytest.raises(
        Refused, match=r"older than its files: 0\.sqs has messages of several rounds"
    ):
        store.started()
    after = {name: read_file(store.disk, ROOT / name, 9_999) for name in store.disk.names(ROOT)}
    assert after == before
    remove(monkeypatch, "what a start cuts off is of one round", lambda _: True)
    store.started()
    assert len(store.live()) == (0 if is_new_file else 1), "what was confirmed is gone"


def test_one_round_that_was_not_committed_is_cut_however_many_messages_it_has() -> None:
    store = Store()
    assert store.publish([envelope(1)])
    store.ledger.tick = lambda: None
    backup = copy.deepcopy(store.ledger)
    assert store.publish([envelope(2), envelope(2, 7), b"no envelope"])
    store.ledger = backup
    assert store.started().cut == ("0.sqs",)
    store.check_ledger()
