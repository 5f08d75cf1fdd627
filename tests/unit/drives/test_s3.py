"""What a caller hears of an S3 store that fails, by a server that answers as it is told."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
import tracemalloc
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.certificates import self_signed
from support.connections import Connections
from support.guards import remove
from support.s3 import CREDENTIALS
from support.scripted_s3 import CLOSE, Request, ScriptedS3, refusal, reply, scripted_s3
from support.sources import Bytes

from bottomless.drives.base import (
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    ObjectExists,
    ObjectMissing,
)
from bottomless.errors import Corrupt, Outcome, StoreError
from bottomless.formats.checks import crc32c
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_multipart import put_in_parts
from bottomless_server.drives.s3_options import MIB, S3Options
from bottomless_server.stores.put_retries import put_object

BODY = b"body"
DATE = "Sat, 01 Jan 2000 00:00:00 GMT"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedS3]:
    async with scripted_s3() as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def options(server: ScriptedS3) -> S3Options:
    return S3Options("bucket", "root", server.endpoint, connect_seconds=20, read_seconds=60)


@pytest.fixture
async def drive(options: S3Options) -> AsyncIterator[S3Drive]:
    made = S3Drive(options)
    yield made
    await made.aclose()


async def put(drive: S3Drive, data: bytes = BODY) -> None:
    await drive.put("a/b", [data], crc32c(data))


async def failure_of_put(drive: S3Drive, data: bytes = BODY) -> StoreError:
    with pytest.raises(StoreError) as raised:
        await put(drive, data)
    return raised.value


async def test_a_put_is_conditional_and_carries_our_checksum_signed(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [reply(200)]
    await put(drive)

    (sent,) = server.requests
    assert (sent.method, sent.target, sent.body) == ("PUT", "/bucket/root/a/b", BODY)
    assert sent.headers["if-none-match"] == "*"
    assert b64decode(sent.headers["x-amz-checksum-crc32c"]) == crc32c(BODY).to_bytes(4, "big")
    assert "x-amz-checksum-crc32c" in sent.headers["authorization"]
    assert "x-amz-checksum-crc32" not in sent.headers
    assert "x-amz-sdk-checksum-algorithm" not in sent.headers
    assert "transfer-encoding" not in sent.headers
    assert "expect" not in sent.headers


async def test_a_source_is_one_put_whose_size_and_checksum_are_signed_before_its_bytes_are_read(
    server: ScriptedS3, drive: S3Drive
) -> None:
    """And whose bytes are not: what a signature of them would need is known only at their end. A put
    of parts is signed whole, as before."""
    server.replies = [reply(200), reply(200)]
    data = bytes(range(250)) * 10_000
    await drive.put("a/b", Bytes(data), crc32c(data))
    await put(drive)

    streamed, whole = server.requests
    assert (streamed.method, streamed.target) == ("PUT", "/bucket/root/a/b")
    assert streamed.body == data
    assert streamed.headers["if-none-match"] == "*"
    assert streamed.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert b64decode(streamed.headers["x-amz-checksum-crc32c"]) == crc32c(data).to_bytes(4, "big")
    signed = streamed.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    assert "x-amz-checksum-crc32c" in signed.split(";")
    assert streamed.headers["content-length"] == str(len(data))
    assert not {"transfer-encoding", "content-encoding", "expect"} & set(streamed.headers)
    assert whole.headers["x-amz-content-sha256"] == hashlib.sha256(BODY).hexdigest()


async def test_the_last_bytes_of_a_source_that_is_damaged_are_not_sent(
    server: ScriptedS3, drive: S3Drive
) -> None:
    """The server waits for them until the connection ends: it never has a request to answer."""
    data = bytes(3 * MIB)
    with pytest.raises(Corrupt):
        await drive.put("a/b", Bytes(data), crc32c(data) ^ 1)
    assert server.requests == []


async def test_a_refusal_of_a_source_is_told_as_it_is(server: ScriptedS3, drive: S3Drive) -> None:
    server.replies = [refusal(412, "PreconditionFailed"), refusal(503, "SlowDown")]
    data = bytes(2 * MIB)
    for error in (ObjectExists, DriveUnavailable):
        with pytest.raises(error):
            await drive.put("a/b", Bytes(data), crc32c(data))


REGION = "eu-west-1"
ELSEWHERE = refusal(301, "PermanentRedirect").replace(
    b"\r\n", f"\r\nx-amz-bucket-region: {REGION}\r\n".encode(), 1
)


@pytest.mark.parametrize("streamed", [True, False], ids=["source", "parts"])
async def test_a_bucket_in_another_region_is_found_by_the_first_put(
    server: ScriptedS3, drive: S3Drive, streamed: bool
) -> None:
    """The HTTP client followed redirects by itself, and of a source it could not. No other check has
    a store that answers one."""
    server.replies = [ELSEWHERE, reply(200), reply(200)]
    data = bytes(range(250)) * 10_000
    for key in ("a/b", "a/c"):
        await drive.put(key, Bytes(data) if streamed else [data], crc32c(data))

    assert [sent.body for sent in server.requests] == [data] * 3
    signed = [f"/{REGION}/s3/" in sent.headers["authorization"] for sent in server.requests]
    assert signed == [False, True, True]


@pytest.mark.parametrize("streamed", [True, False], ids=["source", "parts"])
async def test_a_redirect_to_nowhere_is_an_answer_and_no_lost_reply(
    server: ScriptedS3, drive: S3Drive, streamed: bool
) -> None:
    """Where the bucket is is asked for once more, and not said either."""
    moved = refusal(307, "TemporaryRedirect").replace(
        b"\r\n", f"\r\nlocation: {server.endpoint}/bucket/other\r\n".encode(), 1
    )
    for answer, wanted in ((moved, DriveUnavailable), (refusal(301, "Moved"), DriveRefused)):
        server.replies = [answer, reply(200)]
        data = bytes(MIB)
        with pytest.raises(wanted):
            await drive.put("a/b", Bytes(data) if streamed else [data], crc32c(data))


@asynccontextmanager
async def eager_store(options: S3Options) -> AsyncIterator[S3Drive]:
    """A store that says it has an object when it has seen its head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(200))
            with contextlib.suppress(ConnectionError):
                await reader.read()
        finally:
            writer.close()

    connections = Connections(serve)
    server = await asyncio.start_server(connections, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    drive = S3Drive(replace(options, endpoint=f"http://127.0.0.1:{port}"))
    try:
        yield drive
    finally:
        await drive.aclose()
        server.close()
        await connections.end()


def a_source_that_stands_still() -> Bytes:
    source = Bytes(bytes(3 * MIB))
    source.held_from = 2 * MIB
    return source


async def test_a_store_that_has_an_object_before_its_bytes_is_not_believed(
    options: S3Options,
) -> None:
    """What is there is looked at by the next attempt. The comparison of sums comes with the last
    bytes, so it says nothing of an answer before them."""
    source = a_source_that_stands_still()
    async with eager_store(options) as drive:
        with pytest.raises(DriveAmbiguous):
            await drive.put("a/b", source, crc32c(source.data))


async def test_without_the_guard_an_object_is_there_whose_bytes_were_never_sent(
    options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "an answer to a put before all its bytes were sent", lambda _whole: None)
    source = a_source_that_stands_still()
    async with eager_store(options) as drive:
        await drive.put("a/b", source, crc32c(source.data))


async def test_a_lost_reply_to_a_source_is_an_unknown_outcome(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [CLOSE]
    data = bytes(2 * MIB)
    with pytest.raises(DriveAmbiguous):
        await drive.put("a/b", Bytes(data), crc32c(data))
    assert len(server.requests) == 1, "it was not sent again unasked"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (refusal(412, "PreconditionFailed"), ObjectExists),
        (refusal(409, "ConditionalRequestConflict"), DriveUnavailable),
        (refusal(409, "OperationAborted"), DriveUnavailable),
        (refusal(503, "SlowDown"), DriveUnavailable),
        (refusal(429, "TooManyRequests"), DriveUnavailable),
        (refusal(400, "RequestTimeout"), DriveUnavailable),
        (refusal(503, "ServiceUnavailable"), DriveAmbiguous),
        (refusal(500, "InternalError"), DriveAmbiguous),
        (reply(502, b"<html>bad gateway</html>"), DriveAmbiguous),
        (reply(503, b"<html>no server behind</html>"), DriveAmbiguous),
        (refusal(200, "InternalError"), DriveAmbiguous),
        (refusal(507, "InsufficientStorage"), DriveFull),
        (refusal(403, "AccessDenied"), DriveRefused),
        (refusal(403, "SignatureDoesNotMatch"), DriveRefused),
        (refusal(404, "NoSuchBucket"), DriveRefused),
        (refusal(404, "NoSuchKey"), DriveRefused),
        (refusal(501, "NotImplemented"), DriveAmbiguous),
        (refusal(400, "BadDigest"), Corrupt),
        (refusal(400, "XAmzContentSHA256Mismatch"), Corrupt),
        (b"no HTTP at all\r\n\r\n", DriveAmbiguous),
        (reply(500, b"<Error><Code>Inter", cut=5), DriveAmbiguous),
        (CLOSE, DriveAmbiguous),
    ],
)
async def test_what_a_failed_put_means(
    server: ScriptedS3, drive: S3Drive, answer: bytes, wanted: type[StoreError]
) -> None:
    server.replies = [answer]
    error = await failure_of_put(drive)

    assert type(error) is wanted
    assert error.outcome is (Outcome.UNKNOWN if wanted is DriveAmbiguous else Outcome.NONE)
    assert len(server.requests) == 1
    assert "root/a/b" not in str(error)


