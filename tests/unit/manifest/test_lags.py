"""How far a consumer is behind, in records, seconds and bytes."""

import numpy as np
import pytest

from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, Node, no_entries
from bottomless.model.names import StreamId, Uid
from bottomless_server.manifest.consumers.core.lag import Ends, Lag, asked_of_tail, lag_of
from bottomless_server.protocol.places import TailPlace

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
NOW = 100_000


def a_root(*rows: tuple[EntryKind, int, int, int, int, int], first_offset: int = 0) -> Node:
    """Each entry: kind, first and next offset, first and last timestamp, bytes."""
    entries = np.zeros(len(rows), dtype=ENTRY_DTYPE)
    for entry, row in zip(entries, rows, strict=True):
        entry["kind"], entry["first_offset"], entry["next_offset"] = row[:3]
        entry["first_timestamp"], entry["last_timestamp"], entry["byte_size"] = row[3:]
    next_offset = rows[-1][2] if rows else 0
    uid = Uid("0" * 32)
    given = entries if rows else no_entries()
    return Node(STREAM, uid, 0, first_offset, next_offset, 1, 1, 0, 0, entries=given)


ROOT = a_root(
    (EntryKind.FRAGMENT, 0, 100, 10_000, 20_000, 1_000),
    (EntryKind.GAP, 100, 150, 20_000, 20_000, 0),
    (EntryKind.FRAGMENT, 150, 200, 40_000, 60_000, 500),
)
TAIL = {200: TailPlace(70_000, 90), 205: TailPlace(80_000, 40)}


@pytest.mark.parametrize(
    ("next_offset", "lag"),
    [
        (0, Lag(210, 90.0, 1_590)),
        (50, Lag(160, 85.0, 1_090)),
        # In the gap: the first record after it is the first that is not processed.
        (120, Lag(90, 60.0, 590)),
        (150, Lag(60, 60.0, 590)),
        (175, Lag(35, 50.0, 340)),
        (200, Lag(10, 30.0, 90)),
        (205, Lag(5, 20.0, 40)),
        (210, Lag(0, 0.0, 0)),
        (250, Lag(0, 0.0, 0)),
    ],
)
def test_seconds_and_bytes_come_from_the_entries_and_the_tail(next_offset: int, lag: Lag) -> None:
    assert lag_of(next_offset, Ends(ROOT, 210, TAIL), NOW) == lag


def test_what_retention_removed_is_no_lag() -> None:
    root = a_root((EntryKind.FRAGMENT, 100, 200, 10_000, 20_000, 1_000), first_offset=100)
    assert lag_of(0, Ends(root, 200, {}), NOW) == Lag(100, 90.0, 1_000)


def test_what_nobody_can_tell_is_left_open() -> None:
    """The owner does not answer, or is of a release that does not know the question."""
    assert lag_of(50, Ends(ROOT, 210, {}), NOW) == Lag(160, 85.0, None)
    assert lag_of(205, Ends(ROOT, 210, {}), NOW) == Lag(5, None, None)
    assert lag_of(50, Ends(ROOT, None, {}), NOW) == Lag(None, 85.0, None)
    assert lag_of(200, Ends(ROOT, None, {}), NOW) == Lag(None, None, None)


def test_nobody_is_asked_where_all_is_published() -> None:
    assert asked_of_tail(50, ROOT, 200) is None
    assert lag_of(50, Ends(ROOT, 200, {}), NOW) == Lag(150, 85.0, 1_000)
    assert [asked_of_tail(one, ROOT, 210) for one in (0, 199, 200, 207, 210)] == [
        200,
        200,
        200,
        207,
        None,
    ]
    assert asked_of_tail(0, ROOT, None) is None


def test_a_clock_that_is_behind_makes_no_negative_age() -> None:
    assert lag_of(205, Ends(ROOT, 210, TAIL), 0) == Lag(5, 0.0, 40)


def test_an_empty_stream_has_no_lag() -> None:
    assert lag_of(0, Ends(a_root(), 0, {}), NOW) == Lag(0, 0.0, 0)
    assert lag_of(0, Ends(a_root(), 5, {0: TailPlace(99_000, 7)}), NOW) == Lag(5, 1.0, 7)
