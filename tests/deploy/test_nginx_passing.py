"""What nginx does to a request on its way: nothing, but for errors in our shape where it must answer."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.nginx import UPSTREAMS, running_nginx
from support.server import AllInOne

from bottomless.errors import Code
from bottomless.model.limits import BINARY_BODY_SIZE_MAX, URL_SIZE_MAX
from deploy.ends import accepted, answer_on, connected, echoing, problem_of, receive_until

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[socket.socket, str]]:
    """A service that the test plays itself, byte by byte, and the url of nginx before it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        directory = tmp_path_factory.mktemp("nginx")
        with running_nginx(directory, dict.fromkeys(UPSTREAMS, url)) as proxy:
            yield listening, proxy


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"nonsense\r\n\r\n", Code.BAD_HEADER),
        (b"GET /v1/../.. HTTP/1.1\r\nHost: x\r\n\r\n", Code.BAD_HEADER),
        (b"GET /v1/%00 HTTP/1.1\r\nHost: x\r\n\r\n", Code.BAD_HEADER),
        (b"POST /v1/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\n", Code.BAD_HEADER),
        (b"GET /v1/streams HTTP/7.7\r\nHost: x\r\n\r\n", Code.BAD_HEADER),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", Code.URI_TOO_LONG),
        (b"GET / HTTP/1.1\r\nLong: " + b"x" * 20_000 + b"\r\n\r\n", Code.HEADERS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n" + b"Many: %s\r\n" % (b"x" * 8_000) * 9, Code.HEADERS_TOO_LARGE),
        (
            b"POST /v1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n",
            Code.BODY_TOO_LARGE,
        ),
        (b"TRACE /v1/streams HTTP/1.1\r\nHost: x\r\n\r\n", Code.METHOD_NOT_ALLOWED),
    ],
    ids=lambda value: None if isinstance(value, Code) else value[:24].decode(),
)
def test_what_nginx_refuses_by_itself_is_a_problem_too(
    service: tuple[socket.socket, str], head: bytes, code: Code
) -> None:
    with connected(service[1]) as client:
        client.sendall(head)
        answer = answer_on(client)
        assert problem_of(answer, code)["outcome"] == "none"
        assert "allow" not in answer.headers


def test_a_long_answer_is_passed_on_piece_by_piece(service: tuple[socket.socket, str]) -> None:
    listening, url = service
    with connected(url) as client:
        client.sendall(
            b"GET /v1/streams/orders/records HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        with accepted(listening) as asked:
            receive_until(asked, b"\r\n\r\n")
            asked.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n3\r\n:\n\n\r\n"
            )
            receive_until(client, b":\n\n")
            asked.sendall(b"9\r\ndata: 1\n\n\r\n")
            receive_until(client, b"data: 1\n\n")
            # The client leaves, and the service hears of it.
            client.close()
            assert asked.recv(1) == b""


def test_a_long_body_is_passed_on_piece_by_piece(service: tuple[socket.socket, str]) -> None:
    listening, url = service
    with connected(url) as client:
        client.sendall(
            b"POST /v1/streams/orders/records HTTP/1.1\r\nHost: x\r\n"
            b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
        )
        with accepted(listening) as asked:
            receive_until(asked, b"first")
            client.sendall(b"4\r\nlast\r\n0\r\n\r\n")
            receive_until(asked, b"last")
            asked.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            assert answer_on(client).json() == {}


def test_headers_and_an_encoded_answer_pass_as_they_are(
    service: tuple[socket.socket, str],
) -> None:
    listening, url = service
    with connected(url) as client:
        client.sendall(
            b"GET /v1/streams/orders/fragments/f HTTP/1.1\r\nHost: bottomless.example:80\r\n"
            b'Accept-Encoding: gzip\r\nRange: bytes=0-3\r\nIf-None-Match: "e"\r\n\r\n'
        )
        with accepted(listening) as asked:
            head = receive_until(asked, b"\r\n\r\n").lower()
            for line in (
                b"host: bottomless.example:80\r\n",
                b"accept-encoding: gzip\r\n",
                b"range: bytes=0-3\r\n",
                b'if-none-match: "e"\r\n',
            ):
                assert line in head
            assert b"connection:" not in head
            asked.sendall(
                b'HTTP/1.1 206 Partial Content\r\netag: "e"\r\ncontent-length: 4\r\n'
                b"content-range: bytes 0-3/9\r\nrequest-id: theirs\r\n\r\nABCD"
            )
            answer = answer_on(client)
    assert (answer.status_code, answer.content) == (206, b"ABCD")
    assert answer.headers["etag"] == '"e"'
    assert answer.headers.get_list("request-id") == ["theirs"]


