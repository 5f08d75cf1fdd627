"""What every drive promises of an object whose bytes are read while it is put."""

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest
from support.guards import remove
from support.sources import Bytes

from bottomless.drives.base import Drive, ObjectExists, ObjectMissing
from bottomless.errors import Code, Corrupt, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.model.limits import MIB
from bottomless_server.drives.checked_parts import BLOCK_SIZE
from bottomless_server.drives.local import LocalDrive
from bottomless_server.stores.put_retries import put_object

SIZE: Final = 6 * MIB + 777
"""More than a part of the drive that puts in parts, and no whole number of anything."""
DATA: Final = random.Random(50).randbytes(SIZE)
CRC: Final = crc32c(DATA)
GONE: Final = Unavailable("the source has gone", code=Code.PEER_UNAVAILABLE)

pytestmark = [
    # A body that breaks off is on its way until the server has taken it, which may be after the end of
    # the test's loop: such a connection is closed, and looks as if nobody had closed it.
    pytest.mark.filterwarnings(f"ignore:Exception ignored in. <{one}")
    for one in ("function _SelectorTransport", "socket.socket")
]


async def nothing_is_there(drive: Drive) -> None:
    with pytest.raises(ObjectMissing):
        await drive.head("a/b")
    assert [facts.object_key async for facts in drive.list()] == []


@pytest.mark.parametrize("size", [0, 1, 4096, BLOCK_SIZE, BLOCK_SIZE + 1, SIZE])
async def test_an_object_is_what_its_source_gives(drive: Drive, size: int) -> None:
    source = Bytes(DATA[:size])

    await drive.put("a/b", source, crc32c(source.data))

    assert bytes(await drive.get("a/b")) == source.data
    facts = await drive.head("a/b", checksum=True)
    assert (facts.size, facts.crc) == (size, crc32c(source.data))
    assert source.largest <= BLOCK_SIZE, "some of it is in memory, and never all"
    assert sorted(source.reads) == source.reads
    assert sum(count for _, count in source.reads) == size, "each byte is read once"


async def test_a_source_that_ends_early_leaves_nothing_and_its_error_is_told(drive: Drive) -> None:
    for position in (0, 3 * MIB, SIZE - SIZE % MIB):
        source = Bytes(DATA)
        source.failures[position] = GONE
        with pytest.raises(StoreError) as raised:
            await drive.put("a/b", source, CRC)
        assert raised.value is GONE
        await nothing_is_there(drive)

    await drive.put("a/b", Bytes(DATA), CRC)
    assert bytes(await drive.get("a/b")) == DATA, "the key was not used up"


@pytest.mark.parametrize("damaged", [0, 3 * MIB + 5, SIZE - 1], ids=["first", "midst", "last"])
async def test_a_source_of_other_bytes_than_its_checksum_leaves_nothing(
    drive: Drive, damaged: int
) -> None:
    other = bytearray(DATA)
    other[damaged] ^= 1
    with pytest.raises(Corrupt):
        await drive.put("a/b", Bytes(bytes(other)), CRC)
    await nothing_is_there(drive)


async def test_an_object_that_is_there_is_not_replaced_by_a_source(drive: Drive) -> None:
    await drive.put("a/b", [b"first"], crc32c(b"first"))

    with pytest.raises(ObjectExists):
        await drive.put("a/b", Bytes(DATA), CRC)
    assert bytes(await drive.get("a/b")) == b"first"


async def test_of_sources_put_at_the_same_time_one_wins(drive: Drive) -> None:
    bodies = [bytes([number]) * (2 * MIB + number) for number in range(4)]

    async def put(body: bytes) -> Exception | None:
        # A server may fail where many put at once (one in memory does); then it is asked again.
        try:
            await put_object(drive, "a/b", Bytes(body), crc32c(body), deadline_seconds=60)
        except Corrupt as error:
            return error
        return None

    results = await asyncio.gather(*(put(body) for body in bodies))

    (winner,) = [number for number, result in enumerate(results) if result is None]
    assert bytes(await drive.get("a/b")) == bodies[winner]


async def test_a_put_that_is_given_up_in_the_midst_leaves_nothing_and_can_be_made_again(
    drive: Drive,
) -> None:
    source = Bytes(DATA)
    source.held_from = 3 * MIB
    putting = asyncio.create_task(drive.put("a/b", source, CRC))
    await source.held.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    await nothing_is_there(drive)

    await drive.put("a/b", Bytes(DATA), CRC)
    assert bytes(await drive.get("a/b")) == DATA


async def test_each_attempt_reads_the_source_anew(drive: Drive) -> None:
    """The object that a lost reply left is found by the next attempt, by size and checksum."""
    source = Bytes(DATA)
    await drive.put("a/b", source, CRC)
    await put_object(drive, "a/b", source, CRC, deadline_seconds=60)
    assert bytes(await drive.get("a/b")) == DATA

    with pytest.raises(Corrupt):
        await put_object(drive, "a/b", Bytes(DATA[1:]), crc32c(DATA[1:]), deadline_seconds=60)


async def test_a_source_whose_bytes_changed_once_is_put_again_and_one_that_is_damaged_is_told_of(
    drive: Drive,
) -> None:
    class Once(Bytes):
        async def read_into(self, position: int, buffer: memoryview) -> None:
            await super().read_into(position, buffer)
            if position == MIB and self.starts_at(MIB) == 1:
                buffer[0] ^= 1

    await put_object(drive, "a/b", Once(DATA), CRC, deadline_seconds=60)
    assert bytes(await drive.get("a/b")) == DATA
    with pytest.raises(Corrupt, match="do not match"):
        await put_object(drive, "a/c", Bytes(DATA[:-1] + b"?"), CRC, deadline_seconds=60)


async def test_without_the_comparison_a_directory_keeps_damaged_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store compares too; a directory has nobody else who does."""
    remove(
        monkeypatch, "the checksum of a put, before the object is there", lambda _found, _crc: None
    )
    drive = LocalDrive(tmp_path)
    await drive.put("a/b", Bytes(DATA[:-1] + b"?"), CRC)
    assert (await drive.get("a/b"))[-1:] == b"?"
    await drive.aclose()
