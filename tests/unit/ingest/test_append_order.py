"""The order of the calls: synced before answered, published before freed.

Each check is also run where it must fail, so that it is known to see what it looks for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.asgi import scope_of
from support.power_loss import OWN
from support.waiting import eventually

from bottomless_server.ingest.log.core import round_shares
from bottomless_server.node.core.file_systems import FileSystem
from bottomless_server.runtime.http.whole_answer import WholeAnswer
from unit.ingest.harness import ROUTE, STREAM, Call, IngestHarness, RecordedFiles

SMALL: dict[str, Any] = {"ingest_segment_size_max": 65_536, "ingest_local_keep_ms": 1_000}


class WithoutSync(RecordedFiles):
    """A disk whose syncs are left out."""

    def fdatasync(self, fd: int) -> None:
        pass

    def syncfs(self, _: int) -> None:
        pass


def unsynced_replies(calls: list[Call]) -> list[Call]:
    """Replies that came before the sync of what was written for them.

    Appends are made one after the other, so a reply answers everything written before it.
    """
    waiting: set[str] = set()
    early = []
    for call in calls:
        if call.name == "pwritev" and call.path.endswith(".segment"):
            waiting.add(call.path)
        elif call.name == "fdatasync":
            waiting.discard(call.path)
        elif call.name == "syncfs":
            waiting.clear()
        elif call.name == "reply" and waiting:
            early.append(call)
    return early


def early_frees(calls: list[Call]) -> list[Call]:
    """Segments that were deleted before it was said that all of them is published."""
    published = 0
    early = []
    for call in calls:
        if call.name == "published":
            published = max(published, call.end)
        freed = call.name == "unlink" and call.path.endswith(".segment")
        if freed and next_segment(calls, call.path) > published:
            early.append(call)
    return early


def next_segment(calls: list[Call], path: str) -> int:
    """Where the segment after `path` starts, which is where `path` ended."""
    firsts = {int(c.path[:20]) for c in calls if c.path.endswith(".segment")}
    return min(first for first in firsts if first > int(path[:20]))


async def append_and_note(harness: IngestHarness, value: str) -> int:
    """An append whose answer is noted at the moment when it is sent."""
    body = b'{"records":[{"value":"%s"}]}' % value.encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    statuses = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            if message["status"] == 200:
                harness.files.note("reply")

    scope = scope_of({"content-type": "application/json"}, method="POST", path=ROUTE)
    await harness.service.public(scope, receive, send)
    return int(statuses[0])


async def append_by_lane(harness: IngestHarness, value: str) -> int:
    """The same on the lane, which takes an append once the name of its stream is known."""
    body = b'{"records":[{"value":"%s"}]}' % value.encode()
    scope = scope_of({"content-type": "application/json"}, method="POST", path=ROUTE)
    request = harness.service.lane.begin(scope, len(body))
    if request is None:
        assert harness.service.streams.find(STREAM) is None
        return await append_and_note(harness, value)
    answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def answer(whole: WholeAnswer) -> None:
        harness.files.note("reply")
        answered.set_result(whole.status)

    assert request.receive(len(body))
    assert request.take(body, answer)
    return await answered


BOTH_WAYS = pytest.mark.parametrize("append", [append_and_note, append_by_lane])
Appending = Callable[[IngestHarness, str], Awaitable[int]]


async def a_harness(tmp_path: Path, files: RecordedFiles) -> IngestHarness:
    harness = await IngestHarness(tmp_path / "ingest", files=files, **SMALL).declare()
    return await harness.start()


@pytest.fixture(params=[None, OWN], ids=["each", "all"])
def lies_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FileSystem | None:
    """What the data directory lies on: there each file is synced, or everything at once, where a
    single round is synced as the many are."""
    monkeypatch.setattr(round_shares, "ALL_FROM", 1)
    # However slow this machine is, everything is synced in one way.
    monkeypatch.setattr(round_shares, "SLOW_SECONDS", 10**6)
    found: FileSystem | None = request.param
    return found


@BOTH_WAYS
async def test_no_reply_precedes_the_sync_that_covers_it(
    tmp_path: Path, append: Appending, lies_on: FileSystem | None
) -> None:
    harness = await a_harness(tmp_path, RecordedFiles(lies_on))
    for number in range(30):
        assert await append(harness, f"{number}" + "x" * 10_000) == 200
    await harness.aclose()

    replies = [call for call in harness.files.calls if call.name == "reply"]
    assert len(replies) == 30
    assert len(harness.segments()) > 3
    assert bool(lies_on) == any(call.name == "syncfs" for call in harness.files.calls)
    assert unsynced_replies(harness.files.calls) == []


@BOTH_WAYS
async def test_the_check_of_syncs_sees_that_there_are_none(
    tmp_path: Path, append: Appending, lies_on: FileSystem | None
) -> None:
    harness = await a_harness(tmp_path, WithoutSync(lies_on))
    for number in range(3):
        assert await append(harness, str(number)) == 200
    await harness.aclose()

    assert len(unsynced_replies(harness.files.calls)) == 3


async def test_a_new_segment_and_its_name_are_synced_before_its_first_reply(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path, RecordedFiles())
    await append_and_note(harness, "a")
    harness.files.calls.clear()
    await append_and_note(harness, "b" * 70_000)
    await harness.aclose()

    on_segment = [
        call.name
        for call in harness.files.calls
        if call.path.endswith(".segment") or call.name in ("fsync_dir", "reply")
    ]
    assert on_segment[:6] == [
        "pwritev",
        "fdatasync",
        "fsync_dir",
        "pwritev",
        "fdatasync",
        "reply",
    ]


async def test_segments_go_only_after_they_were_said_to_be_published(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path, RecordedFiles())
    for number in range(30):
        await append_and_note(harness, f"{number}" + "x" * 10_000)
    segments = harness.segments()
    await harness.advance(10_000)
    harness.appender.tick()
    await append_and_note(harness, "still all there")
    assert harness.segments()[: len(segments)] == segments

    for published in (7, 30):
        harness.files.note("published", end=published)
        await harness.published(published)
        await append_and_note(harness, "too early")
        before = len(harness.segments())
        await harness.advance(1_000)
        harness.appender.tick()
        await eventually(partial(fewer, harness, before))
        await eventually(lambda: not harness.appender._freeing._removing)

    assert early_frees(harness.files.calls) == []
    assert len([c for c in harness.files.calls if c.name == "unlink"]) >= 4
    assert harness.appender.log.first_offset <= 29
    rows = await harness.rows(harness.appender.log.first_offset)
    assert rows[-1]["value"] == b"too early"
    await harness.aclose()


def fewer(harness: IngestHarness, count: int) -> bool:
    return len(harness.segments()) < count


async def test_the_check_of_frees_sees_one_that_is_too_early(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path, RecordedFiles())
    for number in range(20):
        await append_and_note(harness, f"{number}" + "x" * 10_000)
    # The service hears it, but the list does not say so: as if it had not waited.
    await harness.published(19)
    await append_and_note(harness, "more")
    await harness.advance(1_000)
    harness.appender.tick()
    await eventually(lambda: harness.appender.log.first_offset > 0)
    await harness.aclose()

    assert early_frees(harness.files.calls) != []


async def test_a_crash_between_any_two_frees_leaves_a_log_that_opens(tmp_path: Path) -> None:
    harness = await a_harness(tmp_path, RecordedFiles())
    for number in range(30):
        await append_and_note(harness, f"{number}" + "x" * 10_000)
    await harness.published(30)
    harness.files.calls.clear()
    await eventually(lambda: any(c.path == "checkpoint.new" for c in harness.files.calls))
    await harness.append("noted")
    after = harness.after_crash()
    for segment in after.segments()[:2]:
        segment.unlink()
    await after.start()

    assert (await after.append("next")).json()["first_offset"] == 31
    await after.aclose()
    await harness.aclose()
