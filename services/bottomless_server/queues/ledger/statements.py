"""The ledger's schema and all statements on it; tests/unit/queues/test_query_plans.py holds the plan of each.

An index that is made of some rows only is used where a statement names the same condition, so the
numbers of states stand in the text: item 0 ready, 1 in flight, 3 damaged; queue 0 live; file 1 sealed,
4 doomed (core/states.py).
"""

from typing import Final

SCHEMA: Final = """
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format INTEGER NOT NULL,
    store_id BLOB NOT NULL CHECK (length(store_id) = 16),
    round INTEGER NOT NULL,
    clean INTEGER NOT NULL CHECK (clean IN (0, 1)),
    clock INTEGER NOT NULL,
    next_file INTEGER NOT NULL,
    next_inside INTEGER NOT NULL,
    last_v1_file INTEGER
) STRICT;
CREATE TABLE file (
    number INTEGER PRIMARY KEY,
    size INTEGER NOT NULL,
    valid INTEGER NOT NULL CHECK (valid >= 0),
    state INTEGER NOT NULL
) STRICT;
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    msg_id BLOB NOT NULL CHECK (length(msg_id) = 16),
    file INTEGER NOT NULL,
    position INTEGER NOT NULL,
    size INTEGER NOT NULL CHECK (size > 0),
    refs INTEGER NOT NULL CHECK (refs > 0)
) STRICT;
CREATE UNIQUE INDEX message_by_place ON message (file, position);
CREATE TABLE queue (
    queue_id BLOB PRIMARY KEY CHECK (length(queue_id) = 16),
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    config TEXT NOT NULL,
    version INTEGER NOT NULL,
    state INTEGER NOT NULL,
    inside INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    reserved_below INTEGER NOT NULL CHECK (reserved_below >= next_sequence),
    purged_below INTEGER NOT NULL,
    remembered INTEGER NOT NULL CHECK (remembered >= 0),
    ready INTEGER NOT NULL CHECK (ready >= 0),
    in_flight INTEGER NOT NULL CHECK (in_flight >= 0),
    delayed INTEGER NOT NULL CHECK (delayed >= 0),
    damaged INTEGER NOT NULL CHECK (damaged >= 0),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    published INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    redelivered INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    expired INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    rejected INTEGER NOT NULL DEFAULT 0,
    purged INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX queue_by_name ON queue (tenant, name) WHERE state = 0;
CREATE UNIQUE INDEX queue_by_inside ON queue (inside) WHERE state = 0;
CREATE TABLE item (
    inside INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    message INTEGER NOT NULL,
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    due_at INTEGER CHECK ((due_at IS NOT NULL) = (state IN (1, 2))),
    expires_at INTEGER,
    published_at INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    origin BLOB,
    PRIMARY KEY (inside, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX item_ready ON item (inside, priority DESC, sequence) WHERE state = 0;
CREATE INDEX item_due ON item (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX item_expires ON item (expires_at)
    WHERE expires_at IS NOT NULL AND state <> 1 AND state <> 3;
CREATE INDEX item_damaged ON item (inside, sequence) WHERE state = 3;
CREATE TABLE seen (
    queue_id BLOB NOT NULL,
    key_hash BLOB NOT NULL CHECK (length(key_hash) = 16),
    body_hash BLOB NOT NULL CHECK (length(body_hash) = 16),
    sequence INTEGER NOT NULL,
    msg_id BLOB NOT NULL,
    message_count INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue_id, key_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX seen_until ON seen (until);
CREATE TABLE target (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('queue', 'stream')),
    name TEXT NOT NULL,
    next_number INTEGER NOT NULL,
    waiting INTEGER NOT NULL CHECK (waiting >= 0),
    UNIQUE (tenant, kind, name)
) STRICT;
CREATE TABLE outgoing (
    target INTEGER NOT NULL,
    number INTEGER NOT NULL,
    message INTEGER NOT NULL,
    origin BLOB NOT NULL,
    PRIMARY KEY (target, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE doomed (inside INTEGER PRIMARY KEY) STRICT;
CREATE TABLE registry_due (queue_id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID
"""

