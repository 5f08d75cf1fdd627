"""Reading objects of S3 from a worker, with credentials and with URLs, when the store fails.

Both ways meet the same answers, by a server that sends what a test wrote down.
"""

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.s3 import CREDENTIALS
from support.scripted_s3 import CLOSE, ScriptedS3, refusal, reply, scripted_s3

from bottomless.drives.base import DriveRefused, DriveUnavailable, ObjectMissing
from bottomless.errors import Code, NotFound, OffsetGone, StoreError, WrongOffset
from bottomless.model.names import StreamId, StreamName
from bottomless.spark import s3_objects, url_objects
from bottomless.spark.plan import Stored
from bottomless.spark.s3_objects import S3Objects
from bottomless.spark.service import Source
from bottomless.spark.store import ATTEMPT_COUNT_MAX, Counts, Objects, StorePlace
from bottomless.spark.url_objects import UrlObjects

STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
FRAGMENT = Stored("0-a", "data/0.fragment", 0, 10, 1000, 900)
SIGNATURE = "X-Amz-Signature=5ec2e7"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedS3]:
    async with scripted_s3() as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def counts() -> Counts:
    return Counts()


def a_page(server: ScriptedS3, number: int = 1, **members: Any) -> bytes:
    """What the reader answers for URLs."""
    item = {"id": FRAGMENT.fragment_id, "url": f"{server.endpoint}/url-{number}?{SIGNATURE}"}
    gap = {"gap": "damaged", "first_offset": 10, "last_offset": 11}
    page = {"stream_id": STREAM_ID, "fragments": [item, gap], **members}
    return reply(200, json.dumps(page).encode())


def part(body: bytes, start: int, *, cut: int = 0) -> bytes:
    return reply(206, body, cut=cut, content_range=f"bytes {start}-{start + len(body) - 1}/1000")


def direct(server: ScriptedS3, counts: Counts) -> S3Objects:
    return S3Objects(StorePlace("s3", "bucket/root", server.endpoint, None, True), counts)


def presigned(server: ScriptedS3, counts: Counts) -> UrlObjects:
    source = Source(server.endpoint, StreamName("orders"), STREAM_ID)
    return UrlObjects(source, 20, None, counts)


@pytest.fixture(params=["direct", "presigned"])
async def objects(
    request: pytest.FixtureRequest, server: ScriptedS3, counts: Counts
) -> AsyncIterator[Objects]:
    """One way or the other; for URLs the reader has answered already."""
    if request.param == "direct":
        made = direct(server, counts)
        yield made
        s3_objects.client_of(made.place).close()
        s3_objects.client_of.cache_clear()
        return
    by_url = presigned(server, counts)
    server.replies.append(a_page(server))
    await asyncio.to_thread(by_url.ask_url, FRAGMENT)
    server.requests.clear()
    yield by_url
    url_objects.pool_of(None).clear()


async def read(objects: Objects, start: int = 100, size: int = 4) -> bytes:
    return await asyncio.to_thread(objects.read, FRAGMENT, start, size)


async def failure(objects: Objects) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await read(objects)
    assert SIGNATURE not in "".join(traceback.format_exception(caught.value))
    return caught.value


async def test_a_range_is_asked_for_and_counted(
    server: ScriptedS3, objects: Objects, counts: Counts
) -> None:
    server.replies += [part(b"abcd", 100), part(b"efg", 104)]
    assert await read(objects) == b"abcd"
    assert await read(objects, 104, 3) == b"efg"

    assert [request.headers["range"] for request in server.requests] == [
        "bytes=100-103",
        "bytes=104-106",
    ]
    assert (counts.object_reads, counts.object_bytes) == (2, 7)


@pytest.mark.parametrize(
    "bad",
    [
        refusal(503, "SlowDown"),
        refusal(500, "InternalError"),
        refusal(429, "TooManyRequests"),
        part(b"abcd", 100, cut=2),
        CLOSE,
    ],
)
async def test_what_may_pass_is_tried_again(
    server: ScriptedS3, objects: Objects, bad: bytes
) -> None:
    server.replies += [bad, part(b"abcd", 100)]
    assert await read(objects) == b"abcd"


async def test_attempts_have_an_end(server: ScriptedS3, objects: Objects) -> None:
    server.replies += [refusal(503, "SlowDown")] * ATTEMPT_COUNT_MAX
    error = await failure(objects)
    assert isinstance(error, DriveUnavailable)
    assert error.retryable
    assert len(server.requests) == ATTEMPT_COUNT_MAX


async def test_an_absent_object_is_missing_at_once(server: ScriptedS3, objects: Objects) -> None:
    server.replies += [refusal(404, "NoSuchKey")]
    error = await failure(objects)
    assert isinstance(error, ObjectMissing)
    assert error.code is Code.DATA_MISSING


