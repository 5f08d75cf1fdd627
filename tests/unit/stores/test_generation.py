"""Bucket and coordination belong together, or the start is refused."""

import asyncio

import pytest

from bottomless.errors import Code, Corrupt, Unavailable
from bottomless.formats import keys
from bottomless.formats.checks import crc32c
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import GENERATION_KEY

FIRST = b'{"generation":0}'
THIRD = b'{"generation":3}'


async def parts(
    in_bucket: bytes | None, in_coordination: bytes | None
) -> tuple[MemoryDrive, MemoryCoordination]:
    drive, coordination = MemoryDrive(), MemoryCoordination(lambda: 0)
    if in_bucket is not None:
        await drive.put(keys.GENERATION_KEY, [in_bucket], crc32c(in_bucket))
    coordination.write(Changes({GENERATION_KEY: in_coordination}))
    return drive, coordination


@pytest.mark.parametrize(
    ("in_bucket", "in_coordination", "wanted"),
    [
        (None, None, FIRST),
        (None, FIRST, FIRST),
        (None, THIRD, THIRD),
        (THIRD, THIRD, THIRD),
        (THIRD, b'{ "generation" : 3 }', THIRD),
    ],
)
async def test_what_is_missing_is_created_and_both_agree(
    in_bucket: bytes | None, in_coordination: bytes | None, wanted: bytes
) -> None:
    drive, coordination = await parts(in_bucket, in_coordination)

    assert await check_generation(drive, coordination) == int(wanted[-2:-1])
    assert await check_generation(drive, coordination) == int(wanted[-2:-1])
    assert await drive.get(keys.GENERATION_KEY) == wanted
    assert await coordination.get(GENERATION_KEY) == wanted[:-1] + b',"bucket":true}'


async def test_another_bucket_is_refused_once_the_first_was_confirmed() -> None:
    drive, coordination = await parts(None, None)
    await check_generation(drive, coordination)

    with pytest.raises(Unavailable) as raised:
        await check_generation(MemoryDrive(), coordination)

    assert raised.value.code is Code.COORDINATION_REGRESSED


@pytest.mark.parametrize(
    ("in_bucket", "in_coordination"), [(FIRST, None), (THIRD, FIRST), (FIRST, THIRD)]
)
async def test_a_coordination_store_of_another_time_is_refused(
    in_bucket: bytes, in_coordination: bytes | None
) -> None:
    drive, coordination = await parts(in_bucket, in_coordination)

    with pytest.raises(Unavailable) as raised:
        await check_generation(drive, coordination)
    assert raised.value.code is Code.COORDINATION_REGRESSED
    assert await coordination.get(GENERATION_KEY) == in_coordination


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"generation":"0"}', b'{"generation":-1}'])
async def test_a_value_that_is_no_generation_is_corrupt(value: bytes) -> None:
    for in_bucket, in_coordination in [(value, FIRST), (FIRST, value), (None, value)]:
        drive, coordination = await parts(in_bucket, in_coordination)
        with pytest.raises(Corrupt):
            await check_generation(drive, coordination)


async def test_processes_that_start_at_the_same_time_agree() -> None:
    drive, coordination = await parts(None, None)

    assert (
        await asyncio.gather(*(check_generation(drive, coordination) for _ in range(9))) == [0] * 9
    )
    assert await drive.get(keys.GENERATION_KEY) == FIRST
