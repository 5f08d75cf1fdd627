"""Local files of streams that are no more: removed, set aside, or left, by what manifest proves."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bottomless.errors import Code, Unavailable
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.log.leftovers import Leftovers
from bottomless_server.stores.streams import GENERATION_KEY, name_key, stream_key
from unit.ingest.house import FULL_NAME, INTERNAL, STREAM, House, RecordedFiles, eventually

CONFIRMED = b'{"generation":0,"bucket":true}'


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A stream with a record, on a node whose manifest knows the generation."""
    house = House(tmp_path / "node")
    house.coordination.write(Changes({GENERATION_KEY: CONFIRMED}))
    house.streams.generation = 0
    await (await house.declare()).start()
    await house.append("a", "b")
    yield house
    await house.aclose()


def leftovers(house: House) -> Leftovers:
    service = house.service
    return Leftovers(
        house.files,
        house.data_dir,
        service.context.executor,
        service.streams,
        service.names.state_of,
        service.staged.drop_stream,
    )


async def bury(house: House) -> None:
    """What manifest does at a deletion: tombstone, then the owner is asked to stop."""

    def decide(record: StreamRecord) -> StreamRecord:
        return replace(record, state=StreamState.DELETING, epoch=record.epoch + 1)

    await house.streams.update(STREAM, decide)
    house.coordination.write(Changes({name_key(FULL_NAME): None}))


async def close(house: House) -> None:
    assert (await house.internal.post(f"{INTERNAL}/close")).status_code == 200


def forget(house: House) -> None:
    house.coordination.write(Changes({stream_key(STREAM): None, name_key(FULL_NAME): None}))


def aside(house: House) -> list[str]:
    return sorted(path.name for path in (house.data_dir / "streams-aside").iterdir())


async def test_a_tombstone_removes_the_files_when_nothing_has_them_open(house: House) -> None:
    await bury(house)
    await leftovers(house).sweep()
    assert house.segments(), "the appender has not stopped"

    await close(house)
    await leftovers(house).sweep()

    assert not house.directory.exists()
    assert aside(house) == []


async def test_a_start_removes_them_too_and_does_not_wonder_at_them(house: House) -> None:
    await bury(house)
    with capture_logs() as logs:
        back = await house.after_crash().start()
        await eventually(lambda: not back.directory.exists())

    assert "a stream is not open" not in [line["event"] for line in logs]
    await back.aclose()


async def test_a_stream_that_lives_keeps_its_files(house: House) -> None:
    await close(house)

    await leftovers(house).sweep()

    assert house.segments()
    assert (await house.append("c")).status_code == 200
    assert await house.values() == [b"a", b"b", b"c"]


async def test_what_nothing_proves_is_set_aside_whole(house: House) -> None:
    await close(house)
    files = {path.name: path.read_bytes() for path in house.directory.iterdir()}
    forget(house)

    await leftovers(house).sweep()

    assert aside(house) == [f"{STREAM}.gone"]
    kept = house.data_dir / "streams-aside" / f"{STREAM}.gone"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == files
    await leftovers(house).sweep()
    assert aside(house) == [f"{STREAM}.gone"], "and nobody here ever removes it"


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_emptied_coordination_touches_nothing(house: House, guarded: bool) -> None:
    """FLUSHALL: without the look at the generation the log would be put away."""
    await close(house)
    forget(house)
    house.coordination.write(Changes({GENERATION_KEY: None}))
    if guarded:
        with pytest.raises(Unavailable) as refused:
            await leftovers(house).sweep()
        assert refused.value.code is Code.COORDINATION_REGRESSED
    else:
        house.streams.generation = None
        await leftovers(house).sweep()

    assert bool(house.segments()) is guarded


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
    house = House(tmp_path / "node", files=files)
    house.coordination.write(Changes({GENERATION_KEY: CONFIRMED}))
    await (await house.declare()).start()
    await house.append("a")
    await bury(house)
    await close(house)
    files.left = left
    with pytest.raises(OSError, match="gone"):
        await leftovers(house).sweep()
    assert aside(house) == [f"{STREAM}.deleted"]
    assert not house.directory.exists(), "it is no log any more"

    back = await house.after_crash().start()
    await eventually(lambda: aside(back) == [])
    await back.aclose()
    await house.aclose()
