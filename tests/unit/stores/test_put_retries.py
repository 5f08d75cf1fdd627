"""Putting until it is there: which failures are tried again, and what the last one means."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from simulation.loop import VirtualLoop

from bottomless.drives.base import (
    Body,
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    ObjectExists,
)
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.checks import crc32c
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.stores.put_retries import PutWaits, put_object

BODY = b"body"
AT_ONCE = PutWaits(initial=0, longest=0, jitter=0)


class FlakyDrive(MemoryDrive):
    """Fails in the ways of `plan`, one a put: (put it nevertheless, what to raise)."""

    def __init__(self, *plan: tuple[bool, StoreError]) -> None:
        super().__init__()
        self.plan = list(plan)
        self.attempts = 0

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        self.attempts += 1
        stored, error = self.plan.pop(0) if self.plan else (True, None)
        if stored:
            await super().put(object_key, body, crc)
        if error:
            raise error


async def put(drive: MemoryDrive, deadline_seconds: float = 30) -> None:
    parts: list[bytes | memoryview] = [BODY[:1], memoryview(BODY)[1:]]
    await put_object(
        drive, "key", parts, crc32c(BODY), deadline_seconds=deadline_seconds, waits=AT_ONCE
    )


async def test_what_a_retry_can_mend_is_tried_until_it_is_there() -> None:
    drive = FlakyDrive(
        (False, DriveUnavailable("down")),
        (False, DriveAmbiguous("lost")),
        (False, DriveUnavailable("down")),
    )
    await put(drive)

    assert drive.attempts == 4
    assert await drive.get("key") == BODY


async def test_an_object_whose_reply_was_lost_is_recognised_as_ours() -> None:
    drive = FlakyDrive((True, DriveAmbiguous("lost")))
    await put(drive)

    assert drive.attempts == 2
    assert await drive.get("key") == BODY


@pytest.mark.parametrize("other", [b"ydob", b"bodybody", b""])
async def test_another_object_under_our_key_is_an_alarm(other: bytes) -> None:
    drive = FlakyDrive()
    await drive.put("key", [other], crc32c(other))

    with pytest.raises(Corrupt, match="another object"):
        await put(drive)
    assert await drive.get("key") == other


class Denying(MemoryDrive):
    """Says that an object exists which it does not have, until it has done so often enough."""

    def __init__(self, lie_count: int) -> None:
        super().__init__()
        self.lie_count = lie_count

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if self.lie_count:
            self.lie_count -= 1
            raise ObjectExists("an object of this key exists")
        await super().put(object_key, body, crc)


async def test_an_object_that_is_said_to_exist_and_is_not_there_is_put_again() -> None:
    drive = Denying(2)
    await put(drive)

    assert await drive.get("key") == BODY


class Unseen(MemoryDrive):
    """Has an object and cannot show it."""

    def __init__(self, error: StoreError) -> None:
        super().__init__()
        self.error = error

    async def head(self, *_: object, **__: object) -> ObjectFacts:
        raise self.error


@pytest.mark.parametrize("error", [DriveUnavailable("down"), DriveRefused("no")])
async def test_an_object_that_exists_and_cannot_be_looked_at_is_an_unknown_outcome(
    error: StoreError,
) -> None:
    drive = Unseen(error)
    await drive.put("key", [BODY], crc32c(BODY))

    with pytest.raises(DriveAmbiguous):
        await put(drive, deadline_seconds=0.05)


async def test_bytes_that_are_damaged_on_their_way_are_sent_again() -> None:
    drive = FlakyDrive((False, Corrupt("crc")), (False, Corrupt("crc")))
    await put(drive)

    assert drive.attempts == 3
    assert await drive.get("key") == BODY


async def test_bytes_that_are_damaged_before_they_are_sent_are_an_alarm() -> None:
    drive = FlakyDrive((False, Corrupt("crc")))

    with pytest.raises(Corrupt, match="crc"):
        await put_object(drive, "key", [b"b0dy"], crc32c(BODY), deadline_seconds=30)
    assert drive.attempts == 1


async def test_an_object_of_ours_whose_bytes_are_read_damaged_is_looked_at_twice() -> None:
    class Misread(MemoryDrive):
        async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
            facts = await super().head(object_key, checksum=checksum)
            looks.append(object_key)
            return facts if len(looks) > 1 else facts._replace(crc=1)

    looks: list[str] = []
    drive = Misread()
    await drive.put("key", [BODY], crc32c(BODY))
    await put(drive)

    assert looks == ["key", "key"]


@pytest.mark.parametrize("error", [DriveRefused("no"), DriveFull("full")])
async def test_what_a_retry_cannot_mend_is_raised_at_once(error: StoreError) -> None:
    drive = FlakyDrive((False, error))

    with pytest.raises(type(error)) as raised:
        await put(drive)
    assert raised.value is error
    assert drive.attempts == 1


async def test_a_failure_after_a_lost_reply_is_an_unknown_outcome() -> None:
    drive = FlakyDrive((False, DriveAmbiguous("lost")), (False, DriveRefused("no")))

    with pytest.raises(DriveAmbiguous):
        await put(drive)


def test_the_waits_between_two_attempts_are_those_of_the_caller() -> None:
    """They were fixed numbers, so that settings of the uploader did not govern its puts while the
    store was away; every test of them was without waiting, or knew no more than the deadline."""

    class Down(MemoryDrive):
        def __init__(self) -> None:
            super().__init__()
            self.tried_at: list[float] = []

        async def put(self, *_: object) -> None:
            self.tried_at.append(asyncio.get_running_loop().time())
            raise DriveUnavailable("down")

    async def put_in_vain(waits: PutWaits) -> list[float]:
        drive = Down()
        with pytest.raises(DriveUnavailable):
            await put_object(drive, "key", [BODY], crc32c(BODY), deadline_seconds=100, waits=waits)
        return [after - before for before, after in pairwise(drive.tried_at)]

    loop = VirtualLoop(random.Random(0))
    try:
        own = loop.run_until_complete(put_in_vain(PutWaits(initial=1, longest=30, jitter=0)))
        usual = loop.run_until_complete(put_in_vain(PutWaits()))
    finally:
        loop.close()
    assert own == pytest.approx([1, 2, 4, 8, 16, 30, 30], abs=0.01)
    assert max(usual) <= 5.01


class BySeconds(MemoryDrive):
    """Each put takes as long as its key says, and those of one key fail."""

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if object_key == "refused":
            raise DriveUnavailable("not for you")
        await asyncio.sleep(float(object_key))
        await super().put(object_key, body, crc)


def test_room_is_held_for_an_attempt_and_neither_its_pauses_nor_the_time_that_it_took_to_get_it() -> (
    None
):
    """It was held over all attempts, so that eight that could not succeed stopped everybody."""
    drive, room = BySeconds(), asyncio.Semaphore(1)

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        async with room:
            yield

    async def in_room(object_key: str) -> None:
        waits = PutWaits(initial=1, longest=30, jitter=0)
        await put_object(
            drive, object_key, [BODY], crc32c(BODY), deadline_seconds=100, waits=waits, room=held
        )

    async def all_three() -> float:
        refused = asyncio.create_task(in_room("refused"))
        await asyncio.gather(in_room("80"), in_room("90"))
        took = asyncio.get_running_loop().time()
        with pytest.raises(DriveUnavailable):
            await refused
        return took

    loop = VirtualLoop(random.Random(0))
    try:
        began = loop.time()
        assert loop.run_until_complete(all_three()) - began == pytest.approx(170, abs=0.1)
    finally:
        loop.close()


async def test_a_deadline_during_an_attempt_is_an_unknown_outcome() -> None:
    class Hanging(MemoryDrive):
        async def put(self, *_: object) -> None:
            await asyncio.Event().wait()

    with pytest.raises(DriveAmbiguous):
        await put(Hanging(), deadline_seconds=0.01)


async def test_a_deadline_between_failed_attempts_means_that_nothing_was_stored() -> None:
    class Down(MemoryDrive):
        async def put(self, *_: object) -> None:
            raise DriveUnavailable("down")

    with pytest.raises(DriveUnavailable):
        await put(Down(), deadline_seconds=0.05)


async def test_cancelling_passes_through() -> None:
    class Hanging(MemoryDrive):
        async def put(self, *_: object) -> None:
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(put(Hanging()))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
