"""Readers that are overtaken by a trim, and URLs that ran out: scenarios M25, M26, T13."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest
from support.contract import ARROW, Stream, new_stream, problem_of
from support.s3 import BUCKET, CREDENTIALS, S3Server
from support.server import AllInOne
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
    # No bytes are kept, so that a reader who is overtaken has nothing but what it was promised.
    "BOTTOMLESS_READER_CACHE_BYTES": "1",
}
LARGE = {"fragment": {"target_bytes": 8 * 1024 * 1024, "max_age_ms": 100}}
VALUE = 1024 * 1024 - 64
COUNT = 12


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("slow") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def stream(running: AllInOne) -> Iterator[Stream]:
    """Large fragments, of a mebibyte a record, and one more that stays."""
    with running.client() as client:
        made = new_stream(client, LARGE)
        raw = {"content-type": "application/octet-stream"}
        for number in range(COUNT):
            body = bytes([number]) * VALUE
            client.post(made.records, content=body, headers=raw).raise_for_status()
        made.wait_uploaded()
        made.append("the last one")
        made.wait_uploaded()
        yield made


@contextmanager
def begun(running: AllInOne, target: str, accept: str) -> Iterator[socket.socket]:
    """A client that asks, and takes one byte of the answer."""
    where = urlsplit(running.url)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taken.settimeout(30)
        taken.connect((where.hostname, where.port))
        request = (
            f"GET {target} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        )
        taken.sendall(request.encode())
        assert taken.recv(1, socket.MSG_PEEK) == b"H"
        yield taken


def rest_of(taken: socket.socket) -> tuple[int, bytes]:
    """The length that was promised, and what came of it."""
    data = b""
    while piece := taken.recv(1 << 20):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    (length,) = (
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    return length, body


def overtake(running: AllInOne, stream: Stream) -> None:
    """Trim all but the last fragment, and return when the objects are gone."""
    stream.client.post(f"{stream.path}/trim", json={"before_offset": COUNT}).raise_for_status()
    stream_id = stream.client.get(stream.path).json()["stream_id"]
    until(
        lambda: len(list(running.objects.glob(f"**/{stream_id}/data/*.fragment"))) == 1,
        what="the trimmed fragments deleted",
    )


def test_a_page_that_is_under_way_is_served_whole_and_the_next_one_is_gone(
    running: AllInOne, stream: Stream
) -> None:
    """M25."""
    target = f"{stream.records}?offset=0&limit=4&max_bytes=16777216&on_out_of_range=error"
    with begun(running, target, ARROW) as taken:
        overtake(running, stream)
        length, body = rest_of(taken)
    assert len(body) == length

    table = pa.ipc.open_stream(body).read_all()
    assert table["offset"].to_pylist() == [0, 1, 2, 3]
    assert table["value"].to_pylist() == [bytes([n]) * VALUE for n in range(4)]
    gone = problem_of(stream.get(4, on_out_of_range="error"), 410, "offset-trimmed")
    assert gone["first_offset"] == COUNT


def test_a_slow_download_of_a_fragment_brings_its_bytes_or_ends_short(
    running: AllInOne, stream: Stream
) -> None:
    """M26."""
    oldest = stream.client.get(f"{stream.path}/fragments").json()["fragments"][0]
    whole = stream.client.get(oldest["href"]).content
    with begun(running, oldest["href"], "*/*") as taken:
        overtake(running, stream)
        length, body = rest_of(taken)

    # A client sees from the length that the answer broke off; what it got is right.
    assert length == len(whole) == oldest["size_bytes"]
    assert body == whole[: len(body)]
    assert stream.client.get(oldest["href"]).status_code in (404, 410)


def test_a_presigned_url_is_good_for_its_object_to_be_read_and_for_a_while(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """T13."""
    settings = {
        **CREDENTIALS,
        "BOTTOMLESS_STORE_URL": seaweed.store_url("t13"),
        "BOTTOMLESS_READER_URL_SECONDS": "2",
    }
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        made = new_stream(client, {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}})
        made.append("one")
        made.wait_uploaded()
        made.append("two")
        made.wait_uploaded()
        first: str = ""

        def opens_its_object_and_nothing_else() -> bool:
            """Whether all of that was tried before it ran out."""
            nonlocal first
            listed = client.get(f"{made.path}/fragments", params={"urls": "presigned"}).json()
            first, second = (fragment["url"] for fragment in listed["fragments"])
            path, _, signature = first.partition("?")
            assert f"/{BUCKET}/" in path
            before = httpx.get(first).status_code
            others = [
                httpx.put(first, content=b"other bytes").status_code,
                httpx.delete(first).status_code,
                httpx.get(f"{second.partition('?')[0]}?{signature}").status_code,
            ]
            assert others == [403] * 3
            return before == httpx.get(first).status_code == 200

        until(opens_its_object_and_nothing_else)
        until(lambda: httpx.get(first).status_code == 403, what="the url run out")
