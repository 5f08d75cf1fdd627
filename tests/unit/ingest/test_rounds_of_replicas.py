"""The steps of a round that other nodes take part in, and what is shown of a log that was found.

The other nodes are a stand-in here, which answers when a test says so.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Fenced, Outcome, Unavailable
from bottomless.formats.segment import decode_checkpoint, encode_segment_header
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless.model.segment import SegmentHeader
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.ingest.local.opening import shown_at_claim
from bottomless_server.ingest.log.layout import CHECKPOINT_NAME, segment_path
from bottomless_server.ingest.log.segments import LogBroken, SegmentLog, Unsynced
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.replicas.followed_log import told_committed
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.node.owner import Claim
from unit.ingest.harness import (
    NAME,
    STREAM,
    IngestHarness,
    RecordedFiles,
    broken_disk,
    no_space,
    problem,
)

SHOWN_AT_CLAIM = "what is shown of a log when it is claimed"
LEFT_WHOLE = "all that was found, shown before a stream is left"
FOUND_SHOWN = "what was found at a claim, before it is said where a log ends"


class Others:
    """The other nodes of a stream."""

    def __init__(self, files: RecordedFiles) -> None:
        self.answers = asyncio.Event()
        """Set while they answer everything at once."""
        self.answers.set()
        self.waits = 0
        """Rounds, and what was found, that somebody has waited for."""
        self.ends: list[tuple[int, int]] = []
        self.late: Callable[[], None] | None = None
        self.fails: Exception | None = None
        self.refuses = False
        self.sent: list[bytes] = []
        self.log: SegmentLog | None = None
        self.files = files

    def replicate(self, _: StreamRecord, __: Claim, log: SegmentLog) -> "Others":
        self.log = log
        return self

    def require_enough(self) -> None:
        if self.refuses:
            raise Unavailable("too few nodes", outcome=Outcome.NONE)

    async def enough(self) -> None:
        self.require_enough()

    @property
    def stalled(self) -> tuple[NodeId, ...]:
        return ()

    @property
    def failing(self) -> tuple[NodeId, ...]:
        return ()

    async def add(self, _: NodeId) -> None: ...

    async def remove(self, _: NodeId) -> None: ...

    def replace(self, _: NodeId) -> None: ...

    def configure(self, config: StreamConfig) -> None: ...

    def note_published(self, next_offset: int, version: int) -> None: ...

    async def close(self) -> None: ...

    def send(self, written: Unsynced) -> None:
        self.files.note("sent")
        self.sent.append(b"".join(written.buffers))

    waiting_since: int | None = None
    awaits_nodes = False
    ahead: tuple[NodeId, ...] = ()
    in_sync_others = ()

    async def all_have(self, end: tuple[int, int], late: Callable[[], None]) -> None:
        assert self.log is not None
        self.ends.append(end)
        self.waits += 1
        self.late = late
        await self.answers.wait()
        if self.fails is not None:
            raise self.fails
        self.files.note("all have it")

    def end(self) -> None:
        if not self.answers.is_set():
            self.fails = LogBroken("nobody waits any more")
            self.answers.set()


@pytest.fixture
def others() -> Others:
    return Others(RecordedFiles())


@pytest.fixture
async def harness(tmp_path: Path, others: Others) -> AsyncIterator[IngestHarness]:
    made = IngestHarness(tmp_path / "ingest", files=others.files, replicate=others.replicate)
    await (await made.declare()).start()
    await made.append("a")
    yield made
    await made.aclose()


def shown(harness: IngestHarness) -> tuple[int, int]:
    """The end that others are shown, and that of the disk."""
    log = harness.appender.log
    return log.committed_next, log.synced_next


async def held(harness: IngestHarness, others: Others, value: str) -> asyncio.Task[Any]:
    """An append whose round is synced here, and which the others do not answer."""
    waits = others.waits
    others.answers.clear()
    task = asyncio.create_task(harness.append(value))
    await eventually(lambda: others.waits > waits)
    return task


async def test_a_round_is_written_then_sent_and_synced_and_shown_when_all_have_it(
    harness: IngestHarness,
    others: Others,
) -> None:
    harness.files.calls.clear()
    others.sent.clear()
    first = await held(harness, others, "b")

    assert shown(harness) == (1, 2)
    assert await harness.values() == [b"a"]
    assert not first.done()
    others.answers.set()
    assert (await first).json()["first_offset"] == 1
    assert await harness.values() == [b"a", b"b"]
    calls = [one.name for one in harness.files.calls]
    names = [name for name in calls if name in ("pwritev", "sent", "fdatasync", "all have it")]
    # The second write is that of the index, after the sync of the segment.
    assert names[0] == "pwritev"
    assert names.index("sent") < names.index("all have it")
    assert names.index("fdatasync") < names.index("all have it")
    assert others.ends[-1] == harness.appender.log.synced_place()
    [sent] = others.sent
    assert harness.segments()[-1].read_bytes().endswith(sent)


async def test_without_waiting_for_the_others_a_round_is_shown_that_they_lack(
    harness: IngestHarness, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: object) -> None: ...

    remove(monkeypatch, "all in sync before a round is shown", at_once)
    others.answers.clear()
    assert (await harness.append("b")).status_code == 200
    assert await harness.values() == [b"a", b"b"]


async def test_a_round_that_is_not_written_is_not_sent(
    harness: IngestHarness, others: Others
) -> None:
    others.sent.clear()
    harness.files.faults["pwritev"].append(no_space())
    assert problem(await harness.append("b")) == (503, "storage-full")
    assert others.sent == []
    assert (await harness.append("c")).json()["first_offset"] == 1


async def test_a_round_whose_sync_fails_here_is_waited_for_nowhere(
    harness: IngestHarness, others: Others
) -> None:
    waits = others.waits
    harness.files.faults["fdatasync"].append(broken_disk())
    refused = await harness.append("b")
    assert problem(refused)[1] == "storage-failed"
    assert refused.json()["outcome"] == "unknown"
    assert others.waits == waits


async def test_callers_hear_of_a_round_that_is_held_and_it_is_shown_later(
    harness: IngestHarness,
    others: Others,
) -> None:
    first = await held(harness, others, "b")
    second = asyncio.create_task(harness.append("c"))
    await eventually(lambda: harness.service.under_way.count == 2)
    others.refuses = True
    assert others.late is not None
    others.late()

    answer = await first
    assert problem(answer) == (504, "commit-timeout")
    assert answer.json()["outcome"] == "unknown"
    # Whoever comes later is told that nothing of it is stored.
    for refused in (await second, await harness.append("d")):
        assert (refused.status_code, refused.json()["outcome"]) == (503, "none")
    assert await harness.values() == [b"a"]

    others.refuses = False
    others.answers.set()
    await eventually(lambda: shown(harness) == (2, 2))
    assert await harness.values() == [b"a", b"b"]
    assert (await harness.append("e")).json()["first_offset"] == 2


async def test_of_a_round_that_another_owner_may_have_the_outcome_is_unknown(
    harness: IngestHarness,
    others: Others,
) -> None:
    first = await held(harness, others, "b")
    others.fails = Fenced("another node claimed the stream")
    others.answers.set()

    answer = await first
    assert problem(answer)[1] == "not-owner"
    assert answer.json()["outcome"] == "unknown"


async def test_a_stop_waits_for_no_held_round_and_leaves_the_stream_dirty(
    harness: IngestHarness,
    others: Others,
) -> None:
    first = await held(harness, others, "b")
    late = others.late
    assert late is not None
    late()
    assert problem(await first) == (504, "commit-timeout")
    await harness.published(1)
    await harness.aclose()

    assert (await harness.record()).dirty


async def restarted(harness: IngestHarness) -> tuple[IngestHarness, Others]:
    """The node after a crash, with a record that is not published, and others that say nothing yet."""
    await harness.append("b")
    await harness.published(1)
    others = Others(harness.files)
    others.answers.clear()
    after = await harness.after_crash(others.replicate).start()
    await eventually(lambda: others.waits == 1)
    return after, others


async def test_what_a_log_held_is_shown_when_all_have_it(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of streams with members, whose records no service serves yet.
    remove(monkeypatch, SHOWN_AT_CLAIM, lambda record: record.published_next)
    after, others = await restarted(harness)

    assert shown(after) == (1, 2)
    third = asyncio.create_task(after.append("c"))
    await eventually(lambda: after.service.under_way.count == 1)
    assert others.sent == []
    others.answers.set()
    assert (await third).json()["first_offset"] == 2
    assert await after.values() == [b"a", b"b", b"c"]
    assert others.waits == 2
    await after.aclose()


async def test_nobody_hears_where_a_log_ends_before_what_it_held_is_shown(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader may have seen "b" before the crash, and was told that its offset is beyond the end."""
    remove(monkeypatch, SHOWN_AT_CLAIM, lambda record: record.published_next)
    after, others = await restarted(harness)
    for offset in (0, 1, 2):
        assert problem(await after.chunks(offset)) == (503, "not-owner")
    others.answers.set()
    await eventually(lambda: shown(after) == (2, 2))
    assert await after.values() == [b"a", b"b"]
    await after.aclose()


