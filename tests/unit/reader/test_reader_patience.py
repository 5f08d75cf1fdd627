"""Reads go on over a store that fails for a moment, and cost no more where it does not.

Scenario 36 says "no error to readers", and its check knew followers and slow stores only: a
follower tries again, and one answer of the store that came late was no failure. A page that met
one 503, one cut body or one lost reply was an error, in 70 of 150 reads of a mix of faults.
"""

import asyncio
from collections import Counter

import httpx
import pytest
from unit.reader.harness import ARROW, ReaderHarness, WatchedDrive
from unit.reader.protocol import STREAM_ID

from bottomless.drives.base import DriveRefused, DriveUnavailable
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamName
from bottomless.model.offset_spec import At
from bottomless_server.reader.page_query import CHUNKS
from bottomless_server.reader.pages import PageQuery

READS = [
    ("/records?offset=0&limit=5", "application/json"),
    ("/records?offset=35&limit=100", ARROW),
    ("/records?offset=first", CHUNKS),
    ("/records/17", "application/json"),
    ("/records?offset=timestamp:1020", "application/json"),
    ("/offsets", "application/json"),
    ("/fragments", "application/json"),
]


class FlakyDrive(WatchedDrive):
    """The first `failures` GETs of each range fail; a further one would be right."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.error: type[Exception] = DriveUnavailable
        self.asked: Counter[tuple[str, int]] = Counter()

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        data = await super().get(object_key, start, size)
        self.asked[object_key, start] += 1
        if self.asked[object_key, start] <= self.failures:
            raise self.error("the store is busy")
        return data


async def stored(drive: FlakyDrive, **settings: object) -> ReaderHarness:
    """Four fragments and a group, and nothing of it in a cache."""
    harness = ReaderHarness(fanout=2, drive=drive, **settings)
    harness.fill(80)
    for _ in range(4):
        await harness.upload(2, free=True)
    drive.asked.clear()
    drive.reads.clear()
    return harness


async def read(harness: ReaderHarness, path: str, accept: str) -> httpx.Response:
    return await harness.get(path, accept=accept)


@pytest.mark.parametrize(("path", "accept"), READS)
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_read_goes_on_over_a_store_that_fails_for_a_moment(
    path: str, accept: str, failures: int
) -> None:
    """Each range fails at first, so every one is asked for once more, and no other."""
    healthy, flaky = await stored(FlakyDrive(0)), await stored(FlakyDrive(failures))
    wanted = await read(healthy, path, accept)
    assert wanted.status_code == 200

    answer = await read(flaky, path, accept)

    assert (answer.status_code, answer.content) == (200, wanted.content)
    drive = flaky.drive
    assert isinstance(drive, FlakyDrive)
    assert set(drive.reads) == set(healthy.drive.reads)
    assert set(drive.asked.values()) == {failures + 1}
    await healthy.aclose()
    await flaky.aclose()


@pytest.mark.parametrize(("path", "accept"), READS)
async def test_where_the_store_is_well_a_read_costs_as_many_gets_as_without_patience(
    path: str, accept: str
) -> None:
    reads = []
    for seconds in (0, 5):
        harness = await stored(FlakyDrive(0), reader_store_retry_seconds=seconds)
        assert (await read(harness, path, accept)).status_code == 200
        reads.append(harness.drive.reads)
        await harness.aclose()

    assert reads[0] == reads[1]


async def test_without_patience_one_failure_is_an_error_to_the_reader() -> None:
    """The guard taken away: what was found."""
    harness = await stored(FlakyDrive(1), reader_store_retry_seconds=0)

    answer = await read(harness, *READS[0])

    assert (answer.status_code, answer.json()["code"]) == (503, "object-store-unavailable")
    await harness.aclose()


async def test_a_store_that_is_down_is_an_error_after_the_time_and_not_for_ever() -> None:
    harness = await stored(FlakyDrive(10**6), reader_store_retry_seconds=0.2)

    answer = await read(harness, *READS[0])

    assert (answer.status_code, answer.json()["code"]) == (503, "object-store-unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    await harness.aclose()


async def test_what_no_further_attempt_can_mend_is_asked_once() -> None:
    drive = FlakyDrive(10**6)
    drive.error = DriveRefused
    harness = await stored(drive)

    assert (await read(harness, *READS[0])).status_code == 503

    assert len(drive.reads) == 1
    await harness.aclose()


async def test_who_follows_tries_again_by_itself_and_not_within_that_once_more() -> None:
    harness = await stored(FlakyDrive(1))
    query = PageQuery(At(0), limit=5, size_max=1_000, stream_id=STREAM_ID)

    with pytest.raises(DriveUnavailable):
        await harness.service.followers.read(
            FullName(TENANT_DEFAULT, StreamName("orders")), query, 60
        )

    assert len(harness.drive.reads) == 1
    await harness.aclose()


async def test_a_download_goes_on_over_a_store_that_fails_for_a_moment() -> None:
    harness = await stored(FlakyDrive(1))
    info = harness.fragments[1]

    answer = await harness.get(f"/fragments/{info.fragment_id}")

    assert (answer.status_code, len(answer.content)) == (200, info.size)
    await harness.aclose()


async def test_a_page_that_waits_for_what_a_follower_began_tries_again_by_itself() -> None:
    """What the follower asks for fails, and it does not ask for it again within this read."""
    harness = await stored(FlakyDrive(1))
    query = PageQuery(At(0), limit=5, size_max=1_000, stream_id=STREAM_ID)
    name = FullName(TENANT_DEFAULT, StreamName("orders"))
    following = asyncio.create_task(harness.service.followers.read(name, query, 60))
    await asyncio.sleep(0)

    assert (await read(harness, *READS[0])).status_code == 200

    await asyncio.gather(following, return_exceptions=True)
    await harness.aclose()


class HeldDrive(WatchedDrive):
    """The next GET of a fragment waits until it is let go, and fails then."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        data = await super().get(object_key, start, size)
        if self.armed and "/data/" in object_key:
            self.armed = False
            self.asked.set()
            await self.goes_on.wait()
            raise DriveUnavailable("the store is busy")
        return data


async def test_a_page_that_joins_what_a_follower_began_goes_on_where_that_fails() -> None:
    """Readers were looked at one by one: what is asked for together had the patience of the first."""
    drive = HeldDrive()
    harness = ReaderHarness(fanout=2, drive=drive)
    harness.fill(80)
    for _ in range(4):
        await harness.upload(2, free=True)
    drive.armed = True
    query = PageQuery(At(0), limit=5, size_max=1_000, stream_id=STREAM_ID)
    name = FullName(TENANT_DEFAULT, StreamName("orders"))
    follower = asyncio.create_task(harness.service.followers.read(name, query, 60))
    await drive.asked.wait()
    page = asyncio.create_task(harness.get("/records?offset=0&limit=4"))
    for _ in range(50):
        await asyncio.sleep(0)

    drive.goes_on.set()
    answer = await page
    with pytest.raises(DriveUnavailable):
        await follower

    assert answer.status_code == 200, answer.text
    await harness.aclose()
