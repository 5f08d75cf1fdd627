"""Bodies that are too large, unreadable, compressed or of another type: scenarios A8, A13 to A19."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pyarrow as pa
import pytest
from support.arrow import send_arrow
from support.contract import (
    ARROW,
    JSON,
    Answer,
    Stream,
    connect,
    problem_of,
    received,
)
from support.served import Served

MIB = 1024 * 1024
JSON_BODY_LIMIT = 8 * MIB
BINARY_BODY_LIMIT = 16 * MIB
FRAMES = "application/vnd.bottomless.batches"


def send_json(stream: Stream, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return stream.client.post(stream.records, content=body, headers={"content-type": JSON, **named})


def chunked(body: bytes, sizes: int = 65_536) -> Iterator[bytes]:
    for start in range(0, len(body), sizes):
        yield body[start : start + sizes]


def too_large(
    server: Served, path: str, body: bytes, *, with_length: bool, media_type: str
) -> Answer:
    """Send as much as the server takes; the answer may come before the end."""
    connection = connect(server)
    connection.putrequest("POST", path)
    connection.putheader("Content-Type", media_type)
    length = ("Content-Length", str(len(body)))
    connection.putheader(*(length if with_length else ("Transfer-Encoding", "chunked")))
    connection.endheaders()
    try:
        for part in chunked(body):
            connection.send(part if with_length else b"%x\r\n%b\r\n" % (len(part), part))
        connection.send(b"" if with_length else b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    answer = received(connection.getresponse())
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("media_type", "limit"),
    [
        (JSON, JSON_BODY_LIMIT),
        (ARROW, BINARY_BODY_LIMIT),
        ("application/octet-stream", BINARY_BODY_LIMIT),
    ],
)
def test_a_body_over_the_limit_is_the_same_problem_however_it_is_sent(
    running: Served, stream: Stream, media_type: str, limit: int
) -> None:
    """A8."""
    body = b'{"records": [{"value": "' + b"x" * (limit + MIB)
    problems = []
    for with_length in (True, False):
        answer = too_large(
            running, stream.records, body, with_length=with_length, media_type=media_type
        )
        problem = problem_of(answer, 413, answer.json()["code"])
        assert problem["code"] in {"body-too-large", "record-too-large"}
        problems.append({**problem, "request_id": None})
    assert problems[0] == problems[1]
    assert problems[0]["outcome"] == "none"
    assert stream.next_offset() == 0


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held since it was last asked to forget the most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kibibytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kibibytes * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def test_bodies_over_the_limit_leave_memory_as_it_was(running: Served, stream: Stream) -> None:
    """A8: more than 300 MB are sent, at most three bodies at a time."""
    body = b'{"records": [{"value": "' + b"x" * (JSON_BODY_LIMIT + MIB)

    def send(number: int) -> None:
        answer = too_large(
            running, stream.records, body, with_length=number % 2 > 0, media_type=JSON
        )
        problem_of(answer, 413, "body-too-large")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(send, range(6)))
        forget_peak(running.pid)
        before = peak_bytes(running.pid)
        list(pool.map(send, range(40)))
    assert peak_bytes(running.pid) - before < 3 * 2 * JSON_BODY_LIMIT


def test_a_body_without_an_end_is_answered_and_kept_nowhere(
    running: Served, stream: Stream
) -> None:
    """A8: whether the connection is cut or the rest passed over."""
    where = urlsplit(running.url)
    part = b"%x\r\n%b\r\n" % (65_536, b"x" * 65_536)
    head = (
        f"POST {stream.records} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    forget_peak(running.pid)
    before = peak_bytes(running.pid)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=30) as sending:
        sending.sendall(head.encode())
        # An answer may be lost to whoever goes on sending after it.
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(200 * MIB // 65_536):
                sending.sendall(part)
            assert sending.recv(12) == b"HTTP/1.1 413"
    assert peak_bytes(running.pid) - before < 3 * JSON_BODY_LIMIT
    assert stream.next_offset() == 0


@pytest.mark.parametrize("with_length", [True, False])
def test_a_connection_is_usable_after_a_refused_body_or_closed(
    running: Served, stream: Stream, *, with_length: bool
) -> None:
    """A8: cleanly, so that nobody takes the rest of a body for the next answer."""
    body = b'{"records": [{"value": "' + b"x" * (JSON_BODY_LIMIT + 65_536)
    connection = connect(running)
    headers = {"Content-Type": JSON}
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.request(
            "POST",
            stream.records,
            body if with_length else chunked(body),
            headers,
            encode_chunked=not with_length,
        )
    answer = received(connection.getresponse())
    problem_of(answer, 413, "body-too-large")
    if answer.headers.get("connection", "").lower() != "close":
        connection.request("GET", f"{stream.path}/offsets")
        assert received(connection.getresponse()).json()["next_offset"] == 0
    else:
        assert connection.sock is None or connection.sock.recv(1) == b""
    connection.close()
    assert stream.append("the next one")["first_offset"] == 0


def test_a_body_that_names_too_large_a_length_is_refused_before_it_is_sent(
    running: Served, stream: Stream
) -> None:
    """A8: nobody has to send 10 GB to hear that it is too much."""
    connection = connect(running)
    connection.putrequest("POST", stream.records)
    connection.putheader("Content-Type", JSON)
    connection.putheader("Content-Length", str(10_000 * MIB))
    connection.endheaders()
    problem_of(received(connection.getresponse()), 413, "body-too-large")
    connection.close()
    assert stream.next_offset() == 0


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
def test_a_compressed_body_is_decoded_or_refused(stream: Stream, encoding: str) -> None:
    """A13."""
    plain = b'{"records": [{"value": "squeezed"}]}'
    packed = {
        "gzip": gzip.compress(plain),
        "identity, gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "br": pa.compress(plain, codec="brotli", asbytes=True),
        "zstd": pa.compress(plain, codec="zstd", asbytes=True),
    }
    answer = send_json(stream, packed[encoding], content_encoding=encoding)
    if answer.status_code == 200:
        assert [record["value"] for record in stream.page()["records"]] == ["squeezed"]
    else:
        problem_of(answer, 415, "unsupported-media-type")
        assert stream.next_offset() == 0


def test_a_compressed_raw_record_is_decoded_or_refused(stream: Stream) -> None:
    """A13: raw bytes most of all, since nothing would notice."""
    answer = stream.client.post(
        stream.records,
        content=gzip.compress(b"squeezed"),
        headers={"content-type": "application/octet-stream", "content-encoding": "gzip"},
    )
    if answer.status_code == 200:
        assert [record["value"] for record in stream.page()["records"]] == ["squeezed"]
    else:
        problem_of(answer, 415, "unsupported-media-type")
        assert stream.next_offset() == 0


def test_a_compression_bomb_is_refused(stream: Stream) -> None:
    """A13: within the limit as it travels, far beyond it when unpacked."""
    bomb = pa.compress(b"\x00" * (100 * MIB), codec="zstd", asbytes=True)
    answer = send_arrow(stream, bomb, content_encoding="zstd")
    assert problem_of(answer, 413, "decompressed-too-large")["outcome"] == "none"
    assert stream.next_offset() == 0


@pytest.mark.parametrize("media_type", ["text/plain", "application/json; charset=utf-16", None])
def test_a_body_of_another_type_is_refused_with_the_types_there_are(
    running: Served, stream: Stream, media_type: str | None
) -> None:
    """A14."""
    connection = connect(running)
    headers = {"Content-Type": media_type} if media_type else {}
    connection.request("POST", stream.records, b'{"records": [{"value": "a"}]}', headers)
    answer = received(connection.getresponse())
    connection.close()
    problem_of(answer, 415, "unsupported-media-type")
    offered = {part.strip() for part in answer.headers["accept-post"].split(",")}
    assert offered >= {JSON, ARROW, FRAMES, "application/octet-stream"}
    assert stream.next_offset() == 0


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_json_however_its_type_is_written(stream: Stream, media_type: str) -> None:
    """A14, from the other side."""
    answer = send_json(stream, b'{"records": [{"value": "a"}]}', content_type=media_type)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_are_none_are_unreadable(stream: Stream, number: bytes) -> None:
    """A15."""
    for body in (b'{"records": [{"value": %b}]}', b'{"records": [{"json": {"a": [%b]}}]}'):
        answer = send_json(stream, body % number)
        problem_of(answer, 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "number", ["9007199254740993", "-9223372036854775808", "0.1", "1e300", "1.0"]
)
def test_a_number_is_what_was_sent(stream: Stream, number: str) -> None:
    """A15, from the other side: nothing is rounded."""
    assert send_json(stream, b'{"records": [{"json": %b}]}' % number.encode()).status_code == 200
    found = stream.get().text
    assert json.loads(found)["records"][0]["json"] == json.loads(number)
    assert isinstance(json.loads(found)["records"][0]["json"], type(json.loads(number)))


@pytest.mark.parametrize(
    "record",
    [
        b'{"value": "\\ud800"}',
        b'{"value": "a\\udfff"}',
        b'{"json": "\\ud800"}',
        b'{"json": {"\\ud800": 1}}',
        b'{"value": "a", "key": "\\ud800"}',
        b'{"value": "a", "filter_value": "\\ud800"}',
        b'{"value": "a", "headers": {"h": "\\ud800"}}',
        b'{"value": "a", "headers": {"\\ud800": "v"}}',
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(stream: Stream, record: bytes) -> None:
    """A16."""
    answer = send_json(stream, b'{"records": [{"value": "a"}, %b]}' % record)
    problem_of(answer, 422, "validation-failed")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "body", [b'\xef\xbb\xbf{"records": [{"value": "a"}]}', b'{"records": [{"value": "\xc3("}]}']
)
def test_text_that_is_not_utf8_is_unreadable(stream: Stream, body: bytes) -> None:
    """A17: never replaced by U+FFFD."""
    problem_of(send_json(stream, body), 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"records": [], "records": [{"value": "a"}]}',
        b'{"records": [{"value": "a", "value": "b"}]}',
        b'{"records": [{"json": {"a": {"b": 1, "b": 2}}}]}',
        b'{"records": [{"json": {"a": 1, "\\u0061": 2}}]}',
    ],
)
def test_a_key_given_twice_is_unreadable_at_any_depth(stream: Stream, body: bytes) -> None:
    """A18."""
    problem_of(send_json(stream, body), 400, "malformed-json")
    assert stream.next_offset() == 0


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_document_is_refused_quickly(
    running: Served, stream: Stream, opening: bytes, closing: bytes
) -> None:
    """A19: in the processor's time of the server, since the machine may be busy otherwise."""
    inside = opening * 100_000 + b"1" + closing * 100_000
    body = b'{"records": [{"json": %b}]}' % inside
    server, taken = psutil.Process(running.pid), []
    for _ in range(5):
        before = sum(server.cpu_times()[:2])
        answer = send_json(stream, body)
        taken.append(sum(server.cpu_times()[:2]) - before)
        assert answer.status_code in {400, 422}
        assert problem_of(answer, answer.status_code, answer.json()["code"])["outcome"] == "none"
    assert min(taken) < 0.1
    assert stream.next_offset() == 0


def expecting(running: Served, stream: Stream, media_type: str, size: int) -> socket.socket:
    where = urlsplit(running.url)
    connection = socket.create_connection((where.hostname or "", where.port or 0), timeout=240)
    head = (
        f"POST {stream.records} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n"
        f"Content-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def test_who_waits_for_100_continue_is_told_to_go_on(running: Served, stream: Stream) -> None:
    body = b'{"records": [{"value": "a"}]}'
    with expecting(running, stream, JSON, len(body)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        assert connection.recv(4000).startswith(b"HTTP/1.1 200 ")
    assert stream.next_offset() == 1


@pytest.mark.parametrize(
    ("media_type", "size", "status"),
    [("text/plain", 100, b"415"), (JSON, JSON_BODY_LIMIT + 1, b"413")],
)
def test_who_waits_for_100_continue_in_vain_is_answered_and_cut_off(
    running: Served, stream: Stream, media_type: str, size: int, status: bytes
) -> None:
    """Nobody can know whether the body still comes, so the connection ends."""
    with expecting(running, stream, media_type, size) as connection:
        received = b""
        while part := connection.recv(65_536):
            received += part
    assert received.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in received
    assert stream.next_offset() == 0