async def test_a_put_on_a_kept_connection_that_breaks_is_not_sent_again(
    server: ScriptedS3, drive: S3Drive
) -> None:
    """The HTTP client would, since it holds PUT to be harmless: the second would hear 412."""
    server.replies = [reply(200), CLOSE, refusal(412, "PreconditionFailed")]
    await put(drive)

    assert type(await failure_of_put(drive)) is DriveAmbiguous
    assert len(server.requests) == 2


async def test_a_put_that_is_never_answered_is_an_unknown_outcome(
    server: ScriptedS3, options: S3Options
) -> None:
    for impatient in (replace(options, read_seconds=0.2), replace(options, call_seconds=0.2)):
        server.replies = [None]
        drive = S3Drive(impatient)
        assert type(await failure_of_put(drive)) is DriveAmbiguous
        await drive.aclose()


async def test_a_server_that_is_not_there_stored_nothing(options: S3Options) -> None:
    # Bound, and nobody listens: a port that is free again is soon somebody else's.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        drive = S3Drive(replace(options, endpoint=f"http://127.0.0.1:{port}"))
        error = await failure_of_put(drive)
        await drive.aclose()

    assert (type(error), error.outcome, error.retryable) == (DriveUnavailable, Outcome.NONE, True)


async def test_a_connection_that_breaks_while_bytes_are_sent_is_an_unknown_outcome(
    options: S3Options,
) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.transport.abort()

    breaking = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = breaking.sockets[0].getsockname()[1]
    drive = S3Drive(replace(options, endpoint=f"http://127.0.0.1:{port}"))
    error = await failure_of_put(drive, bytes(32 * MIB))
    await drive.aclose()
    breaking.close()

    assert type(error) is DriveAmbiguous


