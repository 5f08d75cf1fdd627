"""The uploader from commit to manifest, over HTTP, with an ingest and a manifest in memory."""

import asyncio
from collections import Counter
from functools import partial

import httpx
import pytest
from support.chunks import a_chunk
from support.drives import a_table
from support.object_keys import fragment_key
from support.uploader_harness import UploaderHarness
from support.uploading import STREAM_ID, FakeIngest, unavailable
from support.waiting import eventually

from bottomless.drives.base import DriveAmbiguous, DriveUnavailable
from bottomless.errors import Code, Fenced, StoreError
from bottomless.model.chunk import ChunkFlags
from bottomless.model.limits import MIB
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.uploader.app import UploaderService, create_service
from bottomless_server.uploader.settings import UploaderSettings
from bottomless_server.uploader.uploader import ROOT_HURRY_SECONDS

OTHER_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12"


async def failures_of(service: UploaderService) -> dict[str, object]:
    failures = (await service.report())["failures"]
    assert isinstance(failures, dict)
    return dict(failures.get(STREAM_ID, {}))


async def test_a_slow_stream_is_cut_by_age_into_a_fragment_that_holds_its_chunks() -> None:
    harness = UploaderHarness()
    harness.ingest.append(a_chunk(0))
    harness.ingest.append(a_chunk(10))
    async with harness.running():
        await harness.published(20)
        harness.ingest.append(a_chunk(20))
        await harness.published(30)

    assert harness.ranges() == [(0, 20), (20, 30)]
    assert await harness.chunks_of(harness.manifest.applied[0]) == [0, 10]
    assert len(harness.manifest.sessions) == 1
    assert not harness.manifest.intents


@pytest.mark.parametrize("reached", [True, False])
async def test_a_fragment_is_put_on_the_drive_that_the_manifest_says(reached: bool) -> None:
    harness = UploaderHarness()
    shelf = 7
    table = await a_table(harness.drive, *([shelf] if reached else []))
    harness.table, harness.manifest.first_tier = table, shelf
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)
    (info,) = harness.manifest.applied
    key = fragment_key(STREAM_ID, 0, info.uid)
    assert (await table.of(shelf if reached else 0).head(key)).size == info.size
    assert harness.drive.puts == ([] if reached else [0])


async def test_a_full_tail_is_cut_by_size_and_never_by_more_than_a_chunk_beyond() -> None:
    chunks = [a_chunk(n * 10, value_size=900) for n in range(30)]
    harness = UploaderHarness(
        FakeIngest(target_bytes=4 * len(chunks[0]) - 100, max_age_ms=3_600_000)
    )
    for chunk in chunks:
        harness.ingest.append(chunk)
    async with harness.running() as service:
        await harness.published(280)
        await service.drain()

    assert harness.ranges() == [(n, n + 40) for n in range(0, 280, 40)] + [(280, 300)]
    # The first look at a long log only measures.
    assert harness.ingest.asked[0][:2] == (0, 1)


async def test_uploads_that_finish_in_reverse_order_are_all_registered() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=1))
    harness.drive.gates = {offset: asyncio.Event() for offset in (0, 10, 20)}
    for offset in (0, 10, 20):
        harness.ingest.append(a_chunk(offset))
    async with harness.running():
        await eventually(lambda: sorted(harness.drive.puts) == [0, 10, 20])
        for number, offset in enumerate((20, 10, 0), 1):
            harness.drive.gates[offset].set()
            await eventually(partial(harness.manifest.has_heard_of, number))
        await harness.published(30)

    assert harness.drive.finished == [20, 10, 0]
    assert harness.ranges() == [(0, 10), (10, 20), (20, 30)]


async def test_no_more_uploads_of_a_stream_run_than_its_window_has_room_for() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=1), uploads_in_flight=2)
    harness.drive.gates = {offset: asyncio.Event() for offset in (0, 10, 20)}
    for offset in (0, 10, 20):
        harness.ingest.append(a_chunk(offset))
    async with harness.running():
        await eventually(lambda: len(harness.drive.puts) == 2)
        harness.drive.gates[10].set()
        await eventually(lambda: len(harness.drive.puts) == 3)
        assert harness.drive.puts == [0, 10, 20]
        assert harness.manifest.published_next == 0
        for gate in harness.drive.gates.values():
            gate.set()
        await harness.published(30)


async def test_a_put_that_fails_is_tried_again_under_the_same_uid() -> None:
    harness = UploaderHarness()
    harness.drive.failures = [DriveUnavailable("not now") for _ in range(3)]
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)

    assert harness.drive.puts == [0, 0, 0, 0]
    assert len(harness.manifest.applied) == 1
    assert not harness.manifest.quarantine


async def test_a_put_whose_reply_is_lost_leaves_one_object_that_is_registered_once() -> None:
    harness = UploaderHarness()
    harness.drive.failures = [DriveAmbiguous("the reply was lost")]
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)

    assert [facts.object_key async for facts in harness.drive.list()] == [
        fragment_key(STREAM_ID, 0, harness.manifest.applied[0].uid)
    ]
    assert Counter(harness.manifest.registered) == {harness.manifest.applied[0].uid: 1}


