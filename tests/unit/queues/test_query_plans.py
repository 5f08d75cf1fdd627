"""How SQLite finds the rows of each statement of the ledger: by an index, except where all are meant.

A statement that walks a whole table is right, and slow only once a million messages wait.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final

import pytest

from bottomless_server.queues.ledger import statements as sql

NO_QUERY: Final = {
    "SCHEMA", "STORE_MAKE", "FILE_MAKE", "MESSAGE_MAKE", "QUEUE_MAKE", "DOOM", "REGISTRY_DUE",
    "ITEM_MAKE", "SEEN_MAKE", "TARGET_MAKE", "OUTGOING_MAKE",
}  # fmt: skip
"""They insert rows and look at none."""

BY_KEY: Final = "USING INTEGER PRIMARY KEY (rowid=?)"
STORE: Final = [f"SEARCH store {BY_KEY}"]
FILE: Final = [f"SEARCH file {BY_KEY}"]
MESSAGE: Final = [f"SEARCH message {BY_KEY}"]
OF_ITEM: Final = f"SEARCH m {BY_KEY}"
QUEUE: Final = ["SEARCH queue USING PRIMARY KEY (queue_id=?)"]
INSIDE: Final = ["SEARCH queue USING INDEX queue_by_inside (inside=?)"]
TARGET: Final = [f"SEARCH target {BY_KEY}"]
OUTGOING: Final = ["SEARCH outgoing USING PRIMARY KEY (target=? AND number=?)"]

PLANS: Final[dict[str, list[str]]] = {
    "STORE": STORE,
    "ROUND": STORE,
    "SET_STORE_ID": STORE,
    "SET_CLEAN": STORE,
    "SET_CLOCK": STORE,
    "SET_LAST_V1_FILE": STORE,
    "TAKE_FILE": STORE,
    "TAKE_INSIDE": STORE,
    "FILE": FILE,
    "FILES": ["SCAN file"],
    "FILE_SIZE": FILE,
    "FILE_STATE": FILE,
    "FILE_MORE": FILE,
    "FILE_LESS": FILE,
    "FILE_REMOVE": FILE,
    "MESSAGE_LAST": ["SEARCH message"],
    "MESSAGE_REFS": MESSAGE,
    "MESSAGE_LAST_REF": MESSAGE,
    "MESSAGE_LESS": MESSAGE,
    "RAISE_FILE": STORE,
    "MESSAGE_AT": ["SEARCH message USING INDEX message_by_place (file=? AND position=?)"],
    "MESSAGE_MORE": MESSAGE,
    "MESSAGES_IN": ["SEARCH message USING INDEX message_by_place (file=?)"],
    "MESSAGE_MOVE": ["SEARCH message USING INDEX message_by_place (file=? AND position=?)"],
    "QUEUE": QUEUE,
    "QUEUE_NAMED": ["SEARCH queue USING INDEX queue_by_name (tenant=? AND name=?)"],
    "QUEUE_INSIDE": INSIDE,
    "QUEUES": ["SEARCH queue USING INDEX queue_by_name (tenant=? AND name>?)"],
    "QUEUE_COUNT": ["SEARCH queue USING INDEX queue_by_name (tenant=?)"],
    "QUEUES_SUMS": ["SCAN queue USING INDEX queue_by_inside"],
    "QUEUE_CONFIG": QUEUE,
    "QUEUE_RESERVE": QUEUE,
    "QUEUE_PURGE": QUEUE,
    "QUEUE_DELETE": QUEUE,
    "QUEUE_SUMS": INSIDE,
    "QUEUE_MORE": INSIDE,
    "QUEUE_RAISE": INSIDE,
    "QUEUE_RESTORE": QUEUE,
    "QUEUE_TOTALS": QUEUE,
    "QUEUE_REMEMBERED": QUEUE,
    "QUEUE_REMOVE": QUEUE,
    "DOOMED": ["SEARCH doomed"],
    "DOOMED_REMOVE": [f"SEARCH doomed {BY_KEY}"],
    "REGISTRY_DUES": ["CO-ROUTINE due", "SCAN registry_due", "SCAN due", QUEUE[0]],
    "REGISTRY_SETTLE": ["SEARCH registry_due USING PRIMARY KEY (queue_id=?)"],
    "ITEM": ["SEARCH i USING PRIMARY KEY (inside=? AND sequence=?)", OF_ITEM],
    "ITEMS_BETWEEN": [
        "SEARCH i USING PRIMARY KEY (inside=? AND sequence>? AND sequence<?)",
        OF_ITEM,
    ],
    "ITEMS_READY": ["SEARCH i USING INDEX item_ready (inside=?)", OF_ITEM],
    "ITEMS_FROM": ["SEARCH i USING PRIMARY KEY (inside=? AND sequence>?)", OF_ITEM],
    "ITEMS_DAMAGED": ["SEARCH i USING INDEX item_damaged (inside=?)", OF_ITEM],
    "ITEMS_IN_FILE": ["SCAN i", OF_ITEM],
    "ITEMS_DUE": ["SEARCH i USING INDEX item_due (due_at>? AND due_at<?)", OF_ITEM],
    "ITEMS_EXPIRED": [
        "SEARCH i USING INDEX item_expires (expires_at>? AND expires_at<?)",
        OF_ITEM,
    ],
    "NEXT_DUE": ["SEARCH item USING COVERING INDEX item_due (due_at>?)"],
    "NEXT_EXPIRES": ["SEARCH item USING INDEX item_expires (expires_at>?)"],
    "NEXT_FORGOTTEN": ["SEARCH seen USING COVERING INDEX seen_until"],
    "ITEM_CHANGE": ["SEARCH item USING PRIMARY KEY (inside=? AND sequence=?)"],
    "ITEM_EXPIRES": ["SEARCH item USING PRIMARY KEY (inside=? AND sequence=?)"],
    "ITEM_REMOVE": ["SEARCH item USING PRIMARY KEY (inside=? AND sequence=?)"],
    "SEEN": ["SEARCH seen USING PRIMARY KEY (queue_id=? AND key_hash=?)"],
    "SEEN_OLD": ["SEARCH seen USING COVERING INDEX seen_until (until<?)"],
    "SEEN_REMOVE": ["SEARCH seen USING PRIMARY KEY (queue_id=? AND key_hash=?)"],
    "TARGET": [
        "SEARCH target USING INDEX sqlite_autoindex_target_1 (tenant=? AND kind=? AND name=?)"
    ],
    "TARGETS": ["SCAN target"],
    "TARGET_NUMBER": TARGET,
    "TARGET_TAKE": TARGET,
    "OUTGOING": ["SEARCH o USING PRIMARY KEY (target=?)", OF_ITEM],
    "OUTGOING_ONE": ["SEARCH o USING PRIMARY KEY (target=? AND number=?)", OF_ITEM],
    "OUTGOING_RENUMBER": OUTGOING,
    "OUTGOING_REMOVE": OUTGOING,
    "TARGET_MORE": TARGET,
    "OUTGOING_COUNTS": ["SCAN target"],
}


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(sql.SCHEMA)
    yield connection
    connection.close()


def statements() -> dict[str, str]:
    return {
        name: value
        for name, value in vars(sql).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    }


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    numbered = [number for number in range(1, 10) if f"?{number}" in statement]
    values = [1] * (max(numbered) if numbered else statement.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def test_each_statement_has_its_plan_here() -> None:
    assert statements().keys() == PLANS.keys() | NO_QUERY


@pytest.mark.parametrize("name", PLANS)
def test_a_statement_finds_its_rows_by_the_index_that_is_meant(
    empty: sqlite3.Connection, name: str
) -> None:
    assert plan(empty, statements()[name]) == PLANS[name]


def test_a_statement_without_its_index_would_be_noticed(empty: sqlite3.Connection) -> None:
    without = sql.ITEMS_READY.replace("i.state = 0", "i.state = 0 + 0")
    assert plan(empty, without) != PLANS["ITEMS_READY"]
    assert any("TEMP B-TREE" in line for line in plan(empty, without))