async def test_only_a_certificate_that_is_trusted_is_talked_to(
    options: S3Options, tmp_path: Path
) -> None:
    certificate = self_signed(tmp_path)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate)
    async with scripted_s3(secure) as server:
        server.replies = [reply(200)]
        stranger = S3Drive(replace(options, endpoint=server.endpoint))
        assert type(await failure_of_put(stranger)) is DriveRefused
        await stranger.aclose()
        friend = S3Drive(replace(options, endpoint=server.endpoint, ca_path=certificate))
        await put(friend)
        await friend.aclose()

    (sent,) = server.requests
    assert sent.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-crc32c" in sent.headers["authorization"]


async def test_without_credentials_nothing_is_sent(
    server: ScriptedS3, options: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nothing/here")
    drive = S3Drive(options)
    error = await failure_of_put(drive)
    await drive.aclose()

    assert (type(error), error.retryable) == (DriveRefused, False)
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (refusal(404, "NoSuchKey"), ObjectMissing),
        (refusal(404, "NoSuchBucket"), DriveRefused),
        (refusal(403, "AccessDenied"), DriveRefused),
        (refusal(500, "InternalError"), DriveUnavailable),
        (refusal(503, "SlowDown"), DriveUnavailable),
        (refusal(409, "ConditionalRequestConflict"), DriveUnavailable),
        (refusal(412, "PreconditionFailed"), DriveRefused),
        (reply(200, BODY, cut=1), DriveUnavailable),
        (reply(200, BODY, cut=4), DriveUnavailable),
        (CLOSE, DriveUnavailable),
    ],
)
async def test_what_a_failed_read_means(
    server: ScriptedS3, drive: S3Drive, answer: bytes, wanted: type[StoreError]
) -> None:
    # A broken connection may be tried again by a read: it changes nothing.
    server.replies = [answer, answer]
    with pytest.raises(StoreError) as raised:
        await drive.get("a/b")

    assert type(raised.value) is wanted