def _hung_up_on(listening: socket.socket, client: socket.socket, method: str) -> None:
    """Send two requests on one connection; the service answers the first one and then hangs up."""
    request = (
        f"{method} /v1/streams/orders/records HTTP/1.1\r\nHost: x\r\ncontent-length: 2\r\n\r\n{{}}"
    )
    client.sendall(request.encode())
    with accepted(listening) as asked:
        receive_until(asked, b"{}")
        asked.sendall(ANSWER)
        assert answer_on(client).status_code == 200
        # On a connection that worked before, which nginx likes to repeat.
        client.sendall(request.encode())
        receive_until(asked, b"{}")


def test_a_service_that_hangs_up_is_not_asked_again_and_nobody_knows_what_it_wrote(
    service: tuple[socket.socket, str],
) -> None:
    listening, url = service
    with connected(url) as client:
        _hung_up_on(listening, client, "POST")
        answer = answer_on(client)
    assert answer.headers["retry-after"] == "1"
    problem = problem_of(answer, Code.PEER_UNAVAILABLE)
    assert (problem["retryable"], problem["outcome"]) == (True, "unknown")
    listening.settimeout(0.2)
    with pytest.raises(TimeoutError):
        listening.accept()
    listening.settimeout(30)


def test_what_only_reads_is_asked_again(service: tuple[socket.socket, str]) -> None:
    listening, url = service
    with connected(url) as client:
        _hung_up_on(listening, client, "GET")
        with accepted(listening) as asked:
            receive_until(asked, b"{}")
            asked.sendall(ANSWER)
        assert answer_on(client).status_code == 200


def test_while_a_service_is_down_nothing_was_written_and_the_others_go_on(tmp_path: Path) -> None:
    with ExitStack() as running:
        # Bound, and nobody listens: a port that is free again is soon somebody else's.
        nobody = running.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        urls = {
            "ingest": away,
            "manifest": running.enter_context(echoing("manifest")),
            "reader": running.enter_context(echoing("reader")),
        }
        url = running.enter_context(running_nginx(tmp_path, urls))
        # A connection for each request: nginx may end one on which it has answered for somebody else.
        once = httpx.Limits(max_keepalive_connections=0)
        client = running.enter_context(httpx.Client(base_url=url, timeout=240, limits=once))

        refused = client.post("/v1/streams/orders/records", json={})
        problem = problem_of(refused, Code.PEER_UNAVAILABLE)
        assert (problem["retryable"], problem["outcome"]) == (True, "none")
        assert client.get("/livez").status_code == 200
        problem_of(client.get("/readyz"), Code.PEER_UNAVAILABLE)
        assert client.get("/v1/streams/orders/records").headers["asked"] == "reader"


def test_what_one_node_could_not_be_sent_goes_to_the_next_one(tmp_path: Path) -> None:
    """Round robin comes to the node that is away with every second request."""
    with ExitStack() as running:
        nobody = running.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))
        urls = {"ingest": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        second = running.enter_context(echoing("ingest"))
        url = running.enter_context(running_nginx(tmp_path, urls, second))
        once = httpx.Limits(max_keepalive_connections=0)
        client = running.enter_context(httpx.Client(base_url=url, timeout=240, limits=once))
        for _ in range(4):
            answer = client.post("/v1/streams/orders/records", json={})
            assert answer.headers["asked"] == "ingest"
            assert client.get("/readyz").headers["asked"] == "ingest"


def test_where_no_node_can_be_reached_nothing_was_written(tmp_path: Path) -> None:
    with ExitStack() as running:
        away = []
        for _ in range(2):
            nobody = running.enter_context(socket.socket())
            nobody.bind(("127.0.0.1", 0))
            away.append(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        url = running.enter_context(running_nginx(tmp_path, {"ingest": away[0]}, away[1]))
        refused = httpx.post(f"{url}/v1/streams/orders/records", json={}, timeout=240)
        assert problem_of(refused, Code.PEER_UNAVAILABLE)["outcome"] == "none"


def test_the_service_itself_refuses_what_exceeds_its_bounds(
    server: AllInOne, tmp_path: Path
) -> None:
    upstreams = dict.fromkeys(UPSTREAMS, server.url)
    with (
        running_nginx(tmp_path / "nginx", upstreams) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        assert client.put("/v1/streams/orders").status_code == 201
        records = "/v1/streams/orders/records"
        raw = {"content-type": "application/octet-stream"}
        for _ in range(5):
            too_large = client.post(records, content=b"x" * (2 * BINARY_BODY_SIZE_MAX), headers=raw)
            assert too_large.status_code == 413
            assert too_large.json()["limit_bytes"] < BINARY_BODY_SIZE_MAX * 2
        too_long = client.get(records, params={"x": "x" * URL_SIZE_MAX})
        assert (too_long.status_code, too_long.json()["code"]) == (414, "uri-too-long")
        assert client.get(records, params={"offset": "first"}).status_code == 200