TO_FORMAT_2: Final = (
    *(
        f"ALTER TABLE queue ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
        for name in ("rejected", "purged", "refused")
    ),
    "UPDATE store SET format = 2 WHERE id = 1",
)
"""Format 1 has three totals fewer: what was before is counted nowhere."""

# The store

STORE_MAKE: Final = "INSERT INTO store VALUES (1, ?, ?, 0, 1, 0, 0, 1, NULL)"
STORE: Final = (
    "SELECT format, store_id, round, clean, clock, next_file, last_v1_file FROM store WHERE id = 1"
)
ROUND: Final = "UPDATE store SET round = round + 1 WHERE id = 1 RETURNING round"
SET_STORE_ID: Final = "UPDATE store SET store_id = ? WHERE id = 1"
SET_CLEAN: Final = "UPDATE store SET clean = ? WHERE id = 1"
SET_CLOCK: Final = "UPDATE store SET clock = max(clock, ?) WHERE id = 1"
SET_LAST_V1_FILE: Final = "UPDATE store SET last_v1_file = ? WHERE id = 1"
TAKE_FILE: Final = "UPDATE store SET next_file = next_file + 1 WHERE id = 1 RETURNING next_file - 1"
TAKE_INSIDE: Final = (
    "UPDATE store SET next_inside = next_inside + 1 WHERE id = 1 RETURNING next_inside - 1"
)

# Files

FILE_MAKE: Final = "INSERT INTO file VALUES (?, 0, 0, ?)"
RAISE_FILE: Final = "UPDATE store SET next_file = max(next_file, ?) WHERE id = 1"
FILE: Final = "SELECT number, size, valid, state FROM file WHERE number = ?"
FILES: Final = "SELECT number, size, valid, state FROM file ORDER BY number"
FILE_SIZE: Final = "UPDATE file SET size = ? WHERE number = ?"
FILE_STATE: Final = "UPDATE file SET state = ? WHERE number = ?"
FILE_MORE: Final = "UPDATE file SET valid = valid + ? WHERE number = ? AND state <> 4"
FILE_LESS: Final = """
UPDATE file SET valid = valid - ?1, state = CASE WHEN state = 1 AND valid = ?1 THEN 4 ELSE state END
WHERE number = ?2
"""
FILE_REMOVE: Final = "DELETE FROM file WHERE number = ?"

# Messages

MESSAGE_LAST: Final = "SELECT max(id) FROM message"
MESSAGE_MAKE: Final = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)"
MESSAGE_REFS: Final = "SELECT refs FROM message WHERE id = ?"
MESSAGE_LAST_REF: Final = "DELETE FROM message WHERE id = ? AND refs = ?"
MESSAGE_LESS: Final = "UPDATE message SET refs = refs - ? WHERE id = ?"
MESSAGE_AT: Final = (
    "SELECT id FROM message WHERE file = ? AND position = ? AND msg_id = ? AND size = ?"
)
MESSAGE_MORE: Final = "UPDATE message SET refs = refs + ? WHERE id = ?"
MESSAGES_IN: Final = (
    "SELECT id, msg_id, file, position, size FROM message WHERE file = ? ORDER BY position"
)
MESSAGE_MOVE: Final = (
    "UPDATE message SET file = ?, position = ? WHERE file = ? AND position = ? AND msg_id = ?"
    " RETURNING size"
)

# Queues

