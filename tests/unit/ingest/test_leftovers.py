"""Local files of streams that are no more: removed, set aside, or left, by what manifest proves."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.waiting import eventually

from bottomless.errors import Code, Unavailable
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.log.leftovers import Leftovers
from bottomless_server.stores.streams import GENERATION_KEY, name_key, stream_key
from unit.ingest.harness import FULL_NAME, INTERNAL, STREAM, IngestHarness, RecordedFiles

CONFIRMED = b'{"generation":0,"bucket":true}'


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    """A stream with a record, on a node whose manifest knows the generation."""
    harness = IngestHarness(tmp_path / "node")
    harness.coordination.write(Changes({GENERATION_KEY: CONFIRMED}))
    harness.streams.generation = 0
    await (await harness.declare()).start()
    await harness.append("a", "b")
    yield harness
    await harness.aclose()


def leftovers(harness: IngestHarness) -> Leftovers:
    service = harness.service
    return Leftovers(
        harness.files,
        harness.data_dir,
        service.context.executor,
        service.streams,
        service.names.state_of,
        service.staged.drop_stream,
        service.giving.part_with,
    )


async def move_away(harness: IngestHarness, published_next: int) -> None:
    """Another node has the stream, and object storage so much of it."""

    def moved(record: StreamRecord) -> StreamRecord:
        version = record.version + 1
        other = NodeId("f" * 32)
        return replace(record, home=other, version=version, published_next=published_next)

    await harness.streams.update(STREAM, moved)


async def bury(harness: IngestHarness) -> None:
    """What manifest does at a deletion: tombstone, then the owner is asked to stop."""

    def decide(record: StreamRecord) -> StreamRecord:
        return replace(record, state=StreamState.DELETING, epoch=record.epoch + 1)

    await harness.streams.update(STREAM, decide)
    harness.coordination.write(Changes({name_key(FULL_NAME): None}))


async def close(harness: IngestHarness) -> None:
    assert (await harness.internal.post(f"{INTERNAL}/close")).status_code == 200


def forget(harness: IngestHarness) -> None:
    harness.coordination.write(Changes({stream_key(STREAM): None, name_key(FULL_NAME): None}))


def aside(harness: IngestHarness) -> list[str]:
    return sorted(path.name for path in (harness.data_dir / "streams-aside").iterdir())


async def test_a_tombstone_removes_the_files_when_nothing_has_them_open(
    harness: IngestHarness,
) -> None:
    await bury(harness)
    await leftovers(harness).sweep()
    assert harness.segments(), "the appender has not stopped"

    await close(harness)
    await leftovers(harness).sweep()

    assert not harness.directory.exists()
    assert aside(harness) == []


async def test_a_start_removes_them_too_and_does_not_wonder_at_them(harness: IngestHarness) -> None:
    await bury(harness)
    with capture_logs() as logs:
        back = await harness.after_crash().start()
        await eventually(lambda: not back.directory.exists())

    assert "a stream is not open" not in [line["event"] for line in logs]
    await back.aclose()


async def test_a_stream_that_lives_keeps_its_files(harness: IngestHarness) -> None:
    await close(harness)

    await leftovers(harness).sweep()

    assert harness.segments()
    assert (await harness.append("c")).status_code == 200
    assert await harness.values() == [b"a", b"b", b"c"]


async def test_the_log_of_a_stream_that_moved_goes_once_object_storage_has_all_of_it(
    harness: IngestHarness,
) -> None:
    await close(harness)
    await move_away(harness, 1)
    await leftovers(harness).sweep()
    assert harness.segments()
    await move_away(harness, 2)
    await leftovers(harness).sweep()
    assert not harness.directory.exists()
    assert aside(harness) == []


async def test_a_log_of_which_nobody_can_tell_stays_and_others_are_looked_at(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await close(harness)
    await move_away(harness, 2)

    async def nobody_knows(_: StreamId) -> bool:
        raise Unavailable("the disk does not work", code=Code.STORAGE_FAILED)

    monkeypatch.setattr(harness.service.giving, "part_with", nobody_knows)
    await leftovers(harness).sweep()
    assert harness.segments()


async def test_what_nothing_proves_is_set_aside_whole(harness: IngestHarness) -> None:
    await close(harness)
    files = {path.name: path.read_bytes() for path in harness.directory.iterdir()}
    forget(harness)

    await leftovers(harness).sweep()

    assert aside(harness) == [f"{STREAM}.gone"]
    kept = harness.data_dir / "streams-aside" / f"{STREAM}.gone"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == files
    await leftovers(harness).sweep()
    assert aside(harness) == [f"{STREAM}.gone"], "and nobody here ever removes it"


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_emptied_coordination_touches_nothing(
    harness: IngestHarness, guarded: bool
) -> None:
    """FLUSHALL: without the look at the generation the log would be put away."""
    await close(harness)
    forget(harness)
    harness.coordination.write(Changes({GENERATION_KEY: None}))
    if guarded:
        with pytest.raises(Unavailable) as refused:
            await leftovers(harness).sweep()
        assert refused.value.code is Code.COORDINATION_REGRESSED
    else:
        harness.streams.generation = None
        await leftovers(harness).sweep()

    assert bool(harness.segments()) is guarded


class StoppingFiles(RecordedFiles):
    """Dies, as a process would, before it removes more than so many files."""

    left = 0

    def unlink(self, path: Path) -> None:
        if ".deleted" in str(path):
            if self.left == 0:
                raise OSError("the process is gone")
            self.left -= 1
        super().unlink(path)


@pytest.mark.parametrize("left", [0, 1])
async def test_a_removal_that_died_half_way_is_finished_by_the_next_sweep(
    tmp_path: Path, left: int
) -> None:
    files = StoppingFiles()
    harness = IngestHarness(tmp_path / "node", files=files)
    harness.coordination.write(Changes({GENERATION_KEY: CONFIRMED}))
    await (await harness.declare()).start()
    await harness.append("a")
    await bury(harness)
    await close(harness)
    files.left = left
    with pytest.raises(OSError, match="gone"):
        await leftovers(harness).sweep()
    assert aside(harness) == [f"{STREAM}.deleted"]
    assert not harness.directory.exists(), "it is no log any more"

    back = await harness.after_crash().start()
    await eventually(lambda: aside(back) == [])
    await back.aclose()
    await harness.aclose()
