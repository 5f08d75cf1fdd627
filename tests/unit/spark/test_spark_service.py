"""The reader is asked with the worker's own token; whoever signed a url is not shown it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bottomless.model.names import StreamId, StreamName
from bottomless.spark.service import Source, ask_json

SEEN: list[str | None] = []


class _Reader(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        SEEN.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def url() -> Iterator[str]:
    SEEN.clear()
    with HTTPServer(("127.0.0.1", 0), _Reader) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_worker_shows_the_token_of_its_environment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(url, StreamName("orders"), StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"))
    monkeypatch.delenv("BOTTOMLESS_TOKEN", raising=False)
    ask_json(source, "offsets", {})
    monkeypatch.setenv("BOTTOMLESS_TOKEN", "theirs")
    ask_json(source, "offsets", {})
    assert SEEN == [None, "Bearer theirs"]