async def test_without_waiting_for_what_was_found_a_reader_hears_of_an_end_that_it_has_passed(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, SHOWN_AT_CLAIM, lambda record: record.published_next)
    remove(monkeypatch, FOUND_SHOWN, lambda _: None)
    after, others = await restarted(harness)
    assert await after.values() == [b"a"]
    others.answers.set()
    await after.aclose()


async def older(harness: IngestHarness) -> tuple[IngestHarness, Others]:
    """The node after a crash, with all that is published and no more; others may have more."""
    await harness.published(1)
    others = Others(harness.files)
    others.answers.clear()
    after = await harness.after_crash(others.replicate).start()
    await eventually(lambda: others.waits == 1)
    return after, others


async def test_an_owner_that_waits_for_what_others_have_leaves_nothing_clean(
    harness: IngestHarness,
) -> None:
    after, _ = await older(harness)
    assert shown(after) == (1, 1)
    assert problem(await after.chunks(1)) == (503, "not-owner")
    await after.aclose()
    assert (await after.record()).dirty


async def test_without_its_guard_a_log_that_came_back_older_is_left_as_all_there_is(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, LEFT_WHOLE, lambda **_: True)
    after, _ = await older(harness)
    await after.aclose()
    assert not (await after.record()).dirty


async def test_who_has_shown_what_others_have_too_leaves_it_clean(harness: IngestHarness) -> None:
    after, others = await older(harness)
    others.answers.set()
    await eventually(lambda: not after.appender.awaits_found)
    assert (await after.chunks(1)).status_code == 200
    await after.aclose()
    assert not (await after.record()).dirty


