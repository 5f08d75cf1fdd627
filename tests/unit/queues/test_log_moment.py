"""A ledger that was put back beside the log of a later one: SQLite would make a mixture of both."""

import shutil
from pathlib import Path
from typing import Final

import pytest
from support.guards import remove

from bottomless.errors import Code, Unavailable
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.ledger.base import LedgerDamaged
from bottomless_server.queues.ledger.log_moment import (
    LOG_COUNT_MAX,
    is_of_one_moment,
    log_of_log,
    next_log,
)
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.store.alone import a_round
from bottomless_server.runtime.base.cannot_start import CannotStart
from unit.queues.engine_harness import TENANT, Engine

GUARD: Final = "a log of a ledger is of its moment"
DATABASE, LOG = "ledger.db", "ledger.db-wal"


async def put_back_beside_a_log(directory: Path) -> Engine:
    """A node was killed. Of a back-up, made while it was stopped, the ledger alone is put back. In between a
    message was acknowledged, and is on its way to its archive."""
    engine = Engine(directory / "now")
    await engine.open()
    engine.streams.create(TENANT, "log")
    engine.streams.error = Unavailable("no", code=Code.PEER_UNAVAILABLE)
    await engine.create("jobs", archive={"stream": "log"})
    await engine.close()
    shutil.copy(directory / "now" / DATABASE, directory / "back-up.db")
    await engine.open()
    await engine.publish("jobs", values=[b"archived"])
    await engine.ack("jobs", await engine.receive("jobs"))
    await engine.restart()
    await engine.publish("jobs", values=[b"later"])
    killed = directory / "killed"
    shutil.copytree(directory / "now", killed)
    assert (killed / LOG).stat().st_size
    await engine.close()
    shutil.copy(directory / "back-up.db", killed / DATABASE)
    engine.directory = killed
    return engine


async def test_a_ledger_and_a_log_of_different_moments_are_refused_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    engine = await put_back_beside_a_log(tmp_path)
    found = {path: path.read_bytes() for path in engine.directory.iterdir() if path.is_file()}
    with pytest.raises(CannotStart, match=r"was not written on this .*queue-store rebuild"):
        await engine.open()
    assert {path: path.read_bytes() for path in found} == found


async def test_without_its_guard_messages_are_gone_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, GUARD, lambda *_: True)
    engine = await put_back_beside_a_log(tmp_path)
    await engine.open()
    assert (await engine.engine.storage()).outgoing == []
    assert await engine.engine.check() != []
    assert await engine.drain("jobs") == [b"later"]
    await engine.close()


def in_a_round(ledger: SqliteLedger, clock: int) -> None:
    with a_round(ledger):
        ledger.set_clock(clock)


@pytest.mark.parametrize("earlier", [1, 2, 3])
def test_a_log_belongs_to_the_database_of_the_checkpoint_before_it(
    tmp_path: Path, earlier: int
) -> None:
    """Copies are made after each of four checkpoints, and of the log after the last of them."""
    files, path = RealFileCalls(), tmp_path / DATABASE
    ledger = SqliteLedger(path, files, bytes(16))
    copies = []
    for number in range(4):
        in_a_round(ledger, number)
        ledger.checkpoint()
        copies.append(path.read_bytes())
    in_a_round(ledger, 4)
    log = path.with_name(LOG).read_bytes()
    ledger.close()
    for data, is_there in ((copies[-1], True), (copies[-1 - earlier], False)):
        path.write_bytes(data)
        path.with_name(LOG).write_bytes(log)
        if is_there:
            ledger = SqliteLedger(path, files, bytes(16))
            assert ledger.store().clock == 4
            ledger.close()
        else:
            with pytest.raises(LedgerDamaged):
                SqliteLedger(path, files, bytes(16))


def test_a_round_that_is_taken_back_does_not_count_the_log(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    ledger = SqliteLedger(path, RealFileCalls(), bytes(16))
    ledger.begin()
    ledger.rollback()
    in_a_round(ledger, 1)
    before, log = path.read_bytes(), path.with_name(LOG).read_bytes()
    ledger.close()
    path.write_bytes(before)
    path.with_name(LOG).write_bytes(log)
    ledger = SqliteLedger(path, RealFileCalls(), bytes(16))
    assert ledger.store().clock == 1
    ledger.close()


def test_what_was_never_committed_says_nothing(tmp_path: Path) -> None:
    """A loss of power may bring such a log back: SQLite does not believe it either."""
    path = tmp_path / DATABASE
    ledger = SqliteLedger(path, RealFileCalls(), bytes(16))
    ledger.checkpoint()
    in_a_round(ledger, 1)
    data = path.with_name(LOG).read_bytes()
    ledger.close()

    def said(log: bytes) -> int | None:
        return log_of_log(lambda size, at: log[at : at + size])

    assert said(data) == 2
    assert [said(data[:end]) for end in (0, 31, 32, 100, len(data) - 1)] == [None] * 5
    for place in (0, 17, 40, 60, len(data) - 1):
        assert said(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None


def test_a_moving_of_pages_that_was_cut_off_goes_on() -> None:
    assert [is_of_one_moment(7, log) for log in (None, 6, 7, 8, 9)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert is_of_one_moment(LOG_COUNT_MAX, next_log(LOG_COUNT_MAX))
    assert is_of_one_moment(0, 0)