async def test_a_registration_that_fails_is_repeated_and_visible_until_it_passes() -> None:
    harness = UploaderHarness()
    harness.manifest.failures = [unavailable() for _ in range(200)]
    harness.ingest.append(a_chunk(0))
    async with harness.running() as service:
        await eventually(lambda: len(harness.manifest.failures) < 195)
        (what, failure), *_ = (await failures_of(service)).items()
        assert what.startswith("register 00000000000000000000-")
        assert isinstance(failure, dict)
        assert failure["code"] == Code.COORDINATION_UNAVAILABLE
        assert failure["permanent"] is False
        harness.manifest.failures.clear()
        await harness.published(10)
        await eventually(lambda: not _failing(service))

    assert harness.drive.puts == [0]


async def test_a_corrupt_chunk_stops_its_stream_and_nothing_of_it_is_put() -> None:
    harness = UploaderHarness()
    sound = a_chunk(0)
    harness.ingest.append(sound)
    group = harness.ingest.groups[STREAM_ID][0]
    damaged = sound[:100] + bytes([sound[100] ^ 1]) + sound[101:]
    harness.ingest.groups[STREAM_ID][0] = group._replace(data=damaged)
    other = harness.add_stream(OTHER_ID)
    harness.ingest.append(sound, stream_id=OTHER_ID)
    async with harness.running() as service:
        await eventually(lambda: other.published_next == 10)
        await eventually(lambda: _failing(service))

        assert _failing(service) == {
            STREAM_ID: {"session": {"code": "data-corrupt", "permanent": True, "attempt_count": 1}}
        }
    assert harness.manifest.quarantine
    assert not [facts async for facts in harness.drive.list(f"default/{STREAM_ID}/")]


async def test_a_chunk_that_was_mended_goes_on_its_way() -> None:
    harness = UploaderHarness(damage_retry_seconds=0.02)
    sound = a_chunk(0)
    harness.ingest.append(sound)
    group = harness.ingest.groups[STREAM_ID][0]
    harness.ingest.groups[STREAM_ID][0] = group._replace(data=sound[:-1] + b"\xff")
    async with harness.running():
        await eventually(lambda: harness.manifest.quarantine)
        harness.ingest.groups[STREAM_ID][0] = group
        await harness.published(10)

    assert harness.ranges() == [(0, 10)]


async def test_an_epoch_ends_a_fragment() -> None:
    harness = UploaderHarness()
    harness.ingest.append(a_chunk(0))
    harness.ingest.append(a_chunk(10, epoch=2))
    harness.ingest.append(a_chunk(20, epoch=2))
    async with harness.running():
        await harness.published(30)

    assert harness.ranges() == [(0, 10), (10, 30)]
    assert [info.epoch for info in harness.manifest.applied] == [1, 2]


async def test_the_chunks_of_one_append_stay_in_one_fragment() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=1))
    more = ChunkFlags.MORE_FOLLOWS
    harness.ingest.append(a_chunk(0))
    harness.ingest.append(a_chunk(10, flags=more), a_chunk(20, flags=more), a_chunk(30))
    harness.ingest.append(a_chunk(40))
    async with harness.running():
        await harness.published(50)

    assert harness.ranges() == [(0, 10), (10, 40), (40, 50)]


async def test_a_fenced_session_is_followed_by_another_from_the_manifests_end() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=1))
    harness.drive.gates = {10: asyncio.Event()}
    harness.ingest.append(a_chunk(0))
    harness.ingest.append(a_chunk(10))
    async with harness.running():
        await harness.published(10)
        await eventually(lambda: 10 in harness.drive.puts)
        harness.manifest.fence()
        harness.drive.gates.pop(10).set()
        await harness.published(20)

    assert len(harness.manifest.sessions) == 2
    # The object of the first session was there, so the manifest took it instead of a second one.
    assert harness.drive.puts == [0, 10]
    assert len(harness.manifest.adopted) == 1


async def test_a_cut_that_others_published_is_taken_up_where_the_manifest_ends() -> None:
    harness = UploaderHarness()
    harness.ingest.append(a_chunk(0))
    harness.ingest.append(a_chunk(10))
    harness.ingest.local_first_offset = 10
    async with harness.running():
        await eventually(lambda: len(harness.manifest.sessions) > 1)
        harness.manifest.published_next = 10
        await harness.published(20)

    assert harness.ranges() == [(10, 20)]


async def test_an_ingest_that_came_up_anew_tells_everything_again_and_nothing_is_put_twice() -> (
    None
):
    harness = UploaderHarness()
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)
        harness.ingest.restart()
        harness.ingest.append(a_chunk(10, epoch=2))
        await harness.published(20)

    assert harness.ranges() == [(0, 10), (10, 20)]
    assert harness.drive.puts == [0, 10]