QUEUE_MAKE: Final = """
INSERT INTO queue VALUES (
    ?, ?, ?, ?, 1, 0, ?, 0, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
)
"""
QUEUE: Final = "SELECT * FROM queue WHERE queue_id = ?"
QUEUE_NAMED: Final = "SELECT * FROM queue WHERE tenant = ? AND name = ? AND state = 0"
QUEUE_INSIDE: Final = "SELECT * FROM queue WHERE inside = ? AND state = 0"
QUEUES: Final = (
    "SELECT * FROM queue WHERE tenant = ? AND name > ? AND state = 0 ORDER BY name LIMIT ?"
)
QUEUE_COUNT: Final = "SELECT count(*) FROM queue WHERE tenant = ? AND state = 0"
QUEUES_SUMS: Final = """
SELECT coalesce(sum(ready), 0), coalesce(sum(in_flight), 0), coalesce(sum(delayed), 0),
    coalesce(sum(damaged), 0), coalesce(sum(bytes), 0)
FROM queue WHERE state = 0
"""
QUEUE_CONFIG: Final = (
    "UPDATE queue SET config = ?, version = version + 1 WHERE queue_id = ? AND state = 0"
)
QUEUE_RESERVE: Final = (
    "UPDATE queue SET reserved_below = max(reserved_below, ?) WHERE queue_id = ? AND state = 0"
)
QUEUE_PURGE: Final = """
UPDATE queue SET inside = ?, purged_below = next_sequence,
    ready = 0, in_flight = 0, delayed = 0, damaged = 0, bytes = 0
WHERE queue_id = ? AND state = 0
"""
QUEUE_DELETE: Final = """
UPDATE queue SET state = 1, purged_below = next_sequence,
    ready = 0, in_flight = 0, delayed = 0, damaged = 0, bytes = 0
WHERE queue_id = ? AND state = 0
"""
QUEUE_SUMS: Final = """
UPDATE queue SET ready = ready + ?, in_flight = in_flight + ?, delayed = delayed + ?,
    damaged = damaged + ?, bytes = bytes + ?
WHERE inside = ? AND state = 0
"""
QUEUE_MORE: Final = (
    "UPDATE queue SET next_sequence = next_sequence + ?1"
    " WHERE inside = ?2 AND state = 0 AND next_sequence = ?3"
)
QUEUE_RAISE: Final = """
UPDATE queue SET next_sequence = max(next_sequence, ?1), reserved_below = max(reserved_below, ?2)
WHERE inside = ?3 AND state = 0
"""
QUEUE_RESTORE: Final = """
UPDATE queue SET next_sequence = max(next_sequence, ?1), reserved_below = max(reserved_below, ?2),
    purged_below = max(purged_below, ?3), version = max(version, ?4)
WHERE queue_id = ?5 AND state = 0
"""
QUEUE_TOTALS: Final = """
UPDATE queue SET published = published + ?, delivered = delivered + ?, redelivered = redelivered + ?,
    acked = acked + ?, expired = expired + ?, dead_lettered = dead_lettered + ?,
    dropped = dropped + ?, duplicates = duplicates + ?, rejected = rejected + ?,
    purged = purged + ?, refused = refused + ?
WHERE queue_id = ?
"""
QUEUE_REMEMBERED: Final = "UPDATE queue SET remembered = remembered + ? WHERE queue_id = ?"
QUEUE_REMOVE: Final = "DELETE FROM queue WHERE queue_id = ? AND state = 1"
DOOM: Final = "INSERT INTO doomed VALUES (?)"
DOOMED: Final = "SELECT min(inside) FROM doomed"
DOOMED_REMOVE: Final = "DELETE FROM doomed WHERE inside = ?"
REGISTRY_DUE: Final = "INSERT OR IGNORE INTO registry_due VALUES (?)"
REGISTRY_DUES: Final = (
    "SELECT queue.* FROM (SELECT queue_id FROM registry_due LIMIT ?) AS due"
    " CROSS JOIN queue USING (queue_id)"
)
REGISTRY_SETTLE: Final = "DELETE FROM registry_due WHERE queue_id = ?"

# Items

