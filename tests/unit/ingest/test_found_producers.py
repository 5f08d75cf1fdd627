"""What is said of producers after a claim, before it is known what other nodes have of the log.

The other nodes are a stand-in here, which answers when a test says so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.waiting_changes import StateChange
from unit.ingest.harness import NAME, IngestHarness, RecordedFiles
from unit.ingest.staging import LARGE, commit, stage
from unit.ingest.test_rounds_of_replicas import Others
from unit.ingest.test_staged_replicas import SETTINGS, SlowDrive

KNOWN = "what is known of producers, shown once all in sync have it"
PRODUCERS = f"/v1/streams/{NAME}/producers"
Ask = Callable[[IngestHarness, str], Awaitable[httpx.Response]]


async def one_is_shown(harness: IngestHarness, _: str) -> httpx.Response:
    return await harness.client.get(f"{PRODUCERS}/job")


async def all_are_shown(harness: IngestHarness, _: str) -> httpx.Response:
    return await harness.client.get(PRODUCERS)


async def a_commit_is_repeated(harness: IngestHarness, staged_id: str) -> httpx.Response:
    return await commit(harness, staged_id)


ASKED = pytest.mark.parametrize("ask", [one_is_shown, all_are_shown, a_commit_is_repeated])


async def claimed_anew(tmp_path: Path) -> tuple[IngestHarness, IngestHarness, Others, str]:
    """A stream with a commit of a producer that was claimed anew, of whose log others may lack it."""
    recorded, drive = RecordedFiles(), MemoryDrive()
    before = Others(recorded).replicate
    first = IngestHarness(tmp_path / "ingest", files=recorded, replicate=before, drive=drive)
    await (await first.declare()).start()
    staged_id = await stage(first, "a")
    assert (await commit(first, staged_id)).status_code == 200
    others = Others(recorded)
    others.answers.clear()
    after = await first.after_crash(others.replicate).start()
    await eventually(lambda: others.waits == 1)
    return first, after, others, staged_id


@ASKED
async def test_nothing_is_said_of_producers_before_all_in_sync_have_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """Else a number is called stored of which the next owner knows nothing: its records are never sent again."""
    first, after, others, staged_id = await claimed_anew(tmp_path)
    change, in_line = LocalAppender.change, asyncio.Event()

    async def noted(appender: LocalAppender, asked: StateChange) -> None:
        in_line.set()
        await change(appender, asked)

    monkeypatch.setattr(LocalAppender, "change", noted)
    asking = asyncio.ensure_future(ask(after, staged_id))
    await eventually(lambda: asking.done() or in_line.is_set())
    assert not asking.done()
    others.answers.set()
    answer = await asking
    assert answer.status_code == 200, answer.text
    assert not after.appender.awaits_found
    await after.aclose()
    await first.aclose()


@ASKED
async def test_without_that_a_number_is_called_stored_that_the_next_owner_may_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    remove(monkeypatch, KNOWN, lambda _: True)
    first, after, others, staged_id = await claimed_anew(tmp_path)
    answer = await ask(after, staged_id)
    assert answer.status_code == 200, answer.text
    assert after.appender.awaits_found
    others.answers.set()
    await after.aclose()
    await first.aclose()


async def test_no_plan_of_a_commit_is_dropped_for_what_may_be_cut_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rest of the commit is gone, once the part that differs from its plan is cut."""

    async def never(*_: object) -> bool:
        return False

    recorded, drive = RecordedFiles(), SlowDrive()
    before = Others(recorded).replicate
    home = tmp_path / "ingest"
    first = IngestHarness(home, files=recorded, replicate=before, drive=drive, **SETTINGS)
    await (await first.declare()).start()
    ids = [await stage(first, f"{value}{LARGE}") for value in "012"]
    drive.gets = 1
    assert (await commit(first, *ids)).json()["outcome"] == "unknown"
    drive.gets, kept = None, drive.staged()
    others = Others(recorded)
    others.answers.clear()
    after = await first.after_crash(others.replicate).start()
    await eventually(lambda: others.waits == 1)
    remove(monkeypatch, "the comparison of a plan with what is stored", never)

    await after.service.appenders.finish_commits()
    assert after.appender.awaits_found
    assert drive.staged() == kept

    others.answers.set()
    await eventually(lambda: not after.appender.awaits_found)
    await after.service.appenders.finish_commits()
    assert drive.staged() == []
    await after.aclose()
    await first.aclose()