async def test_an_object_that_ends_before_is_short(server: ScriptedS3, objects: Objects) -> None:
    server.replies += [refusal(416, "InvalidRange"), part(b"ab", 100)]
    assert await read(objects) == b""
    assert await read(objects) == b"ab"


@pytest.mark.parametrize(
    "other",
    [
        reply(200, b"x" * 1000),
        part(b"abcd", 0),
        part(b"abcdefgh", 100),
    ],
)
async def test_a_store_that_sends_something_else_is_refused(
    server: ScriptedS3, objects: Objects, counts: Counts, other: bytes
) -> None:
    server.replies += [other, a_page(server), other]
    assert isinstance(await failure(objects), DriveRefused)
    assert counts.object_reads == 0


async def test_a_refused_worker_hears_what_to_do_and_looks_for_credentials_again(
    server: ScriptedS3, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = direct(server, counts)
    server.replies += [refusal(403, "InvalidAccessKeyId"), part(b"abcd", 100)]
    error = await failure(objects)
    assert isinstance(error, DriveRefused)
    assert "mode=presigned and mode=reader need no credentials" in error.message
    assert error.facts["store_code"] == "InvalidAccessKeyId"

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert await read(objects) == b"abcd"
    assert "Credential=another/" in server.requests[1].headers["authorization"]
    s3_objects.client_of(objects.place).close()
    s3_objects.client_of.cache_clear()


async def test_a_worker_without_credentials_asks_nobody_and_says_so(
    server: ScriptedS3, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    error = await failure(direct(server, counts))
    assert isinstance(error, DriveRefused)
    assert "mode=presigned and mode=reader need no credentials" in error.message
    assert error.facts == {"reason": "NoCredentialsError"}
    assert server.requests == []


async def test_certificates_that_are_not_there_are_named(server: ScriptedS3) -> None:
    place = StorePlace("s3", "bucket", server.endpoint, None, True, "/no/such.pem")
    source = Source(server.endpoint, StreamName("orders"), STREAM_ID)
    made: list[Callable[[], Objects]] = [
        lambda: S3Objects(place, Counts()),
        lambda: UrlObjects(source, 20, "/no/such.pem", Counts()),
    ]
    server.replies += [a_page(server)]
    for objects in made:
        with pytest.raises(DriveRefused, match=r"s3\.ca"):
            await read(objects())


async def test_a_url_that_ran_out_is_asked_for_again(server: ScriptedS3, counts: Counts) -> None:
    objects = presigned(server, counts)
    server.replies += [a_page(server, 1), part(b"abcd", 100)]
    assert await read(objects) == b"abcd"
    server.replies += [refusal(403, "AccessDenied"), a_page(server, 2), part(b"abcd", 100)]
    assert await read(objects) == b"abcd"

    targets = [request.target for request in server.requests]
    assert targets[0] == (
        "/v1/streams/orders/fragments?from_offset=9&to_offset=20&limit=64&urls=presigned"
    )
    assert [target.partition("?")[0] for target in targets[1:]] == [
        "/url-1",
        "/url-1",
        "/v1/streams/orders/fragments",
        "/url-2",
    ]
    assert (counts.url_requests, counts.presigned_reads, counts.object_reads) == (2, 2, 2)


async def test_a_fresh_url_that_is_refused_is_refused(server: ScriptedS3, counts: Counts) -> None:
    objects = presigned(server, counts)
    server.replies += [a_page(server), refusal(403, "AccessDenied")]
    assert isinstance(await failure(objects), DriveRefused)
    assert counts.url_requests == 1


@pytest.mark.parametrize(
    ("members", "kind"),
    [({"fragments": []}, NotFound), ({"stream_id": "another"}, WrongOffset)],
)
async def test_a_fragment_that_the_reader_does_not_name_has_no_url(
    server: ScriptedS3, counts: Counts, members: dict[str, Any], kind: type[StoreError]
) -> None:
    server.replies += [a_page(server, **members)]
    assert isinstance(await failure(presigned(server, counts)), kind)


async def test_what_the_reader_says_instead_of_urls_is_what_the_job_hears(
    server: ScriptedS3, counts: Counts
) -> None:
    problem = {"code": "offset-trimmed", "detail": "trimmed", "first_offset": 30}
    server.replies += [reply(410, json.dumps(problem).encode())]
    error = await failure(presigned(server, counts))
    assert isinstance(error, OffsetGone)
    assert error.facts == {"first_offset": 30}


async def test_connections_are_kept(server: ScriptedS3, objects: Objects) -> None:
    server.replies += [part(b"abcd", 100)] * 5
    for _ in range(5):
        await read(objects)
    # For URLs one more: the reader's own.
    assert server.connection_count <= 2