async def test_an_owner_whose_log_is_gone_asks_the_others_what_the_stream_holds(
    harness: IngestHarness,
) -> None:
    others = Others(harness.files)
    others.answers.clear()
    after = harness.after_crash(others.replicate)
    shutil.rmtree(after.directory)
    await after.start()
    await after.service.streams.get(STREAM)
    await eventually(lambda: others.waits == 1)
    assert problem(await after.chunks(0)) == (503, "not-owner")
    await after.aclose()
    assert (await after.record()).dirty


async def test_a_sync_that_fails_at_the_stop_leaves_the_stream_dirty(
    harness: IngestHarness,
) -> None:
    """What it tried to write may be on the disk: a clean stream would not know of it."""
    await harness.published(1)
    harness.files.faults["fdatasync"].append(broken_disk())
    appender, rows = harness.appender, Rows([b"b"], [Content.BYTES])
    answer = appender.put(Append(1, rows.size, 1, rows))
    await appender.close(not_owner(), leave=True)
    with pytest.raises(LogBroken):
        await answer
    assert (await harness.record()).dirty


async def test_a_segment_that_a_crash_left_without_a_chunk_is_waited_for_nowhere(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other node ever has it before there is something in it."""
    remove(monkeypatch, SHOWN_AT_CLAIM, lambda record: record.published_next)
    end, others = harness.appender.log.synced_place(), Others(harness.files)
    after = harness.after_crash(others.replicate)
    begun = encode_segment_header(SegmentHeader(STREAM, 1, 1))
    segment_path(after.directory, 1).write_bytes(begun)
    await after.start()
    await after.append("b")
    assert await after.values() == [b"a", b"b"]
    assert others.ends == [end, after.appender.log.synced_place()]
    await after.aclose()


async def test_where_nothing_was_found_nobody_is_waited_for(tmp_path: Path, others: Others) -> None:
    others.answers.clear()
    made = IngestHarness(tmp_path / "ingest", files=others.files, replicate=others.replicate)
    await (await made.declare()).start()
    first = asyncio.create_task(made.append("a"))
    await eventually(lambda: len(others.sent) == 1)
    others.answers.set()
    assert (await first).json()["first_offset"] == 0
    await made.aclose()


async def test_the_checkpoint_of_an_owner_says_what_is_committed(
    harness: IngestHarness, others: Others
) -> None:
    """It may follow another node next, whose disk came back older."""
    first = await held(harness, others, "b")
    await harness.aclose()
    await first
    point = decode_checkpoint((harness.directory / CHECKPOINT_NAME).read_bytes())
    assert (told_committed(point), point.synced_next) == (1, 2)


async def test_without_a_bound_at_its_claim_a_log_shows_what_others_may_lack(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, SHOWN_AT_CLAIM, lambda _: None)
    after, others = await restarted(harness)
    assert shown(after) == (2, 2)
    others.answers.set()
    await after.aclose()


def test_of_a_stream_with_members_only_what_is_published_is_shown_at_its_claim() -> None:
    nodes = NodeId("a" * 32), NodeId("b" * 32)
    wanted = StreamConfig(replication=ReplicationConfig(replicas=2))
    record = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, wanted)
    assert shown_at_claim(record) is None
    members = replace(record, published_next=7, members=nodes, in_sync=nodes[:1], home=nodes[0])
    assert shown_at_claim(members) == 7