async def test_a_read_that_stalls_in_its_body_is_given_up(
    server: ScriptedS3, options: S3Options
) -> None:
    head = reply(200, BODY).removesuffix(BODY)
    drive = S3Drive(replace(options, read_seconds=0.2))
    server.replies = [head + b"bo"]
    with pytest.raises(DriveUnavailable):
        await drive.get("a/b")
    await drive.aclose()


async def test_a_store_that_ignores_ranges_is_still_read_right(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [reply(200, b"0123456789")] * 2

    assert await drive.get("a/b", 3, 4) == b"3456"


async def test_a_store_that_sends_another_range_is_refused(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [reply(206, b"0123", content_range="bytes 0-3/10")] * 2
    with pytest.raises(DriveRefused):
        await drive.get("a/b", 3, 4)


async def test_an_absent_bucket_is_not_an_absent_object(server: ScriptedS3, drive: S3Drive) -> None:
    """A HEAD cannot tell; an empty answer for a bucket that is not there would look like loss."""
    nothing = reply(404)
    # Of a refused GET the library is asked once more, for its words.
    no_bucket, no_key = refusal(404, "NoSuchBucket"), refusal(404, "NoSuchKey")
    server.replies = [nothing, no_bucket, no_bucket, nothing, no_key, no_key]
    with pytest.raises(DriveRefused):
        await drive.head("a/b")
    with pytest.raises(ObjectMissing):
        await drive.head("a/b")


@pytest.mark.parametrize("shown", ["", "AAAAAA==-2"])
async def test_a_checksum_that_the_store_does_not_know_is_read(
    server: ScriptedS3, drive: S3Drive, shown: str
) -> None:
    head = reply(200, BODY, x_amz_checksum_crc32c=shown).removesuffix(BODY)
    server.replies = [head, reply(206, BODY, content_range="bytes 0-3/4")]

    assert (await drive.head("a/b", checksum=True)).crc == crc32c(BODY)


async def test_keys_that_could_not_be_deleted_are_named(server: ScriptedS3, drive: S3Drive) -> None:
    errors = [("a/b", "AccessDenied"), ("a/c", "InternalError"), ("a/d", "NoSuchKey")]
    body = "".join(
        f"<Error><Key>root/{key}</Key><Code>{code}</Code></Error>" for key, code in errors
    )
    server.replies = [reply(200, f"<DeleteResult>{body}</DeleteResult>".encode())]
    failures = await drive.delete(["a/b", "a/c", "a/d", "a/e"])

    assert {key: type(error) for key, error in failures.items()} == {
        "a/b": DriveRefused,
        "a/c": DriveUnavailable,
    }


async def test_a_batch_that_fails_as_a_whole_names_its_keys_and_the_next_goes_on(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [refusal(503, "SlowDown"), reply(200, b"<DeleteResult></DeleteResult>")]
    names = [f"a/{number}" for number in range(1500)]

    failures = await drive.delete(names)

    assert list(failures) == names[:1000]
    assert len(server.requests) == 2


CREATED = reply(
    200,
    b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
)
SENT = reply(200, etag='"e"')
DONE = reply(200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ([refusal(503, "SlowDown")], DriveUnavailable),
        ([CREATED, refusal(500, "InternalError"), reply(204)], DriveUnavailable),
        ([CREATED, CLOSE, reply(204)], DriveUnavailable),
        ([CREATED, refusal(400, "BadDigest"), refusal(500, "InternalError")], Corrupt),
        ([CREATED, SENT, SENT, refusal(412, "PreconditionFailed"), reply(204)], ObjectExists),
        ([CREATED, SENT, SENT, refusal(200, "InternalError"), reply(204)], DriveAmbiguous),
        ([CREATED, SENT, SENT, CLOSE, refusal(404, "NoSuchUpload")], DriveAmbiguous),
        ([CREATED, SENT, SENT, refusal(404, "NoSuchUpload"), reply(204)], DriveUnavailable),
    ],
)
async def test_an_upload_in_parts_that_failed_is_aborted(
    server: ScriptedS3, options: S3Options, answers: list[bytes], wanted: type[StoreError]
) -> None:
    drive = S3Drive(replace(options, multipart_bytes=MIB, part_bytes=MIB, part_count_max=1))
    server.replies = list(answers)
    error = await failure_of_put(drive, bytes(2 * MIB))
    await drive.aclose()

    assert type(error) is wanted
    assert server.replies == []
    assert server.requests[-1].method == ("DELETE" if len(answers) > 1 else "POST")


async def test_an_upload_in_parts_is_completed_only_if_absent_with_the_whole_checksum(
    server: ScriptedS3, options: S3Options
) -> None:
    drive = S3Drive(replace(options, multipart_bytes=MIB, part_bytes=MIB, part_count_max=1))
    server.replies = [CREATED, SENT, SENT, DONE]
    await put(drive, bytes(MIB) + BODY)
    await drive.aclose()

    create, first, second, complete = server.requests
    assert create.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert (len(first.body), second.body) == (MIB, BODY)
    assert "x-amz-checksum-crc32c" in second.headers
    assert complete.headers["if-none-match"] == "*"
    assert "x-amz-checksum-crc32c" in complete.headers


@pytest.mark.parametrize("asked", ["STANDARD_IA", None])
async def test_what_is_put_has_the_storage_class_of_the_drive_whole_or_in_parts(
    asked: str | None, server: ScriptedS3, options: S3Options
) -> None:
    drive = S3Drive(
        replace(options, multipart_bytes=MIB, part_bytes=MIB, part_count_max=1, storage_class=asked)
    )
    server.replies = [reply(200), reply(200), CREATED, SENT, SENT, DONE]
    await put(drive)
    await drive.put("a/c", Bytes(BODY), crc32c(BODY))
    await put(drive, bytes(MIB) + BODY)
    await drive.aclose()

    assert server.replies == []
    said = [sent.headers.get("x-amz-storage-class") for sent in server.requests]
    assert said == [asked, asked, asked, None, None, None]


async def test_each_request_that_is_sent_is_counted_as_a_bill_counts_it(
    server: ScriptedS3, options: S3Options
) -> None:
    """What the store was sent, one by one: pages, parts, and whatever was refused or broke off."""
    drive = S3Drive(
        replace(options, multipart_bytes=MIB, part_bytes=MIB, part_count_max=1, listed_by_key=True)
    )
    page = b"<ListBucketResult><IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
    item = b"<Contents><Key>root/a/b</Key><Size>4</Size><LastModified>2026-01-01T00:00:00Z"
    item += b"</LastModified></Contents>"
    more = page % (b"true", item + b"<NextContinuationToken>t</NextContinuationToken>")
    server.replies = [
        *(reply(200), CLOSE, refusal(412, "PreconditionFailed")),
        *(CREATED, SENT, SENT, DONE, CREATED, refusal(403, "AccessDenied"), reply(204)),
        *(reply(206, b"od", content_range="bytes 1-2/4"), refusal(404, "NoSuchKey")),
        *(refusal(404, "NoSuchKey"), reply(200), reply(404), refusal(404, "NoSuchKey")),
        *(refusal(404, "NoSuchKey"), reply(200, more), reply(200, page % (b"false", b""))),
        *(reply(200, b"<DeleteResult></DeleteResult>"), reply(200, date=DATE)),
    ]
    await put(drive)
    for wanted in (DriveAmbiguous, ObjectExists):
        assert type(await failure_of_put(drive)) is wanted
    await put(drive, bytes(MIB) + BODY)
    assert type(await failure_of_put(drive, bytes(2 * MIB))) is DriveRefused
    assert await drive.get("a/b", 1, 2) == b"od"
    with pytest.raises(ObjectMissing):
        await drive.get("a/c")
    await drive.head("a/b")
    with pytest.raises(ObjectMissing):
        await drive.head("a/c")
    assert len([facts async for facts in drive.list()]) == 1
    await drive.delete(["a/b", "a/c"])
    await drive.clock()
    await drive.aclose()

    assert server.replies == []
    seen = Counter(_billed(request) for request in server.requests)
    assert seen == Counter({"put": 9, "get": 5, "list": 2, "head": 3, "delete": 2})
    assert drive.requests == seen


def _billed(request: Request) -> str:
    if request.method == "GET":
        return "list" if "list-type=2" in request.target else "get"
    if request.method == "POST":
        return "delete" if request.target.endswith("?delete") else "put"
    return {"PUT": "put", "HEAD": "head", "DELETE": "delete"}[request.method]


async def test_a_get_that_reaches_nobody_is_counted_once_and_not_twice(options: S3Options) -> None:
    drive = S3Drive(replace(options, endpoint="http://127.0.0.1:9"))
    with pytest.raises(DriveUnavailable):
        await drive.get("a/b")
    await drive.aclose()
    # The library's own is counted when it is sent, before anybody knows that nobody hears it.
    assert drive.requests == {"get": 1}


async def test_no_more_parts_of_an_object_are_under_way_than_allowed(
    server: ScriptedS3, options: S3Options
) -> None:
    drive = S3Drive(replace(options, multipart_bytes=MIB, part_bytes=MIB, part_count_max=2))
    server.paired = "PUT"
    server.replies = [CREATED, *[SENT] * 6, DONE]
    await put(drive, bytes(6 * MIB))
    await drive.aclose()

    assert server.under_way_max == 2


async def test_parts_of_all_objects_share_the_memory_of_those_that_are_under_way(
    options: S3Options,
) -> None:
    """It was bounded for each object; the checks put one at a time. Five parts are in memory: four
    that are under way, and one while it is put together."""
    options = replace(options, part_bytes=MIB, part_count_max=4)
    client, room = SlowParts(), asyncio.Semaphore(options.part_count_max)
    bodies = [Bytes(bytes(9 * MIB)) for _ in range(3)]
    crc = crc32c(bodies[0].data)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await asyncio.gather(
            *(put_in_parts(client, {}, body, crc, options, room) for body in bodies)
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert client.under_way_max == 4
    assert most - before < 6 * MIB
    assert client.completed == 3


async def test_no_more_calls_are_under_way_than_allowed(
    server: ScriptedS3, options: S3Options
) -> None:
    drive = S3Drive(replace(options, connection_count_max=2))
    server.paired = "GET"
    server.replies = [reply(200, BODY)] * 8
    got = await asyncio.gather(*(drive.get("a/b") for _ in range(8)))
    await drive.aclose()

    assert got == [BODY] * 8
    assert server.under_way_max == 2


async def test_the_loop_takes_its_own_object_behind_a_lost_reply_for_success(
    server: ScriptedS3, drive: S3Drive
) -> None:
    whole = reply(206, BODY, content_range="bytes 0-3/4")
    server.replies = [
        CLOSE,
        refusal(503, "SlowDown"),
        refusal(412, "PreconditionFailed"),
        reply(200, BODY).removesuffix(BODY),
        whole,
    ]
    await put_object(drive, "a/b", [BODY], crc32c(BODY), deadline_seconds=30)

    assert [request.method for request in server.requests] == ["PUT", "PUT", "PUT", "HEAD", "GET"]


async def test_the_client_is_opened_once_also_by_calls_at_the_same_time(
    server: ScriptedS3, drive: S3Drive
) -> None:
    server.replies = [reply(200)] * 8
    await asyncio.gather(drive.start(), *(put(drive) for _ in range(8)))

    assert len(server.requests) == 8


class SlowParts:
    """A client whose parts take some turns of the loop."""

    def __init__(self) -> None:
        self.under_way = self.under_way_max = self.completed = 0

    async def create_multipart_upload(self, **_: object) -> dict[str, str]:
        return {"UploadId": "1"}

    async def upload_part(self, **_: object) -> dict[str, str]:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        for _turn in range(50):
            await asyncio.sleep(0)
        self.under_way -= 1
        return {"ETag": "e"}

    async def complete_multipart_upload(self, **_: object) -> None:
        self.completed += 1


class LosesParts:
    """A client whose parts fail: at once, or at the very moment at which they are cancelled."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.sending = asyncio.Event()
        self.aborted = 0

    async def create_multipart_upload(self, **_: object) -> dict[str, str]:
        return {"UploadId": "1"}

    async def upload_part(self, **_: object) -> None:
        self.sending.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0 if self.at_once else 3_600)
        raise ConnectionResetError

    async def abort_multipart_upload(self, **_: object) -> None:
        self.aborted += 1


async def test_a_put_in_parts_that_is_cancelled_ends_though_a_part_fails_at_that_moment(
    options: S3Options,
) -> None:
    """A TaskGroup tells of what failed in it and not of its own cancellation: a put whose deadline
    was over was tried again, and that deadline never came a second time."""
    client = LosesParts(at_once=False)
    large = memoryview(bytes(2 * MIB))
    options = replace(options, part_bytes=MIB)
    putting = asyncio.create_task(
        put_in_parts(client, {}, [large], 0, options, asyncio.Semaphore(4))
    )
    await client.sending.wait()
    putting.cancel()
    await asyncio.wait({putting})

    assert putting.cancelled()
    assert client.aborted == 1


async def test_a_put_in_parts_that_fails_leaves_no_mark_of_a_cancellation(
    options: S3Options,
) -> None:
    """A TaskGroup of Python 3.11 left one. The next deadline, of `put_object` around it, was then no
    TimeoutError but a cancellation: the upload of a fragment ended without a word, and its stream
    waited for it until a restart. Each put had been tried once here, without a deadline around it."""
    client = LosesParts(at_once=True)
    large = memoryview(bytes(2 * MIB))
    options = replace(options, part_bytes=MIB)
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.raises(DriveUnavailable):
            await put_in_parts(client, {}, [large], 0, options, asyncio.Semaphore(4))

    assert task.cancelling() == 0
    assert client.aborted == 3
