"""A stream changes hands: what the next owner knows, and what the last one may do no more."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from support.guards import remove
from support.waiting import eventually

from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import CoordinationUnknown
from bottomless_server.ingest.local import handover
from bottomless_server.node import owner as owner_module
from bottomless_server.node.core import ownership
from bottomless_server.node.lease import NodeLease
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import INTERNAL, ROUTE, STREAM, IngestHarness, no_space, problem

COMMITS = "/internal/v1/commits"


async def numbered(harness: IngestHarness, sequence: int, *values: str) -> httpx.Response:
    headers = {"producer-id": "p", "producer-seq": str(sequence)}
    body = {"records": [{"value": value} for value in values]}
    return await harness.client.post(ROUTE, json=body, headers=headers)


async def another(harness: IngestHarness, tmp_path: Path) -> IngestHarness:
    """A node with a disk of its own, in the same installation."""
    other = IngestHarness(tmp_path / "other", before=harness, ingest_url="unix:///other.sock")
    return await other.start()


async def moved(harness: IngestHarness, tmp_path: Path) -> IngestHarness:
    """The next owner, after all was published and the first one stopped."""
    await harness.published(
        (await harness.record()).published_next or harness.appender.log.committed_next
    )
    await harness.aclose()
    assert not (await harness.record()).dirty
    return await another(harness, tmp_path)


async def test_the_next_owner_knows_every_producer(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    assert (await numbered(harness, 0, "a", "b")).status_code == 200
    other = await moved(harness, tmp_path)

    repeated = await numbered(other, 0, "a", "b")
    gap = await numbered(other, 3, "d")
    new = await numbered(other, 2, "c")

    assert (repeated.json()["first_offset"], repeated.json()["duplicates"]) == (0, 2)
    assert problem(gap) == (409, "producer-sequence-gap")
    assert new.json()["first_offset"] == 2
    after = other.after_crash()
    await after.start()
    assert (await numbered(after, 2, "c")).json()["duplicates"] == 1, "its own log says so now"
    await after.aclose()
    await other.aclose()


async def test_the_next_owner_knows_them_also_after_a_crash_before_its_first_append(
    tmp_path: Path,
) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    other = await moved(harness, tmp_path)
    assert (await other.chunks(1)).status_code == 200
    after = other.after_crash()
    await after.start()

    assert (await numbered(after, 0, "a")).json()["duplicates"] == 1
    await after.aclose()
    await other.aclose()


async def test_the_next_owner_knows_them_after_a_crash_between_its_dirty_mark_and_its_first_write(
    tmp_path: Path,
) -> None:
    """Found by the simulation: `PYTHONHASHSEED=1` and seed 6."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    other = await moved(harness, tmp_path)
    assert (await other.chunks(1)).status_code == 200
    other.files.faults["pwritev"].append(no_space())
    assert problem(await numbered(other, 1, "b")) == (503, "storage-full")
    assert (await other.record()).dirty
    after = other.after_crash()
    await after.start()

    assert (await numbered(after, 0, "a")).json()["duplicates"] == 1
    assert (await numbered(after, 1, "b")).json()["first_offset"] == 1
    await after.aclose()
    await other.aclose()


