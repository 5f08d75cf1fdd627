"""A commit of staged batches that is too large for one append: stored in parts, whole in the end."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.guards import remove

from bottomless_server.ingest.producers import commit_parts
from bottomless_server.ingest.staged import batches as staged_module
from unit.ingest.harness import NAME, STREAM, IngestHarness, problem
from unit.ingest.staging import (
    KEEP_MS,
    LARGE,
    SETTINGS,
    begun_by_an_earlier_build,
    broken_read,
    commit,
    cut_off,
    files,
    last_number,
    raise_epoch,
    stage,
    staged_of,
    sweep,
    try_stage,
)


@pytest.fixture(autouse=True)
def nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes by the clock of the machine goes when a test says so."""
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    made = await IngestHarness(tmp_path / "ingest", **SETTINGS).declare()
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
async def leaving(tmp_path: Path) -> IngestHarness:
    """One that the test stops."""
    return await (await IngestHarness(tmp_path / "leaving", **SETTINGS).declare()).start()


async def test_what_is_too_large_for_one_append_takes_one_number_as_any_other(
    harness: IngestHarness,
) -> None:
    """The parts had the numbers that follow, and a commit of one of those was taken for a repeat."""
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    answer = await commit(harness, *ids, number=7)

    assert (answer.json()["first_offset"], answer.json()["count"]) == (0, 3)
    assert await last_number(harness) == 7
    assert [value[:1] for value in await harness.values()] == [b"0", b"1", b"2"]
    assert files(harness) == []

    again = await commit(
        harness, *[await stage(harness, f"{n}{LARGE}") for n in range(3)], number=7
    )
    assert (again.json()["first_offset"], again.json()["next_offset"]) == (0, 3)
    assert (again.json()["count"], again.json()["duplicates"]) == (0, 3)
    assert len(await harness.values()) == 3
    assert files(harness) == []

    other = await commit(harness, await stage(harness, "other records"), number=8)
    assert (other.json()["first_offset"], other.json()["count"]) == (3, 1)


async def large(harness: IngestHarness, number: int, parts: int) -> httpx.Response:
    ids = [await stage(harness, f"{part}{LARGE}") for part in range(parts)]
    return await commit(harness, *ids, number=number)


def placed(answer: httpx.Response) -> tuple[int | None, ...]:
    body = answer.json()
    assert body["count"] == 0, "it is a repeat"
    return tuple(body[name] for name in ("first_offset", "next_offset", "duplicates"))