async def test_an_owner_that_is_not_there_is_asked_again() -> None:
    harness = UploaderHarness()
    harness.ingest.failures = [
        StoreError("no owner", code=Code.NOT_OWNER, retryable=True),
        Fenced("a newer owner"),
        StoreError("a bug", code=Code.INTERNAL),
    ]
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)

    assert harness.ranges() == [(0, 10)]


async def test_a_drain_uploads_what_is_neither_old_nor_full() -> None:
    harness = UploaderHarness(FakeIngest(max_age_ms=3_600_000))
    async with harness.running() as service:
        harness.ingest.append(a_chunk(0))
        await service.drain()

        assert harness.ranges() == [(0, 10)]
        assert (await service.report())["active_streams"] == 0


@pytest.mark.parametrize("who", ["the uploader", "the owner"])
async def test_a_drain_does_not_wait_for_others_to_share_the_last_root(who: str) -> None:
    """Drains were only tested with a manifest that publishes at once."""
    harness = UploaderHarness(FakeIngest(max_age_ms=3_600_000, target_bytes=1))
    harness.manifest.shares_roots = True
    async with harness.running() as service:
        harness.ingest.append(a_chunk(0))
        await eventually(lambda: harness.manifest.waiting)
        assert len(harness.manifest.sessions) == 1
        if who == "the uploader":
            await service.drain()
        else:
            # What the feed of a node says of all its streams while it drains.
            harness.ingest.max_age_ms = 0
            harness.ingest.append(a_chunk(10))
        await harness.published(10 if who == "the uploader" else 20)

    assert len(harness.ranges()) == (1 if who == "the uploader" else 2)
    assert len(set(harness.manifest.sessions)) == 1, "it is one session that goes on"


async def test_only_a_drain_has_roots_hurried() -> None:
    harness = UploaderHarness(FakeIngest(max_age_ms=3_600_000, target_bytes=1))
    harness.manifest.shares_roots = True
    harness.manifest.register_wait_seconds = 2 * ROOT_HURRY_SECONDS
    async with harness.running():
        harness.ingest.append(a_chunk(0))
        # Told again, when the first registration has waited for longer than a drain would.
        await eventually(lambda: len(harness.manifest.registered) >= 2)

    assert len(harness.manifest.sessions) == 1


async def test_an_idle_stream_has_no_task_until_it_commits_again() -> None:
    harness = UploaderHarness(idle_seconds=0.01)
    harness.ingest.append(a_chunk(0))
    async with harness.running() as service:
        await harness.published(10)
        await eventually(lambda: not _active(service))
        harness.ingest.append(a_chunk(10))
        await harness.published(20)

    assert harness.ranges() == [(0, 10), (10, 20)]
    assert len(harness.manifest.sessions) == 2


async def test_a_stream_that_was_deleted_is_left_alone() -> None:
    harness = UploaderHarness()
    harness.manifest.gone = True
    harness.ingest.append(a_chunk(0))
    async with harness.running() as service:
        await eventually(lambda: harness.manifest.gone_count)
        await eventually(lambda: not _active(service))

    assert not harness.drive.puts


async def test_memory_stays_under_the_budget_while_uploads_hang() -> None:
    chunk_size = len(a_chunk(0, value_size=20_000))
    harness = UploaderHarness(FakeIngest(target_bytes=2 * chunk_size - 100))
    harness.drive.gates = {offset: asyncio.Event() for offset in range(0, 120, 10)}
    for stream_id in (STREAM_ID, OTHER_ID):
        harness.add_stream(stream_id)
        for offset in range(0, 120, 10):
            harness.ingest.append(a_chunk(offset, value_size=20_000), stream_id=stream_id)
    async with harness.running() as service:
        await eventually(lambda: _report(service)["waiting_for_memory"])
        await eventually(lambda: len(harness.drive.puts) == 2)
        assert MIB // 2 < int(str(_report(service)["memory_bytes"])) <= MIB
        for gate in harness.drive.gates.values():
            gate.set()
        await harness.published(120)


async def test_what_was_put_before_a_crash_is_adopted_and_not_put_again() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=1))
    harness.manifest.failures = [unavailable() for _ in range(10_000)]
    harness.ingest.append(a_chunk(0))
    async with harness.running():
        await eventually(lambda: harness.drive.finished == [0])
    harness.manifest.failures.clear()
    async with harness.running():
        await harness.published(10)

    assert harness.drive.puts == [0]
    assert len(harness.manifest.adopted) == 1


async def test_the_public_application_has_nothing_but_its_description() -> None:
    settings = UploaderSettings(manifest_url="http://127.0.0.1:1")
    app = create_service(settings, MemoryDrive()).public
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://uploader") as client:
        assert (await client.get("/openapi.json")).json()["paths"] == {}
        assert (await client.get("/docs")).json()["code"] == Code.NOT_FOUND


def _report(service: UploaderService) -> dict[str, object]:
    return dict(service.streams.report())


def _active(service: UploaderService) -> bool:
    return len(service.streams) > 0


def _failing(service: UploaderService) -> dict[str, object]:
    failures = _report(service)["failures"]
    assert isinstance(failures, dict)
    return failures