async def test_the_next_owner_knows_them_after_a_crash_behind_the_header_of_its_first_segment(
    tmp_path: Path,
) -> None:
    """Found by the simulation: seeds 2008 and 2010."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    other = await moved(harness, tmp_path)
    home = (await other.record()).home
    other.files.faults["pwritev"] = [0, no_space()]
    assert problem(await numbered(other, 1, "b")) == (503, "storage-full")
    assert (await other.record()).home == home, "the claim comes after its log"
    await check_after_header(other)


async def test_the_same_where_an_earlier_build_had_claimed_the_stream_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    other = await moved(harness, tmp_path)
    other.files.faults["pwritev"] = [0, no_space()]
    with monkeypatch.context() as earlier:
        remove(earlier, "what the last owner left, kept before the claim", lambda *_: True)
        assert problem(await numbered(other, 0, "c")) == (503, "storage-full")
    assert (await other.record()).dirty
    await check_after_header(other)


async def check_after_header(other: IngestHarness) -> None:
    """A node died when its first segment had its header, and nothing else."""
    assert [path.stat().st_size for path in other.segments()] == [HEADER_SIZE]
    after = other.after_crash()
    await after.start()

    assert (await numbered(after, 0, "a")).json()["duplicates"] == 1
    assert (await numbered(after, 1, "b")).json()["first_offset"] == 1
    again = after.after_crash()
    await again.start()
    assert (await numbered(again, 0, "a")).json()["duplicates"] == 1, "its own log says so now"
    for one in (again, after, other):
        await one.aclose()


async def test_what_was_known_before_a_loss_is_not_known_behind_its_gap(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    other = await moved(harness, tmp_path)
    await numbered(other, 1, "lost")
    await take_over(other)
    third = IngestHarness(tmp_path / "third", before=harness, ingest_url="unix:///third.sock")
    await third.start()

    assert problem(await numbered(third, 1, "lost")) == (409, "producer-unknown")
    await third.aclose()
    await other.aclose()


async def test_a_stream_that_knows_too_much_waits_for_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "PRODUCERS_SIZE_MAX", 10)
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await numbered(harness, 0, "a")
    await harness.published(1)
    await harness.aclose()

    assert (await harness.record()).dirty


async def test_a_drain_asks_for_an_upload_of_everything_and_waits_for_it(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    first = (await harness.internal.get(COMMITS)).json()
    assert first["streams"][0]["max_age_ms"] > 0
    draining = asyncio.create_task(harness.service.drain())
    params = {"after": first["token"], "wait_ms": 20_000}
    told = (await harness.internal.get(COMMITS, params=params)).json()

    assert [(s["committed_next"], s["max_age_ms"]) for s in told["streams"]] == [(2, 0)]
    assert problem(await harness.append("c")) == (503, "draining")
    assert (await harness.chunks(0)).status_code == 200, "tails are served on"
    assert not draining.done()
    await harness.published(2)
    await draining


async def test_a_drain_waits_for_an_uploader_that_begins_to_follow_after_it(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up at once within a second of a start, and the stream waited for this node's return.
    The tests of hand-overs were blind: their uploader always followed before the drain."""
    monkeypatch.setattr(handover, "FOLLOWER_SECONDS", 600.0)
    await harness.append("a")
    with capture_logs() as logs:
        draining = asyncio.create_task(harness.service.drain())
        await eventually(lambda: harness.service.feed.hurried)
        assert not draining.done()
        assert (await harness.internal.get(COMMITS)).json()["streams"][0]["max_age_ms"] == 0
        await harness.published(1)
        await draining
    assert not any("nobody uploads" in line["event"] for line in logs)


async def test_a_drain_that_nobody_follows_waits_for_nobody(harness: IngestHarness) -> None:
    await harness.append("a")
    with capture_logs() as logs:
        await harness.service.drain()
    assert any("nobody uploads" in line["event"] for line in logs)
    assert (await harness.record()).dirty


async def take_over(harness: IngestHarness) -> None:
    """What an operator's forced takeover makes of the record, once the lease is gone."""
    home = (await harness.record()).home
    assert home is not None
    while await harness.coordination.get(node_key(home)) is not None:
        harness.time.advance(500)

    def taken(record: StreamRecord) -> StreamRecord:
        return replace(
            record,
            epoch=record.epoch + 1,
            version=record.version + 1,
            home=None,
            dirty=False,
            published_next=record.reserved_next,
        )

    await harness.streams.update(STREAM, taken)


async def deposed(harness: IngestHarness, tmp_path: Path) -> IngestHarness:
    """The new owner of a stream whose old one slept through it, with a tail of its own."""
    await harness.append("only here")
    await take_over(harness)
    other = await another(harness, tmp_path)
    assert (await other.append("new")).status_code == 200
    return other


async def check_zombie(harness: IngestHarness) -> None:
    """What a deposed owner does, be it before or after it renewed its lease."""
    assert problem(await harness.append("from the past"))[0] == 503
    assert problem(await harness.chunks(0)) == (503, "not-owner")
    assert problem(await harness.chunks(1, wait_ms=1)) == (503, "not-owner")
    where = await harness.internal.get(f"{INTERNAL}/locate", params={"timestamp": 0})
    assert problem(where) == (503, "not-owner")