async def test_a_repeat_names_its_first_record_or_says_that_this_is_forgotten(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: no later commit was large enough to push out the parts, and
    then the last part was taken for all of it."""
    await large(harness, 7, 3)
    assert placed(await large(harness, 7, 3)) == (0, 3, 3)
    await large(harness, 8, 9)

    assert placed(await large(harness, 8, 9)) == (None, 12, 9)
    assert placed(await large(harness, 7, 3)) == (None, 12, 3)
    await commit(harness, await stage(harness, "a", "b"), number=9)
    assert placed(await commit(harness, await stage(harness, "a", "b"), number=9)) == (12, 14, 2)
    after = await harness.after_crash().start()
    assert placed(await large(after, 8, 9)) == (None, 14, 9)
    await after.aclose()


async def test_a_number_below_the_first_that_was_ever_stored_is_no_repeat(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: they passed over numbers above the first."""
    assert (await large(harness, 10, 2)).status_code == 200
    refused = await large(harness, 5, 2)
    assert problem(refused) == (409, "producer-sequence-overlap")
    assert (refused.json()["last_seq"], refused.json()["outcome"]) == (10, "none")


async def test_who_lists_producers_sees_no_names_of_parts(harness: IngestHarness) -> None:
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    await commit(harness, *ids, number=7)
    listed = (await harness.client.get(f"/v1/streams/{NAME}/producers")).json()
    assert [one["producer_id"] for one in listed["items"]] == ["job"]


async def test_a_producer_is_known_from_its_first_part_on(harness: IngestHarness) -> None:
    """An import that starts again finds its name, and with it the size of its rounds."""
    await cut_off(harness, 1)
    shown = await harness.client.get(f"/v1/streams/{NAME}/producers/job")
    assert (shown.json()["mode"], shown.json()["last_seq"]) == (None, None)


@pytest.mark.parametrize("number", [7, 8])
@pytest.mark.parametrize("header", ["txn-number", "producer-seq"])
async def test_no_plain_append_gets_in_between_the_parts_of_a_commit(
    harness: IngestHarness, header: str, number: int
) -> None:
    await cut_off(harness, 1)
    refused = await harness.append_raw(
        b'{"records": [{"value": "z"}]}', **{"producer-id": "job", header: str(number)}
    )
    assert problem(refused) == (409, "producer-sequence-gap")
    assert refused.json()["expected_seq"] == 7


async def test_a_fence_finishes_what_is_begun_before_it_names_the_last_number(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: they raised epochs of producers that had no commit open."""
    ids = await cut_off(harness, 1)
    raised = (await raise_epoch(harness)).json()

    assert (raised["epoch"], raised["last_seq"], raised["mode"]) == (1, 7, "txn")
    assert [value[:1] for value in await harness.values()] == [b"0", b"1", b"2"]
    assert files(harness) == []
    assert problem(await commit(harness, *ids)) == (409, "producer-fenced")
    later = await commit(harness, await stage(harness, "new"), number=8, producer_epoch="1")
    assert later.json()["count"] == 1


async def test_no_last_number_is_named_where_the_rest_of_a_commit_is_lost(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    staged_of(harness)._streams[STREAM].plans.clear()
    refused = await raise_epoch(harness)

    assert problem(refused) == (404, "staged-not-found")
    assert (refused.json()["outcome"], refused.json()["stored_parts"]) == ("unknown", 1)
    path = f"/v1/streams/{NAME}/producers/job"
    assert (await harness.client.get(path)).json()["epoch"] == 1
    assert (await harness.client.delete(path)).status_code == 204
    assert (await raise_epoch(harness)).json()["last_seq"] is None


async def test_a_commit_whose_number_is_stored_in_one_piece_meanwhile_is_a_repeat(
    harness: IngestHarness,
) -> None:
    """A client whose first try timed out sends less the second time."""
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    read = staged_of(harness).read

    async def beside(*arguments: Any) -> Any:
        patch.undo()
        one = {"producer-id": "job", "txn-number": "7"}
        stored = await harness.append_raw(b'{"records": [{"value": "plain"}]}', **one)
        assert stored.status_code == 200
        return await read(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_of(harness), "read", beside)
        answer = await commit(harness, *ids)

    assert answer.headers["idempotent-replayed"] == "true"
    assert (answer.json()["first_offset"], answer.json()["next_offset"]) == (0, 1)
    assert (answer.json()["count"], answer.json()["duplicates"]) == (0, 3)
    assert await harness.values() == [b"plain"]
    assert files(harness) == []


async def test_forgetting_its_producer_ends_a_commit_that_was_cut_off(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    path = f"/v1/streams/{NAME}/producers/job"
    assert (await harness.client.delete(path)).status_code == 204

    answer = await commit(harness, *[await stage(harness, f"{n}{LARGE}") for n in range(3)])

    assert answer.json()["count"] == 3
    assert [value[:1] for value in await harness.values()] == [b"0", b"0", b"1", b"2"]


async def test_a_commit_that_was_cut_off_is_finished_without_its_writer(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    await harness.service.appenders.finish_commits()

    assert [value[:1] for value in await harness.values()] == [b"0", b"1", b"2"]
    assert files(harness) == []
    again = await commit(harness, await stage(harness, "z"))
    assert (again.json()["first_offset"], again.json()["duplicates"]) == (0, 3)


async def test_a_drain_finishes_what_was_cut_off_and_the_next_owner_knows_it(
    leaving: IngestHarness, tmp_path: Path
) -> None:
    await cut_off(leaving, 1)
    await leaving.service.drain()
    await leaving.published(3)
    await leaving.aclose()
    assert not (await leaving.record()).dirty

    other = await IngestHarness(tmp_path / "b", before=leaving, ingest_url="unix:///b.sock").start()
    again = await commit(other, await stage(other, "z"))
    assert (again.json()["first_offset"], again.json()["duplicates"]) == (0, 3)
    await other.aclose()


async def left_with_a_rest(harness: IngestHarness) -> None:
    """The disk gives nothing of the rest while the node is drained, and all else is published."""
    await cut_off(harness, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_of(harness), "read", broken_read)
        await harness.service.drain()
    await harness.published(1)
    await harness.aclose()


async def test_a_stream_does_not_leave_a_node_that_has_the_rest_of_a_commit(
    leaving: IngestHarness, tmp_path: Path
) -> None:
    """The existing checks were blind: no handover had a staged commit, and kills came back on the
    same node."""
    await left_with_a_rest(leaving)
    assert (await leaving.record()).dirty
    other = await IngestHarness(tmp_path / "b", before=leaving, ingest_url="unix:///b.sock").start()
    refused = await try_stage(other, "z")
    assert problem(refused) == (503, "not-owner")
    await other.aclose()

    back = await IngestHarness(leaving.data_dir, before=leaving).start()
    await back.append("opens the stream")
    await back.service.appenders.finish_commits()
    values = [value[:1] for value in await back.values() if value.endswith(b"x")]
    assert values == [b"0", b"1", b"2"]
    await back.aclose()


async def test_without_the_look_at_open_commits_their_rest_is_left_behind(
    leaving: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the guard is taken out. The number is no repeat even then, and says so."""
    remove(monkeypatch, "the look at open commits before a stream is left", lambda _: False)
    await left_with_a_rest(leaving)
    assert not (await leaving.record()).dirty

    other = await IngestHarness(tmp_path / "b", before=leaving, ingest_url="unix:///b.sock").start()
    refused = await commit(other, await stage(other, "z"))
    assert problem(refused) == (404, "staged-not-found")
    assert (refused.json()["outcome"], refused.json()["stored_parts"]) == ("unknown", 1)
    later = await commit(other, await stage(other, "z"), number=8)
    assert problem(later) == (409, "producer-sequence-gap")
    await other.aclose()


async def test_without_names_of_their_own_a_part_is_taken_for_the_whole(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the guard is taken out, and the parts are stored as the producer's own appends."""
    monkeypatch.setattr(commit_parts, "name_of_parts", lambda _: "job")
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    await commit(harness, *ids, number=0)
    with pytest.raises(AssertionError):
        assert [value[:1] for value in await harness.values()] == [b"0", b"1", b"2"]


async def test_what_an_earlier_build_has_begun_is_finished_in_its_way(
    harness: IngestHarness,
) -> None:
    await begun_by_an_earlier_build(harness)
    after = await harness.after_crash().start()
    assert problem(await commit(after, await stage(after, "z"), number=1_000)) == (
        409,
        "producer-sequence-gap",
    )
    answer = await commit(after, await stage(after, f"2{LARGE}"), await stage(after, f"1{LARGE}"))

    assert (answer.json()["first_offset"], answer.json()["count"]) == (0, 2)
    assert [value[:1] for value in await after.values()] == [b"0", b"1", b"2"]
    assert await last_number(after) == 9, "its numbers stay taken"
    again = await commit(after, await stage(after, f"1{LARGE}"), number=8)
    assert again.headers["idempotent-replayed"] == "true"
    later = await commit(after, *[await stage(after, f"{n}{LARGE}") for n in "ab"], number=10)
    assert later.json()["count"] == 2
    await after.aclose()


async def test_what_an_earlier_build_has_begun_keeps_the_stream_here(
    leaving: IngestHarness,
) -> None:
    await begun_by_an_earlier_build(leaving)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_of(leaving), "read", broken_read)
        await leaving.service.drain()
    await leaving.published(1)
    await leaving.aclose()
    assert (await leaving.record()).dirty


@pytest.mark.parametrize("appended", [0, 1, 2])
@pytest.mark.parametrize("crash", [False, True])
async def test_a_commit_that_was_cut_off_is_finished_by_a_repeat_with_other_pieces(
    harness: IngestHarness, appended: int, crash: bool
) -> None:
    await cut_off(harness, appended)
    after = await harness.after_crash().start() if crash else harness
    values = [value[:1] for value in await after.values()]
    assert values == [b"0", b"1", b"2"][:appended]

    # The same records, dealt out differently.
    ids = [await stage(after, f"2{LARGE}"), await stage(after, f"1{LARGE}", f"0{LARGE}")]
    answer = await commit(after, *ids)

    assert answer.status_code == 200
    assert sorted(value[:1] for value in await after.values()) == [b"0", b"1", b"2"]
    assert answer.json()["count"] + answer.json()["duplicates"] == 3
    if appended:
        assert answer.json()["first_offset"] == 0
        assert files(after) == []
    if crash:
        await after.aclose()


async def test_without_its_plan_a_repeat_in_other_pieces_has_nothing_to_go_on_with(
    harness: IngestHarness,
) -> None:
    """The guard is the plan: what it is for shows where it is taken away."""
    await cut_off(harness, 1)
    staged_of(harness)._streams[STREAM].plans.clear()

    refused = await commit(
        harness, await stage(harness, f"2{LARGE}"), await stage(harness, f"1{LARGE}")
    )

    assert problem(refused) == (404, "staged-not-found")
    assert refused.json()["outcome"] == "unknown"
    assert sorted(value[:1] for value in await harness.values()) == [b"0"]


async def test_no_other_number_gets_in_between_the_parts_of_a_commit(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    refused = await commit(harness, await stage(harness, "z"), number=1_000)

    assert problem(refused) == (409, "producer-sequence-gap")
    assert (refused.json()["expected_seq"], refused.json()["received_seq"]) == (7, 1_000)
    assert (await commit(harness, await stage(harness, "z"), producer="other")).status_code == 200


async def test_the_rest_of_a_begun_commit_waits_longer_and_is_refused_in_the_end(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    await harness.advance(2 * KEEP_MS)
    await sweep(harness)
    assert files(harness) == [".plan"] + [".staged"] * 3

    await harness.advance(10 * KEEP_MS)
    await sweep(harness)

    assert files(harness) == [".plan"]
    refused = await commit(harness, await stage(harness, f"0{LARGE}"))
    assert problem(refused) == (404, "staged-not-found")


async def test_a_repeat_removes_nothing_that_another_commit_needs(harness: IngestHarness) -> None:
    """The checks before were blind: repeats brought batches of their own."""
    assert (
        await commit(harness, await stage(harness, "a"), number=1, producer="p")
    ).status_code == 200
    assert (await commit(harness, await stage(harness, "b"), number=6)).status_code == 200
    ids = await cut_off(harness, 1)
    there = files(harness)
    for number, producer in ((1, "p"), (6, "job")):
        repeat = await commit(harness, *ids, number=number, producer=producer)
        assert repeat.headers["idempotent-replayed"] == "true"
        assert files(harness) == there
    assert (await commit(harness, *ids)).status_code == 200
    assert files(harness) == []


async def test_the_sweep_spares_what_is_pinned_while_it_removes_a_plan(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: nothing happened while a sweep waited for the disk."""
    await cut_off(harness, 0)
    staged = await stage(harness, "a")
    await harness.advance(KEEP_MS)
    batches = staged_of(harness)
    remove, inside, hold = batches._remove_files, asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        inside.set()
        await hold.wait()
        await remove()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_remove_files", slow)
        sweeping = asyncio.create_task(sweep(harness))
        await inside.wait()
        async with batches.pinned(STREAM, "other", [staged]):
            hold.set()
            await sweeping
            assert staged in batches._streams[STREAM].batches
    assert (await commit(harness, staged, producer="other")).status_code == 200


async def test_a_wall_clock_that_is_ahead_removes_nothing_that_is_staged(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: their clocks went on together."""
    staged = await stage(harness, "a")
    ids = await cut_off(harness, 1)
    harness.time.wall += 100 * KEEP_MS
    await sweep(harness)
    after = await harness.after_crash().start()
    await sweep(after)
    harness.time.wall -= 100 * KEEP_MS
    assert (await commit(after, *ids)).status_code == 200
    assert (await commit(after, staged, producer="other")).status_code == 200
    await after.aclose()


async def test_a_plan_that_was_never_begun_expires_as_its_batches_do(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 0)
    assert files(harness) == [".plan"] + [".staged"] * 3
    await harness.advance(KEEP_MS)
    await sweep(harness)
    assert files(harness) == []


async def test_after_damage_of_a_begun_plan_nothing_is_taken_for_done(
    harness: IngestHarness,
) -> None:
    await cut_off(harness, 1)
    [plan] = (harness.data_dir / "staged" / STREAM).glob("*.plan")
    plan.write_bytes(plan.read_bytes().replace(b"job", b"jab"))
    after = await harness.after_crash().start()

    refused = await commit(after, await stage(after, f"0{LARGE}"))

    assert problem(refused) == (502, "data-corrupt")
    assert (await commit(after, await stage(after, "z"), producer="other")).status_code == 200
    await after.aclose()


async def test_forgetting_its_producer_ends_a_commit_whose_plan_is_damaged(
    harness: IngestHarness,
) -> None:
    """The checks before were blind: they looked at the refusal, and not at the way out of it."""
    await cut_off(harness, 1)
    [plan] = (harness.data_dir / "staged" / STREAM).glob("*.plan")
    plan.write_bytes(plan.read_bytes().replace(b"job", b"jab"))
    after = await harness.after_crash().start()
    assert problem(await commit(after, await stage(after, "z"))) == (502, "data-corrupt")

    forgotten = await after.client.delete(f"/v1/streams/{NAME}/producers/job")

    assert forgotten.status_code == 204
    assert ".plan" not in files(after)
    assert (await commit(after, await stage(after, "z"))).status_code == 200
    await after.aclose()


async def test_a_late_removal_of_an_old_plan_spares_the_new_one(harness: IngestHarness) -> None:
    """Its name is that of the producer, so both have the same."""
    unlink = harness.files.unlink

    def stuck(path: Path) -> None:
        if path.suffix == ".plan":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path)

    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.files, "unlink", stuck)
        assert (await commit(harness, *ids, number=1)).status_code == 200
    assert files(harness) == [".plan"]
    ids = [await stage(harness, f"{number}{LARGE}") for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        # Falls off between its parts.
        patch.setattr(staged_of(harness), "read", broken_read)
        assert (await commit(harness, *ids, number=10)).status_code == 503

    await sweep(harness)

    assert files(harness) == [".plan"] + [".staged"] * 3
