"""What lies on a node's disk and could not be opened is opened later, though nobody touches it.

The checks before were blind: whatever they opened again they had touched, and the simulation's
clients touch every stream many times a second.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.guards import remove
from support.waiting import eventually

from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.ingest.local import streams as streams_module
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.core.unopened import WAIT_MS_MAX, WAIT_MS_MIN, Unopened
from bottomless_server.ingest.local.opening import Opener
from bottomless_server.ingest.local.streams import OwnedStreams
from unit.ingest.harness import STREAM, IngestHarness, broken_disk, problem

COMMITS = "/internal/v1/commits"
CALLS = ("get", "get_many", "transact", "hold")


def test_what_is_refused_is_tried_ever_more_rarely_and_for_ever() -> None:
    unopened, now, waits = Unopened(), 0, list[int]()
    unopened.add(STREAM, now)
    for _ in range(20):
        assert unopened.due(now) == [STREAM]
        unopened.begin_try(STREAM, now)
        unopened.add(STREAM, now)
        begun = now
        while not unopened.due(now):
            now += WAIT_MS_MIN
        waits.append(now - begun)
    assert waits[0] == WAIT_MS_MIN
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_MS_MAX
    unopened.drop(STREAM)
    assert not unopened.due(now)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "TICK_SECONDS", 0.01)


def streams_of(harness: IngestHarness) -> OwnedStreams:
    return harness.service.streams


async def told(harness: IngestHarness) -> list[str]:
    """Streams of which an uploader hears that something is to be uploaded."""
    answer = await harness.internal.get(COMMITS, params={"wait_ms": 0})
    return [stream["stream_id"] for stream in answer.json()["streams"]]


@pytest.fixture
async def shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IngestHarness]:
    """A node that died with a tail, and came back before coordination did."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    assert (await harness.append("acknowledged")).status_code == 200
    back = harness.after_crash()

    async def away(*_: Any, **__: Any) -> None:
        raise CoordinationUnavailable("away")

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(back.coordination, name, away)
        await back.start()
    assert (await back.service.report())["unopened_streams"] == 1
    yield back
    await back.aclose()
    await harness.aclose()


async def open_again(harness: IngestHarness, *, patient: bool = True) -> None:
    """Let time go on until the stream is open, or for a day."""
    for _ in range(100):
        if list(streams_of(harness).opened()):
            return
        await harness.advance(WAIT_MS_MAX)
        await asyncio.sleep(0.02)
    assert patient, "nobody has opened it"
    # What has begun by then may take long on a disk that is busy.
    await eventually(lambda: list(streams_of(harness).opened()))


async def test_a_node_that_is_back_before_coordination_opens_its_streams_when_it_may(
    shut: IngestHarness,
) -> None:
    await open_again(shut)

    assert await told(shut) == [STREAM]
    assert (await shut.service.report())["unopened_streams"] == 0
    assert await shut.values() == [b"acknowledged"]


async def test_without_another_try_its_tail_waits_for_whoever_touches_it(
    shut: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "another try to open what lies on the disk", lambda *_: [])
    with pytest.raises(AssertionError, match="nobody has opened it"):
        await open_again(shut, patient=False)


async def test_a_stream_whose_log_failed_is_recovered_without_being_touched(
    harness: IngestHarness,
) -> None:
    await harness.append("acknowledged")
    harness.files.faults["fdatasync"] = [broken_disk()]
    assert problem(await harness.append("unknown")) == (503, "storage-failed")

    await open_again(harness)

    assert await told(harness) == [STREAM]
    assert await harness.values() == [b"acknowledged"]


async def test_what_a_failed_sync_left_is_cut_also_when_the_first_recovery_fails(
    harness: IngestHarness,
) -> None:
    """What was known of the place went with the first try."""
    await harness.append("acknowledged")
    harness.files.faults["fdatasync"] = [broken_disk()]
    harness.files.faults["truncate"] = [broken_disk()]
    harness.files.faults["open"] = [broken_disk()]
    assert (await harness.append("unknown")).json()["outcome"] == "unknown"

    await open_again(harness)

    assert harness.files.faults["open"] == [], "the first recovery failed"
    assert await harness.values() == [b"acknowledged"]


async def test_a_drain_opens_what_is_not_open_and_waits_for_its_upload(shut: IngestHarness) -> None:
    await shut.lease.renew()
    token = (await shut.internal.get(COMMITS)).json()["token"]
    draining = asyncio.create_task(shut.service.drain())

    params = {"after": token, "wait_ms": 20_000}
    answer = (await shut.internal.get(COMMITS, params=params)).json()
    assert [one["stream_id"] for one in answer["streams"]] == [STREAM]
    assert not draining.done()
    await shut.published(1)
    await draining


async def test_a_drain_names_what_it_cannot_open(harness: IngestHarness) -> None:
    await harness.append("acknowledged")
    back = harness.after_crash()
    (back.directory / "checkpoint").write_bytes(b"damaged")
    await back.start()

    with capture_logs() as logs:
        await back.service.drain()

    (told,) = (line for line in logs if "could not be opened" in line["event"])
    assert told["streams"] == [STREAM]
    assert (await back.service.report())["unopened_streams"] == 1
    await back.aclose()


async def test_a_stream_that_is_gone_is_not_tried_again(shut: IngestHarness) -> None:
    await shut.streams.update(STREAM, lambda record: replace(record, state=StreamState.DELETING))
    await shut.advance(3_000)
    await eventually(lambda: not streams_of(shut).unopened())


async def test_a_deletion_that_is_broken_off_leaves_the_opening_to_those_who_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the opening, and was once able to cancel it for all who waited to append. The
    checks before broke off appends, and never a deletion while its stream was opened."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    streams, claim, gate = streams_of(harness), Opener.claim, asyncio.Event()

    async def slowly(*arguments: Any) -> LocalAppender:
        await gate.wait()
        return await claim(*arguments)

    monkeypatch.setattr(Opener, "claim", slowly)
    appending = asyncio.create_task(streams.get(STREAM))
    await eventually(lambda: streams.in_use(STREAM))
    deleting = asyncio.create_task(streams.close(STREAM))
    await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    gate.set()

    assert (await appending).stream_id == STREAM
    await harness.aclose()
