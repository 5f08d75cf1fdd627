"""Appends with numbered records: one that is refused takes along what came after it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.guards import remove
from support.wire import Mishap, Passage

from bottomless.errors import Code, Outcome, Overloaded, StoreError
from bottomless.model.chunk import AppendMode
from bottomless_server.ingest.leaderless.core.followers import Followers
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import IDS, an_append, waiting

FAILS = Passage(Mishap.LOSE_REQUEST, silence_seconds=3.5)


def numbered(*ids: int, producer: str = "p", expected: int | None = None) -> Append:
    conditions = Conditions(FromProducer(producer, 0, AppendMode.HIGHWATER), expected)
    append = an_append(*[b"%d" % one for one in ids], conditions=conditions)
    return replace(append, ids=np.array(ids, np.int64))


def told_after_a_failed_put() -> tuple[Stores, WriterProcess, Sequence[Appended | StoreError]]:
    """Two appends of a producer and one of another; the object of the first cannot be put."""
    stores, writer = a_house(bounds=BOUNDS._replace(put_seconds=3.0))
    stores.trouble.next["drive.put"] = [FAILS]
    futures = [writer.put(0, numbered(1, 2))]
    stores.do(asyncio.sleep(0.5))
    futures += [writer.put(0, numbered(3, 4)), writer.put(0, numbered(1, producer="q"))]
    return stores, writer, writer.told(*futures)


def test_what_is_sent_again_after_a_failed_put_is_stored_and_in_order() -> None:
    stores, writer, said = told_after_a_failed_put()

    assert [getattr(one, "code", None) for one in said] == [
        Code.OBJECT_STORE_UNAVAILABLE,
        Code.OVERLOADED,
        None,
    ]
    assert all(one.outcome is Outcome.NONE for one in said if isinstance(one, StoreError))
    for append in (numbered(1, 2), numbered(3, 4)):
        again = writer.append(0, append)
        assert isinstance(again, Appended)
        assert again.record_count == 2
    assert stores.values(0) == [b"1", b"1", b"2", b"3", b"4"]


def test_without_its_guard_what_is_sent_again_counts_as_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch, "an append with numbered records after one that is refused", lambda _: False
    )
    stores, writer, _ = told_after_a_failed_put()

    again = writer.append(0, numbered(1, 2))

    assert isinstance(again, Appended)
    assert (again.record_count, again.duplicates) == (0, 2)
    assert b"2" not in stores.values(0)


def test_what_a_commit_of_unknown_outcome_holds_is_not_called_refused() -> None:
    """Both are in it, so nobody knows of either."""
    stores, writer = a_house()
    lost = Passage(Mishap.LOSE_REPLY, silence_seconds=1.0)
    stores.trouble.next["coordination.exec"] = [lost]
    futures = [writer.put(0, numbered(1, 2)), writer.put(0, numbered(3, 4))]
    until(stores, lambda: stores.tail(0).next_offset == 4)
    away = Passage(Mishap.LOSE_REQUEST, silence_seconds=1.0)
    stores.trouble.always["coordination.watch"] = away
    stores.do(asyncio.sleep(2))
    later = writer.put(0, numbered(5))

    said = writer.told(*futures, later)
    stores.trouble.always.clear()

    unknown, none = Outcome.UNKNOWN, Outcome.NONE
    assert [getattr(one, "outcome", None) for one in said] == [unknown, unknown, none]
    for append in (numbered(1, 2), numbered(3, 4), numbered(5)):
        assert isinstance(writer.append(0, append), Appended)
    assert stores.values(0) == [b"1", b"2", b"3", b"4", b"5"]


def test_who_expected_another_end_is_refused_alone() -> None:
    stores, writer = a_house()
    first, second = writer.told(writer.put(0, numbered(1, expected=7)), writer.put(0, numbered(2)))

    assert isinstance(first, StoreError)
    assert first.code is Code.OFFSET_MISMATCH
    assert isinstance(second, Appended)
    assert stores.values(0) == [b"2"]


def test_nobody_is_kept_in_mind_who_was_answered() -> None:
    refused: list[WaitingAppend] = []
    followers = Followers(lambda appends, _: refused.extend(appends))
    lines = [waiting(numbered(one))[0] for one in range(3)] + [waiting(an_append())[0]]
    for one in lines:
        followers.enter(IDS[0], one)
    assert len(followers) == 3

    lines[0].settle(Appended(0, 1, 0, 1))
    lines[1].settle(Overloaded("full"))
    assert refused == [lines[2]]
    lines[2].settle(Overloaded("full"))
    assert len(followers) == 0
