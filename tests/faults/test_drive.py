"""The drive alone before a real server: what is there after a call that failed.

What each failure is called stands in tests/unit/drives/test_s3.py, by a server that answers
as it is told; here a server that stores says whether that is true.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from support.fault_proxy import FaultProxy, running_fault_proxy
from support.faults import BROKEN, SLOW_DOWN, Answer, Fault, Rule, named
from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client

from bottomless.drives.base import (
    DriveAmbiguous,
    DriveUnavailable,
    ObjectExists,
    ObjectMissing,
)
from bottomless.errors import Corrupt, StoreError
from bottomless.formats.checks import crc32c
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_options import MIB, S3Options
from bottomless_server.stores.put_retries import put_object

SMALL = bytes(range(256)) * 1024
BIG = bytes(range(256)) * 4096 * 12
"""12 MiB: three parts."""


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    with running_fault_proxy(seaweed.endpoint) as running:
        yield running


@pytest.fixture
def options(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> S3Options:
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    return S3Options(
        BUCKET,
        f"drives/{secrets.token_hex(8)}",
        proxy.endpoint,
        read_seconds=60,
        multipart_bytes=5 * MIB,
        part_bytes=5 * MIB,
    )


@pytest.fixture
async def drive(options: S3Options) -> AsyncIterator[S3Drive]:
    made = S3Drive(options)
    yield made
    await made.aclose()


@pytest.fixture
async def hasty(options: S3Options) -> AsyncIterator[S3Drive]:
    """For what stands still until somebody gives it up, and for that alone: a busy machine takes
    longer than this for what does not stand still."""
    made = S3Drive(replace(options, read_seconds=1))
    yield made
    await made.aclose()


async def stored(drive: S3Drive, object_key: str) -> bytes | None:
    try:
        return bytes(await drive.get(object_key))
    except ObjectMissing:
        return None


@pytest.mark.parametrize(
    ("fault", "answer", "wanted", "is_there"),
    [
        (Fault.LOSE_REQUEST, BROKEN, DriveAmbiguous, False),
        (Fault.CUT_REQUEST, BROKEN, DriveAmbiguous, False),
        (Fault.FLIP_REQUEST, BROKEN, Corrupt, False),
        (Fault.LOSE_REPLY, BROKEN, DriveAmbiguous, True),
        (Fault.STALL, BROKEN, DriveAmbiguous, True),
        (Fault.REFUSE, BROKEN, DriveAmbiguous, False),
        (Fault.REFUSE, SLOW_DOWN, DriveUnavailable, False),
        (Fault.MISREPORT, BROKEN, DriveAmbiguous, True),
    ],
    ids=lambda value: named(value) if isinstance(value, Answer | Fault) else "",
)
async def test_after_a_put_that_failed_the_object_is_there_whole_or_not_at_all(
    proxy: FaultProxy,
    drive: S3Drive,
    hasty: S3Drive,
    fault: Fault,
    answer: Answer,
    wanted: type[StoreError],
    is_there: bool,
) -> None:
    rule = Rule(fault, "PUT", "/a/b$", answer, times=1)
    with proxy.disturbing(rule), pytest.raises(StoreError) as raised:
        await (hasty if fault is Fault.STALL else drive).put("a/b", [SMALL], crc32c(SMALL))
    assert type(raised.value) is wanted
    if fault is Fault.STALL:
        # It may have been given up on its way there.
        async with asyncio.timeout(90):
            while await stored(drive, "a/b") is None:
                await asyncio.sleep(0.05)
    assert await stored(drive, "a/b") == (SMALL if is_there else None)

    await put_object(drive, "a/b", [SMALL], crc32c(SMALL), deadline_seconds=300)
    assert await stored(drive, "a/b") == SMALL


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Fault.LOSE_REPLY, "POST", "uploadId=", times=1),
        Rule(Fault.MISREPORT, "POST", "uploadId=", BROKEN, times=1),
        Rule(Fault.LOSE_REQUEST, "POST", "uploadId=", times=1),
        Rule(Fault.LOSE_REPLY, "POST", r"\?uploads", times=1),
        Rule(Fault.CUT_REQUEST, "PUT", "partNumber=2", times=1),
        Rule(Fault.FLIP_REQUEST, "PUT", "partNumber=3", times=1),
        Rule(Fault.LOSE_REPLY, "PUT", "partNumber=1", times=1),
    ],
    ids=lambda rule: f"{rule.fault.name}-{rule.path}",
)
async def test_an_object_in_parts_is_there_whole_after_any_of_its_calls_failed(
    seaweed: S3Server, proxy: FaultProxy, options: S3Options, drive: S3Drive, rule: Rule
) -> None:
    with proxy.disturbing(rule):
        await put_object(drive, "big", [BIG], crc32c(BIG), deadline_seconds=300)

    assert await stored(drive, "big") == BIG
    with s3_client(seaweed) as client:
        left = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    ours = [upload for upload in left if upload["Key"].startswith(options.prefix)]
    # An upload whose id was lost on the way to us cannot be aborted: the bucket's rule ends it.
    assert len(ours) == (1 if rule.path == r"\?uploads" else 0)


@pytest.mark.parametrize(
    "fault",
    [Fault.LOSE_REPLY, Fault.TRUNCATE, Fault.TRUNCATE_AND_RESET, Fault.STALL],
    ids=named,
)
async def test_half_an_answer_is_none(
    proxy: FaultProxy, drive: S3Drive, hasty: S3Drive, fault: Fault
) -> None:
    await drive.put("a/b", [SMALL], crc32c(SMALL))
    disturbed = hasty if fault is Fault.STALL else drive
    with proxy.disturbing(Rule(fault, "GET")):
        for start, size in ((0, None), (5, 1000)):
            with pytest.raises(DriveUnavailable):
                await disturbed.get("a/b", start, size)
        with pytest.raises(DriveUnavailable):
            assert [facts async for facts in disturbed.list()] == []

    assert await drive.get("a/b", 5, 1000) == SMALL[5:1005]


async def test_a_deletion_whose_reply_is_lost_is_named_and_can_be_asked_for_again(
    proxy: FaultProxy, drive: S3Drive
) -> None:
    await drive.put("a/b", [SMALL], crc32c(SMALL))
    with proxy.disturbing(Rule(Fault.LOSE_REPLY, "POST", "delete", times=1)):
        failures = await drive.delete(["a/b"])

    assert {key: type(error) for key, error in failures.items()} == {"a/b": DriveUnavailable}
    assert await stored(drive, "a/b") is None
    assert await drive.delete(["a/b"]) == {}


async def test_a_drive_and_the_proxy_count_the_same_requests(
    proxy: FaultProxy, drive: S3Drive
) -> None:
    """What a bill asks for: also each part, each page and what was refused."""
    await drive.put("a/small", [SMALL], crc32c(SMALL))
    await drive.put("a/big", [BIG], crc32c(BIG))
    with pytest.raises(ObjectExists):
        await drive.put("a/small", [SMALL], crc32c(SMALL))
    await drive.get("a/small")
    await drive.get("a/small", 10, 20)
    await drive.head("a/big")
    assert len([facts async for facts in drive.list()]) == 2
    with proxy.disturbing(Rule(Fault.REFUSE, "GET", "/a/big", answer=SLOW_DOWN, times=1)):
        # It asks a second time, by the library.
        assert await drive.get("a/big") == BIG
    await drive.delete(["a/small", "a/big"])
    assert {"put", "get", "head", "list", "delete"} == set(drive.requests)
    assert drive.requests == proxy.kinds
