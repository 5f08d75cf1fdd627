"""The names of a commit that is open keep their places, however long it is open.

The checks before were blind: no hour went by while a commit was open, and tables were never full.
"""

import random
from pathlib import Path

import httpx
import pytest
from support.guards import remove

from bottomless.errors import StoreError
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.open_commits import name_of_parts
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.commit_parts import OpenCommit, open_commit
from bottomless_server.ingest.producers.producers import New, decide
from bottomless_server.ingest.producers.tracking_room import TrackingRoom
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append
from unit.ingest.harness import IngestHarness, problem
from unit.ingest.staging import LARGE, SETTINGS, commit, cut_off, stage

HOUR_MS = 3_600_000
KEEP_MS = 100
BOUNDS = TrackingBounds(producer_count_max=6, append_count_max=3, key_count_max=9, keep_ms=KEEP_MS)


class Told:
    """What was stored of one producer's commits, as its writer knows it."""

    def __init__(self) -> None:
        self.number = 0
        """The next one, or the one that is open."""
        self.part_count = 0


def store(tracking: Tracking, asked: FromProducer, now: int) -> bool:
    """Decide, and commit what is new; False if it was refused."""
    append = Append(1, 1, 0, conditions=Conditions(asked))
    tracking.begin()
    try:
        new = isinstance(decide(tracking, append, now), New)
        if new:
            name, number, epoch = asked.producer_id, asked.number, asked.epoch
            entry = AppendEntry(asked.mode, 0, 1, 0, number, epoch, name)
            tracking.take_chunk(now, now, [entry])
    except StoreError:
        return False
    finally:
        tracking.end()
    return new


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_of_an_open_commit_is_never_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    room = TrackingRoom(5 * BOUNDS.producer_size)
    tracking, now = Tracking(BOUNDS), 0
    room.join(tracking, now)
    jobs = {name: Told() for name in ("one", "two", "three")}
    seen_open = refused = 0
    for step in range(2_000):
        now += chance.choice((0, 1, 7, KEEP_MS))
        room.tell(now)
        name = chance.choice([*jobs, ""])
        if not name:
            asked = FromProducer(f"new-{step}", 0, AppendMode.TRANSACTION, 0)
            refused += not store(tracking, asked, now)
        elif chance.random() < 0.7:
            told = jobs[name]
            whole = FromProducer(name, 0, AppendMode.TRANSACTION, told.number)
            parts, mode = name_of_parts(name), AppendMode.TRANSACTION
            part = FromProducer(parts, told.number, mode, told.part_count, part_of=whole)
            told.part_count += store(tracking, part, now)
        else:
            told = jobs[name]
            last = FromProducer(
                name, 0, AppendMode.TRANSACTION, told.number, parts_before=told.part_count
            )
            if store(tracking, last, now):
                told.number, told.part_count = told.number + 1, 0
            else:
                # A last part may be refused only where its producer is not known any more.
                assert name not in tracking.producers
        if step % 50 == 0:
            again = Tracking(BOUNDS)
            again.take_tracked(tracking.snapshot())
            needed = [
                [one.open_commits.needs(n) for n in one.producers] for one in (tracking, again)
            ]
            assert needed[0] == needed[1], "a snapshot says which are open"
        for job, told in jobs.items():
            known = open_commit(tracking, job)
            assert known == (OpenCommit(told.number, told.part_count) if told.part_count else None)
            seen_open += known is not None
    assert seen_open > 500
    assert refused > 50


async def by(harness: IngestHarness, producer: str) -> httpx.Response:
    headers = {"producer-id": producer, "producer-seq": "0"}
    return await harness.append_raw(b'{"records":[{"value":"p"}]}', **headers)


@pytest.fixture
async def narrow(tmp_path: Path) -> IngestHarness:
    harness = IngestHarness(tmp_path / "ingest", **SETTINGS, ingest_producer_count_max=4)
    return await (await harness.declare()).start()


async def test_who_is_new_is_refused_where_only_an_open_commit_could_make_room(
    narrow: IngestHarness,
) -> None:
    await cut_off(narrow, 1)
    await narrow.advance(HOUR_MS + 1_000)

    statuses = [(await by(narrow, producer)).status_code for producer in "abcd"]

    assert statuses == [200, 200, 429, 429]
    await narrow.service.appenders.finish_commits()
    again = await commit(narrow, await stage(narrow, "other pieces"))
    assert again.headers["idempotent-replayed"] == "true"
    values = await narrow.values()
    assert [value[:1] for value in values] == [b"0", b"p", b"p", b"1", b"2"], "each part once"
    await narrow.advance(HOUR_MS + 1_000)
    assert (await by(narrow, "c")).status_code == 200
    await narrow.aclose()


async def test_without_the_look_at_open_commits_a_part_is_stored_twice_or_never(
    narrow: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the look at open commits", lambda *_: False)
    with pytest.raises(AssertionError):
        await test_who_is_new_is_refused_where_only_an_open_commit_could_make_room(narrow)
    await narrow.aclose()


async def test_the_first_part_of_a_commit_does_not_take_the_place_of_its_last(
    narrow: IngestHarness,
) -> None:
    assert (await commit(narrow, await stage(narrow, "a"), number=6)).status_code == 200
    await narrow.advance(HOUR_MS + 1_000)
    for producer in "abc":
        assert (await by(narrow, producer)).status_code == 200
    ids = [await stage(narrow, f"{number}{LARGE}") for number in range(3)]

    refused = await commit(narrow, *ids)

    assert problem(refused) == (429, "quota-exceeded")
    assert refused.json()["outcome"] == "none", "nothing is begun that cannot be finished"
    assert len(await narrow.values()) == 4
    # Of those who were silent for an hour the job itself was the one for longest.
    await narrow.advance(HOUR_MS + 1_000)
    ids = [await stage(narrow, f"{number}{LARGE}") for number in range(3)]
    assert (await commit(narrow, *ids)).status_code == 200
    assert len(await narrow.values()) == 7
    await narrow.aclose()