async def test_a_deposed_owner_does_nothing_before_and_after_it_renewed_its_lease(
    harness: IngestHarness, tmp_path: Path
) -> None:
    other = await deposed(harness, tmp_path)
    await check_zombie(harness)
    assert problem(await harness.internal.get(COMMITS)) == (503, "not-owner")

    await harness.lease.renew()
    assert (await harness.internal.get(COMMITS)).json()["streams"] == []
    await check_zombie(harness)

    aside = [path.name for path in (harness.data_dir / "streams-aside").iterdir()]
    assert aside == [f"{STREAM}.3"], "what only it had is kept for an operator"
    await other.aclose()


async def test_without_the_check_of_its_claim_a_zombie_feeds_the_uploader(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the claim, confirmed again after a lapse", lambda _: True)
    with pytest.raises(AssertionError):
        await test_a_deposed_owner_does_nothing_before_and_after_it_renewed_its_lease(
            harness, tmp_path
        )


@pytest.mark.parametrize("guard", ["is_live", "require"])
async def test_without_its_lease_an_owner_of_the_past_acknowledges(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """Must fail: the lease, and the margin by which the owner stops before others begin."""
    if guard == "is_live":
        monkeypatch.setattr(NodeLease, guard, lambda *_: True)
    else:
        remove(monkeypatch, "the lease of a node", lambda *_: None)
    other = await deposed(harness, tmp_path)
    with pytest.raises(AssertionError):
        await check_zombie(harness)
    await other.aclose()


async def silence(harness: IngestHarness) -> int:
    """For how many ms nobody may act, once an owner that is cut off has stopped by its clock."""
    await harness.append("a")
    home = (await harness.record()).home
    assert home is not None
    while harness.lease.is_live():
        harness.time.advance(100)
    stopped_at = harness.time.elapsed
    while await harness.coordination.get(node_key(home)) is not None:
        harness.time.advance(100)
    return harness.time.elapsed - stopped_at


async def test_an_owner_stops_two_margins_before_others_may_begin(harness: IngestHarness) -> None:
    assert await silence(harness) >= 2 * harness.lease._bounds.margin_ms - 200 > 0


async def test_without_the_margin_a_clock_that_is_late_is_too_late(harness: IngestHarness) -> None:
    harness.lease._bounds = harness.lease._bounds._replace(margin_ms=0)
    await harness.lease.renew()
    assert await silence(harness) <= 100


async def test_a_lapse_without_a_successor_costs_nothing(harness: IngestHarness) -> None:
    """The home goes on with its own tail, and the uploader is told of it again, untouched."""
    await harness.append("a")
    token = (await harness.internal.get(COMMITS)).json()["token"]
    harness.time.advance(60_000)
    await harness.lease.renew()

    async def told() -> list[Any]:
        answer = await harness.internal.get(COMMITS, params={"after": token})
        streams: list[Any] = answer.json()["streams"]
        return streams

    found: list[Any] = []
    async with asyncio.timeout(240):
        while not found:
            found = await told()
            await asyncio.sleep(0.01)
    assert found[0]["committed_next"] == 1
    assert (await harness.append("b")).json()["first_offset"] == 1
    await eventually(lambda: harness.appender.claim.held)


async def test_without_the_dirty_mark_records_would_be_lost(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ownership.claim

    def unmarked(record: StreamRecord, *arguments: Any, **named: Any) -> StreamRecord:
        return real(replace(record, dirty=False), *arguments, **named)

    await harness.append("only here")
    harness.time.advance(60_000)
    other = await another(harness, tmp_path)
    assert problem(await other.append("b")) == (503, "not-owner")

    monkeypatch.setattr(ownership, "claim", unmarked)
    again = await other.append("b")
    assert again.json()["first_offset"] == 0, "an offset is used twice without the guard"
    await other.aclose()


async def test_a_reservation_whose_answer_was_lost_leaves_no_stream_dirty(tmp_path: Path) -> None:
    """The checks before were blind: somebody always appended again before the drain."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    opened = await harness.append_raw(
        b'{"records":[{"value":"x"}]}', **{"stream-expected-offset": "5"}
    )
    assert opened.status_code in (409, 412)
    transact = harness.coordination.transact

    async def lost(*arguments: Any, **named: Any) -> Any:
        vars(harness.coordination).pop("transact")
        await transact(*arguments, **named)
        raise CoordinationUnknown("the answer was lost")

    vars(harness.coordination)["transact"] = lost
    assert (await harness.append("x")).status_code == 503
    assert (await harness.record()).dirty
    await harness.aclose()
    assert not (await harness.record()).dirty
