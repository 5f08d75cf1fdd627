"""The one connection to SQLite: what errors leave, shown with real ones."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.file_size_limit import no_file_grows_beyond
from support.guards import remove
from support.ledgers import STORE_ID, Books, a_round

from bottomless_server.node.file_calls import FileCalls, RealFileCalls
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import (
    LedgerDamaged,
    LedgerFailed,
    LedgerNotServed,
    Totals,
)
from bottomless_server.queues.ledger.database import Database
from bottomless_server.queues.ledger.sqlite import SqliteLedger

SCHEMA = "CREATE TABLE line (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT"
INSERT = "INSERT INTO line (text) VALUES (?)"
LIMIT = 4 * 2**20
FILES: FileCalls = RealFileCalls()


def open_database(directory: Path) -> Database:
    return Database(directory / "ledger.db", FILES, 2**16, SCHEMA)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = open_database(tmp_path)
    yield found
    found.close()


def fill(database: Database) -> None:
    """Commit more than fits below the limit."""
    for number in range(300):
        database.run(INSERT, (f"{number}" + 20_000 * "x",))
    with no_file_grows_beyond(LIMIT):
        database.commit()


def texts(database: Database) -> list[str]:
    return [text[:9] for (text,) in database.rows("SELECT text FROM line ORDER BY number")]


def test_an_error_of_sqlite_may_take_the_round_back_by_itself(database: Database) -> None:
    database.begin()
    with pytest.raises(LedgerFailed):
        fill(database)
    assert not database.in_round


def nothing_is_carried_out_after_an_error(database: Database) -> None:
    database.begin()
    database.run(INSERT, ("first",))
    with pytest.raises(LedgerFailed):
        fill(database)
    with pytest.raises(LedgerFailed, match="ended by an error"):
        database.run(INSERT, ("alone",))
    with pytest.raises(LedgerFailed, match="ended by an error"):
        database.rows("SELECT 1")
    database.rollback()
    assert texts(database) == []
    database.begin()
    database.run(INSERT, ("next",))
    database.commit()
    assert texts(database) == ["next"]


def test_nothing_is_carried_out_after_an_error_until_the_round_is_rolled_back(
    database: Database,
) -> None:
    nothing_is_carried_out_after_an_error(database)


def test_without_its_guard_a_statement_after_an_error_is_committed_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "an error of SQLite ends the round", lambda _: None)
    with pytest.raises(pytest.fail.Exception):
        nothing_is_carried_out_after_an_error(database)
    assert texts(database) == ["alone"]


def test_an_error_that_leaves_the_round_open_ends_it_as_well(database: Database) -> None:
    database.begin()
    database.run(INSERT, ("one",))
    with pytest.raises(LedgerFailed, match="UNIQUE"):
        database.run(INSERT, ("one",))
    assert database.in_round
    with pytest.raises(LedgerFailed):
        database.commit()
    database.rollback()
    assert texts(database) == []


def test_after_a_commit_without_room_the_file_says_what_is_there(database: Database) -> None:
    database.begin()
    database.run(INSERT, ("before",))
    database.commit()
    database.begin()
    database.run(INSERT, ("lost" + 3_000 * "x",))
    with no_file_grows_beyond(database.log_size + 100), pytest.raises(LedgerFailed):
        database.commit()
    database.reopen()
    assert (texts(database), database.log_size) == (["before"], 0)
    database.begin()
    database.run(INSERT, ("after",))
    database.commit()
    assert texts(database) == ["before", "after"]


def test_a_ledger_that_cannot_be_opened_again_is_asked_for_again(
    tmp_path: Path, database: Database
) -> None:
    database.begin()
    database.run(INSERT, ("one",))
    database.commit()
    database.checkpoint()
    there = tmp_path / "ledger.db"
    there.rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerFailed):
        database.reopen()
    assert not there.exists(), "an empty one would be believed"
    with pytest.raises(LedgerFailed):
        database.rows("SELECT 1")
    with pytest.raises(LedgerFailed):
        database.rollback()
    (tmp_path / "elsewhere").rename(there)
    database.reopen()
    assert texts(database) == ["one"]


def test_nobody_else_gets_in(tmp_path: Path, database: Database) -> None:
    with pytest.raises(LedgerFailed, match="locked"):
        open_database(tmp_path)
    assert texts(database) == []


def test_the_log_stays_until_it_is_checkpointed(tmp_path: Path, database: Database) -> None:
    for number in range(40):
        database.begin()
        database.run(INSERT, (f"{number}" + 4_000 * "x",))
        database.commit()
    assert database.log_size > 2**16
    main = (tmp_path / "ledger.db").stat().st_size
    database.checkpoint()
    assert database.log_size == 0
    assert (tmp_path / "ledger.db").stat().st_size > main


def what_a_kill_leaves_is_what_was_committed(database: Database, directory: Path) -> None:
    """Pages are changed again and again in a round, and a savepoint takes most of it back."""
    before = database.log_size
    database.begin()
    for name in ("taken back", "kept"):
        database.savepoint()
        for number in range(60):
            database.run(INSERT, (f"{name} {number}" + 3_000 * "x",))
            database.run("UPDATE line SET text = text || 'y' WHERE number % 7 = ?", (number % 7,))
        assert database.log_size == before, "a page was written before COMMIT"
        if name == "kept":
            database.keep()
        else:
            database.undo()
    database.commit()
    left = directory / "left"
    left.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(directory / name, left / name)
    again = open_database(left)
    assert texts(again) == texts(database)
    assert len(texts(again)) == 60
    again.close()


def test_what_a_kill_leaves_is_what_was_committed_whatever_was_taken_back_before(
    database: Database, tmp_path: Path
) -> None:
    what_a_kill_leaves_is_what_was_committed(database, tmp_path)


def test_without_its_guard_pages_are_written_before_their_round_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "no page of a round is written before its COMMIT", lambda *_: None)
    database = open_database(tmp_path)
    with pytest.raises(AssertionError, match="before COMMIT"):
        what_a_kill_leaves_is_what_was_committed(database, tmp_path)
    database.close()


@pytest.mark.parametrize("content", [b"x" * 5_000, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_database_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerDamaged):
        open_database(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == content


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(LedgerDamaged, match="no ledger"):
        open_database(tmp_path)


def test_a_page_that_was_overwritten_is_damage(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db", FILES, STORE_ID)
    books = Books(ledger)
    row = books.queue()
    for _ in range(3):
        books.publish(row)
    ledger.close()
    data = bytearray((tmp_path / "ledger.db").read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    (tmp_path / "ledger.db").write_bytes(data)
    with pytest.raises(LedgerDamaged):
        SqliteLedger(tmp_path / "ledger.db", FILES, STORE_ID)


def test_a_ledger_of_a_later_release_is_refused(tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "ledger.db", FILES, STORE_ID).close()
    with sqlite3.connect(tmp_path / "ledger.db") as later:
        later.execute("UPDATE store SET format = 3")
    later.close()
    with pytest.raises(LedgerNotServed):
        SqliteLedger(tmp_path / "ledger.db", FILES, STORE_ID)


def test_a_ledger_keeps_its_store_when_it_is_opened_under_another(tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "ledger.db", FILES, STORE_ID).close()
    again = SqliteLedger(tmp_path / "ledger.db", FILES, b"another store id")
    assert again.store().store_id == STORE_ID
    again.close()


def test_an_error_tells_its_statement_and_none_of_its_values(database: Database) -> None:
    database.begin()
    with pytest.raises(LedgerFailed, match=r"in INSERT INTO nowhere VALUES \(\?\)$") as caught:
        database.run("INSERT INTO   nowhere VALUES (?)", ("a secret",))
    assert "secret" not in str(caught.value)
    database.rollback()


def test_a_ledger_of_before_has_what_it_had_and_counts_more_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = SqliteLedger(path, FILES, STORE_ID)
    books = Books(ledger)
    queue = books.queue()
    books.publish(queue)
    ledger.close()
    with closing(sqlite3.connect(path)) as old:
        for name in ("rejected", "purged", "refused"):
            old.execute(f"ALTER TABLE queue DROP COLUMN {name}")
        old.execute("UPDATE store SET format = 1")
        old.commit()
    for purged in (3, 6):
        ledger = SqliteLedger(path, FILES, STORE_ID)
        with a_round(ledger):
            ledger.add_totals(queue.queue_id, Totals(purged=3, acked=1))
        row = ledger.queue(queue.queue_id)
        assert row is not None
        assert (row.totals, row.next_sequence) == (Totals(acked=purged // 3, purged=purged), 1)
        ledger.close()


def acknowledged_in_one_of_two_queues(directory: Path) -> FileState:
    """What becomes of the file of a message that another queue has still."""
    ledger = SqliteLedger(directory / "ledger.db", FILES, STORE_ID)
    books = Books(ledger)
    one, other = books.queue("one"), books.queue("other")
    books.publish(one, other)
    number = books.file
    books.next_file()
    ledger.begin()
    ledger.remove_items(ledger.page(one.inside, 0, 1))
    ledger.commit()
    row = ledger.file(number)
    assert row is not None
    assert books.sequences(other) == [0]
    ledger.close()
    return row.state


def test_without_its_references_a_message_loses_its_file_to_another_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without").mkdir()
    assert acknowledged_in_one_of_two_queues(tmp_path) is FileState.SEALED
    name = "a message is there while an item or an outgoing row names it"
    remove(monkeypatch, name, lambda *_: ())
    assert acknowledged_in_one_of_two_queues(tmp_path / "without") is FileState.DOOMED