_COLUMNS: Final = (
    "i.inside, i.sequence, i.state, i.priority, i.due_at, i.expires_at, i.published_at,"
    " i.deliveries, i.origin, m.id, m.msg_id, m.file, m.position, m.size"
)
# The join goes from items to messages and never the other way, whatever SQLite thinks of their numbers.
_FROM: Final = f"SELECT {_COLUMNS} FROM item AS i CROSS JOIN message AS m ON m.id = i.message"  # noqa: S608 its own columns
ITEM_MAKE: Final = "INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ITEM: Final = f"{_FROM} WHERE i.inside = ? AND i.sequence = ?"
ITEMS_BETWEEN: Final = f"{_FROM} WHERE i.inside = ? AND i.sequence BETWEEN ? AND ?"
ITEMS_READY: Final = (
    f"{_FROM} WHERE i.inside = ? AND i.state = 0 ORDER BY i.priority DESC, i.sequence LIMIT ?"
)
ITEMS_FROM: Final = f"{_FROM} WHERE i.inside = ? AND i.sequence >= ? ORDER BY i.sequence LIMIT ?"
# Without its name SQLite would take the primary key, and look at each item of the queue.
ITEMS_DAMAGED: Final = (
    f"SELECT {_COLUMNS} FROM item AS i INDEXED BY item_damaged"  # noqa: S608 its own columns
    " CROSS JOIN message AS m ON m.id = i.message"
    " WHERE i.inside = ? AND i.state = 3 ORDER BY i.sequence LIMIT ?"
)
ITEMS_IN_FILE: Final = f"{_FROM} WHERE m.file = ? AND i.state <> 3 LIMIT ?"
ITEMS_DUE: Final = f"{_FROM} WHERE i.due_at IS NOT NULL AND i.due_at <= ? ORDER BY i.due_at LIMIT ?"
ITEMS_EXPIRED: Final = (
    f"{_FROM} WHERE i.expires_at IS NOT NULL AND i.state <> 1 AND i.state <> 3"
    " AND i.expires_at <= ? ORDER BY i.expires_at LIMIT ?"
)
NEXT_DUE: Final = "SELECT min(due_at) FROM item WHERE due_at IS NOT NULL"
NEXT_EXPIRES: Final = (
    "SELECT min(expires_at) FROM item WHERE expires_at IS NOT NULL AND state <> 1 AND state <> 3"
)
NEXT_FORGOTTEN: Final = "SELECT min(until) FROM seen"
ITEM_CHANGE: Final = (
    "UPDATE item SET state = ?, due_at = ?, deliveries = ? WHERE inside = ? AND sequence = ?"
)
ITEM_EXPIRES: Final = "UPDATE item SET expires_at = ? WHERE inside = ? AND sequence = ?"
ITEM_REMOVE: Final = "DELETE FROM item WHERE inside = ? AND sequence = ?"

# Repeats

SEEN: Final = (
    "SELECT key_hash, body_hash, sequence, msg_id, message_count, until FROM seen"
    " WHERE queue_id = ? AND key_hash = ?"
)
SEEN_MAKE: Final = "INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?)"
SEEN_OLD: Final = "SELECT queue_id, key_hash FROM seen WHERE until <= ? ORDER BY until LIMIT ?"
SEEN_REMOVE: Final = "DELETE FROM seen WHERE queue_id = ? AND key_hash = ?"

# Outgoing

TARGET_MAKE: Final = (
    "INSERT OR IGNORE INTO target (tenant, kind, name, next_number, waiting) VALUES (?, ?, ?, 1, 0)"
)
TARGET: Final = (
    "SELECT id, tenant, kind, name, next_number FROM target"
    " WHERE tenant = ? AND kind = ? AND name = ?"
)
TARGETS: Final = "SELECT id, tenant, kind, name, next_number FROM target ORDER BY id"
TARGET_NUMBER: Final = "UPDATE target SET next_number = max(next_number, ?) WHERE id = ?"
TARGET_TAKE: Final = (
    "UPDATE target SET next_number = next_number + ?1 WHERE id = ?2 RETURNING next_number - ?1"
)
TARGET_MORE: Final = "UPDATE target SET waiting = waiting + ? WHERE id = ?"
OUTGOING_MAKE: Final = "INSERT INTO outgoing VALUES (?, ?, ?, ?)"
OUTGOING: Final = (
    "SELECT o.target, o.number, o.origin, m.id, m.msg_id, m.file, m.position, m.size"
    " FROM outgoing AS o CROSS JOIN message AS m ON m.id = o.message"
    " WHERE o.target = ? ORDER BY o.number LIMIT ?"
)
OUTGOING_ONE: Final = (
    "SELECT o.target, o.number, o.origin, m.id, m.msg_id, m.file, m.position, m.size"
    " FROM outgoing AS o CROSS JOIN message AS m ON m.id = o.message"
    " WHERE o.target = ? AND o.number = ?"
)
OUTGOING_RENUMBER: Final = "UPDATE outgoing SET number = ? WHERE target = ? AND number = ?"
OUTGOING_REMOVE: Final = "DELETE FROM outgoing WHERE target = ? AND number = ?"
OUTGOING_COUNTS: Final = "SELECT id, waiting FROM target WHERE waiting > 0"

