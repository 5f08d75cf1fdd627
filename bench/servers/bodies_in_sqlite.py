"""Our server with the bodies of messages inside the ledger, for the bench alone: is a file of them worth it?

    python -m bench.servers.bodies_in_sqlite serve …

It is the product, but for three things: records go into a table of the ledger, in the transaction of
their round; they are read from there, by connections of the threads that read; and a trigger deletes
them with their message. There are no message files then, and nothing is compacted. Do not keep anything
in it: it does not start a second time.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bottomless.cli.app import main as run
from bottomless.formats.message_file import StoredMessage
from bottomless_server.queues import engine
from bottomless_server.queues.directory.opening import LEDGER
from bottomless_server.queues.ledger import database, sqlite_rounds
from bottomless_server.queues.ledger import statements as sql
from bottomless_server.queues.ports import Record
from bottomless_server.queues.rounds.round_files import RoundFiles
from bottomless_server.queues.store.bodies import Bodies, BodyPlace, checked_record

SCHEMA: Final = """;
CREATE TABLE body (place INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
CREATE TRIGGER body_gone AFTER DELETE ON message BEGIN
    DELETE FROM body WHERE place = OLD.file << 40 | OLD.position;
END
"""
_INSERT: Final = "INSERT INTO body VALUES (?, ?)"
_SELECT: Final = "SELECT record FROM body WHERE place = ?"
_SHARED: Final = tuple(each for each in database.PRAGMAS if "locking_mode" not in each)
_opened: list[database.Database] = []


def _place(file: int, position: int) -> int:
    return file << 40 | position


class SharedDatabase(database.Database):
    """A ledger that threads may read beside it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        _opened.append(self)


class BodiesWritten(RoundFiles):
    """Writes records into the ledger; the round's COMMIT syncs them."""

    def write(self, number: int, position: int, records: Sequence[Record], *, create: bool) -> None:
        del create
        rows = []
        for record in records:
            data = b"".join(record)
            rows.append((_place(number, position), data))
            position += len(data)
        _opened[-1].run_many(_INSERT, rows)

    def sync(self, number: int, *, created: bool) -> None:
        """Nothing is written yet."""

    def cut(self, number: int, size: int | None) -> None:
        """The round was rolled back, and its records with it."""


class BodiesRead(Bodies):
    """Reads records out of the ledger."""

    def __init__(self, files: Any, directory: Path, descriptors: Any) -> None:
        super().__init__(files, directory, descriptors)
        self._path = directory.parent / LEDGER
        self._own = threading.local()

    def read(self, place: BodyPlace) -> StoredMessage:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = sqlite3.connect(self._path, isolation_level=None)
        where = (_place(place.file, place.position),)
        [(data,)] = connection.execute(_SELECT, where).fetchall()
        return checked_record(place, data)

    def read_run(self, places: Sequence[BodyPlace]) -> list[StoredMessage]:
        return [self.read(place) for place in places]


def replaced() -> tuple[tuple[Any, str, Any], ...]:
    """Parts of the product, by their modules and names, and what stands in for them."""
    return (
        (engine, "RoundFiles", BodiesWritten),
        (engine, "Bodies", BodiesRead),
        (sqlite_rounds, "Database", SharedDatabase),
        # A checkpoint waits for readers that are under way.
        (database, "PRAGMAS", (*_SHARED, "PRAGMA busy_timeout = 10000")),
        (sql, "SCHEMA", sql.SCHEMA + SCHEMA),
    )


def main() -> None:
    """Run the command line of the product, with other parts in it."""
    for module, name, part in replaced():
        setattr(module, name, part)
    run()


if __name__ == "__main__":
    main()
