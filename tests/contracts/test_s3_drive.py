"""What only S3 servers can show: parts, checksums on the way, signatures, URLs for others."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client
from support.sources import Bytes

from bottomless.drives.base import DriveRefused, Location, ObjectExists, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_multipart import shown_crc
from bottomless_server.drives.s3_options import MIB, S3Options
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.process.parts import open_drive
from contracts.conftest import s3_options

BIG = bytes(range(256)) * 4096 * 12
"""12 MiB: three parts of the smallest size that S3 allows."""

EXCEPTIONS = {
    ("moto", "checks a checksum"): "stores what it gets, and says no checksum of it",
    ("moto", "keeps a checksum"): "answers CRC-32 for CRC-32C unless an extra library is there",
    ("moto", "checks a signature"): "lets everybody in",
    ("moto", "completes one of many"): "looks for the object and makes it without a lock",
    ("seaweed", "completes one of many"): "the same; puts that are not in parts have one winner",
    ("seaweed", "lists by key"): "goes through directories, and starts after them: a/b before a.b",
}
"""What a server does not do, and why. What can be shown is: a newer one that does it fails here."""


@pytest.fixture(params=["moto", "seaweed"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, name: str) -> S3Server:
    running: S3Server = request.getfixturevalue(name)
    return running


@pytest.fixture
def options(server: S3Server) -> S3Options:
    return s3_options(server, multipart_bytes=5 * MIB, part_bytes=5 * MIB)


@pytest.fixture
async def drive(options: S3Options) -> AsyncIterator[S3Drive]:
    made = S3Drive(options)
    yield made
    await made.aclose()


async def keys_of(drive: S3Drive, prefix: str = "", after: str = "") -> list[str]:
    return [facts.object_key async for facts in drive.list(prefix, after)]


def uploads(server: S3Server) -> list[Any]:
    with s3_client(server) as client:
        return list(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


async def test_a_large_object_is_put_in_parts_once(server: S3Server, drive: S3Drive) -> None:
    parts: list[bytes | memoryview] = [BIG[:7], memoryview(BIG)[7 : 6 * MIB], BIG[6 * MIB :]]
    await drive.put("big", parts, crc32c(BIG))

    assert await drive.get("big") == BIG
    assert await drive.get("big", 5 * MIB - 2, 4) == BIG[5 * MIB - 2 : 5 * MIB + 2]
    with pytest.raises(ObjectExists):
        await drive.put("big", [bytes(len(BIG))], crc32c(bytes(len(BIG))))
    assert await drive.get("big") == BIG
    assert uploads(server) == []


async def test_of_large_puts_at_the_same_time_one_wins(
    name: str, server: S3Server, drive: S3Drive
) -> None:
    bodies = [bytes([number]) * (6 * MIB) for number in range(3)]

    results = await asyncio.gather(
        *(drive.put("big", [body], crc32c(body)) for body in bodies), return_exceptions=True
    )

    winners = [number for number, result in enumerate(results) if result is None]
    losers = [result for result in results if result is not None]
    assert all(isinstance(result, ObjectExists) for result in losers)
    assert uploads(server) == []
    assert await drive.get("big") in [bodies[number] for number in winners]
    # Whether two meet in that gap is chance, so there is nothing to show.
    assert len(winners) == 1 or (name, "completes one of many") in EXCEPTIONS


async def test_a_put_in_parts_that_is_cancelled_leaves_nothing(
    server: S3Server, drive: S3Drive
) -> None:
    body = Bytes(BIG)
    body.held_from = 5 * MIB
    putting = asyncio.create_task(drive.put("big", body, crc32c(BIG)))
    # In its second part. What S3 has begun by the time that it is cancelled is known by then.
    await asyncio.wait_for(body.held.wait(), 240)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting

    assert await keys_of(drive) == []
    assert uploads(server) == []


@pytest.mark.parametrize("size", [4, len(BIG)])
async def test_the_store_knows_the_checksum_of_the_whole_object(
    name: str, server: S3Server, options: S3Options, drive: S3Drive, size: int
) -> None:
    await drive.put("a", [BIG[:size]], crc32c(BIG[:size]))

    with s3_client(server) as client:
        head = client.head_object(Bucket=BUCKET, Key=f"{options.prefix}/a", ChecksumMode="ENABLED")
    known = head.get("ChecksumCRC32C") == shown_crc(crc32c(BIG[:size]))
    assert known is ((name, "keeps a checksum") not in EXCEPTIONS)


async def test_bytes_that_change_on_the_way_are_not_stored(
    name: str, server: S3Server, drive: S3Drive
) -> None:
    """Sent with the checksum of other bytes, as if a bit had flipped behind the signature."""
    key = secrets.token_hex(8)
    with s3_client(server) as client:
        try:
            client.put_object(
                Bucket=BUCKET, Key=key, Body=b"body", ChecksumCRC32C=shown_crc(crc32c(b"b0dy"))
            )
            refused = ""
        except ClientError as error:
            refused = error.response["Error"]["Code"]
    assert (refused == "BadDigest") is ((name, "checks a checksum") not in EXCEPTIONS)


async def test_wrong_credentials_are_refused(
    name: str, options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    drive = S3Drive(options)
    try:
        await drive.put("a", [b"body"], crc32c(b"body"))
        refused = False
    except DriveRefused:
        refused = True
    await drive.aclose()
    assert refused is ((name, "checks a signature") not in EXCEPTIONS)


async def test_bytes_that_do_not_match_are_refused_before_parts_are_sent(
    server: S3Server, drive: S3Drive
) -> None:
    with pytest.raises(Corrupt):
        await drive.put("big", [BIG], 1)
    assert uploads(server) == []


async def test_anybody_may_read_one_object_by_its_url(drive: S3Drive) -> None:
    await drive.put("a/b", [b"0123456789"], crc32c(b"0123456789"))
    url = await drive.presigned_get("a/b", valid_seconds=60)

    async with httpx.AsyncClient() as anybody:
        answer = await anybody.get(url, headers={"range": "bytes=3-5"})
    assert (answer.status_code, answer.content) == (206, b"345")
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in url


async def test_an_absent_bucket_is_refused(options: S3Options) -> None:
    drive = S3Drive(replace(options, bucket="nobody-made-it"))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: drive.get("a"),
        lambda: drive.head("a"),
        lambda: drive.put("a", [b"x"], crc32c(b"x")),
        lambda: keys_of(drive),
    ]
    for call in calls:
        with pytest.raises(DriveRefused):
            await call()
    failures = await drive.delete(["a"])
    await drive.aclose()
    assert {key: type(error) for key, error in failures.items()} == {"a": DriveRefused}


async def test_more_objects_than_one_call_takes_are_listed_and_deleted(
    options: S3Options, drive: S3Drive
) -> None:
    names = [f"a/{number:05d}" for number in range(1_005)]
    for first in range(0, len(names), 50):
        await asyncio.gather(
            *(drive.put(name, [b"x"], crc32c(b"x")) for name in names[first : first + 50])
        )

    assert await keys_of(drive) == names
    assert await keys_of(drive, "a/01", "a/01002") == names[1003:]
    assert await drive.delete([*names, "a/nothing"]) == {}
    assert await keys_of(drive) == []


async def test_what_is_beside_the_prefix_is_not_seen(options: S3Options, drive: S3Drive) -> None:
    beside = S3Drive(replace(options, prefix=f"{options.prefix}-beside"))
    await beside.put("a", [b"x"], crc32c(b"x"))

    assert await keys_of(drive) == []
    with pytest.raises(ObjectMissing):
        await drive.get("a")
    await beside.aclose()


async def test_a_store_that_does_not_list_by_key_is_refused_where_it_is_trusted_to(
    name: str, options: S3Options
) -> None:
    drive = S3Drive(replace(options, listed_by_key=True))
    for object_key in ("a/b", "a.b"):
        await drive.put(object_key, [b"x"], crc32c(b"x"))
    try:
        listed = await keys_of(drive)
    except DriveRefused:
        listed = []
    await drive.aclose()
    assert (listed == ["a.b", "a/b"]) is ((name, "lists by key") not in EXCEPTIONS)


async def test_a_drive_is_opened_by_its_url(server: S3Server, tmp_path: Path) -> None:
    prefix = f"tests/{secrets.token_hex(8)}"
    drive = open_drive(server.store_url(prefix), CommonSettings())
    await drive.put("a", [b"x"], crc32c(b"x"))

    assert await drive.get("a") == b"x"
    assert drive.location == Location("s3", f"{BUCKET}/{prefix}", server.endpoint, None, True)
    await drive.aclose()