# What rows say of each other, and what is not so: each statement finds nothing.

CHECKS: Final = {
    "a message whose refs are not its items and outgoing rows": """
SELECT m.id, m.refs FROM message AS m WHERE m.refs <>
    (SELECT count(*) FROM item WHERE message = m.id)
    + (SELECT count(*) FROM outgoing WHERE message = m.id)
""",
    "an item without its message": (
        "SELECT inside, sequence FROM item WHERE message NOT IN (SELECT id FROM message)"
    ),
    "an outgoing row without its message": (
        "SELECT target, number FROM outgoing WHERE message NOT IN (SELECT id FROM message)"
    ),
    "an outgoing row without its target, or above its numbers": """
SELECT o.target, o.number FROM outgoing AS o LEFT JOIN target AS t ON t.id = o.target
WHERE t.id IS NULL OR o.number >= t.next_number
""",
    "a target whose waiting is not its outgoing rows": """
SELECT t.id, t.waiting FROM target AS t
WHERE t.waiting <> (SELECT count(*) FROM outgoing WHERE target = t.id)
""",
    "a file whose valid is not what its messages have": """
SELECT f.number, f.valid FROM file AS f
WHERE f.valid <> (SELECT coalesce(sum(size), 0) FROM message WHERE file = f.number)
""",
    "a message without its file": (
        "SELECT id, file FROM message WHERE file NOT IN (SELECT number FROM file)"
    ),
    "a message that does not lie in its file": """
SELECT m.id FROM message AS m JOIN file AS f ON f.number = m.file
WHERE f.state <> 3 AND m.position + m.size > f.size
""",
    "a sealed file without a live record": "SELECT number FROM file WHERE state = 1 AND valid = 0",
    "a doomed file with a live record": "SELECT number FROM file WHERE state = 4 AND valid > 0",
    "two open files": "SELECT count(*) FROM file WHERE state = 0 HAVING count(*) > 1",
    "a file above the numbers that were given": (
        "SELECT number FROM file WHERE number >= (SELECT next_file FROM store)"
    ),
    "a queue whose sums are not what its items add up to": """
SELECT q.queue_id, q.ready, q.in_flight, q.delayed, q.damaged, q.bytes FROM queue AS q LEFT JOIN (
    SELECT i.inside, sum(i.state = 0) AS ready, sum(i.state = 1) AS in_flight,
        sum(i.state = 2) AS delayed, sum(i.state = 3) AS damaged, sum(m.size) AS bytes
    FROM item AS i JOIN message AS m ON m.id = i.message GROUP BY i.inside
) AS s ON s.inside = q.inside
WHERE q.state = 0 AND (q.ready, q.in_flight, q.delayed, q.damaged, q.bytes) <> (
    coalesce(s.ready, 0), coalesce(s.in_flight, 0), coalesce(s.delayed, 0),
    coalesce(s.damaged, 0), coalesce(s.bytes, 0))
""",
    "a queue whose remembered are not its repeats": """
SELECT q.queue_id, q.remembered FROM queue AS q
WHERE q.remembered <> (SELECT count(*) FROM seen WHERE queue_id = q.queue_id)
""",
    "an item above the sequences that were given": """
SELECT i.inside, i.sequence FROM item AS i JOIN queue AS q ON q.inside = i.inside
WHERE i.sequence >= q.next_sequence OR (q.state = 0 AND i.sequence < q.purged_below)
""",
    "an item that is in no queue and is not doomed": """
SELECT inside, sequence FROM item WHERE inside NOT IN (SELECT inside FROM queue WHERE state = 0)
    AND inside NOT IN (SELECT inside FROM doomed)
""",
    "a live queue that is doomed": (
        "SELECT inside FROM queue WHERE state = 0 AND inside IN (SELECT inside FROM doomed)"
    ),
}
