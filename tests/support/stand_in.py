"""A stand-in where a server should be: answers what it is told to, and notes what it was asked."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

Answer = tuple[int, bytes, Mapping[str, str]]
"""Status, body, headers."""

OURS = {"Request-Id": "r", "Content-Type": "application/json"}
"""By what an answer of ours is known."""


class Asked(NamedTuple):
    method: str
    path: str
    authorization: str | None


class StandIn(NamedTuple):
    port: int
    asked: list[Asked]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def standing_in(
    answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None
) -> Iterator[StandIn]:
    """Serve on a free port of loopback until the block ends."""
    asked: list[Asked] = []

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Asked(self.command, self.path, self.headers.get("Authorization"))
            asked.append(request)
            status, body, headers = answer(request)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = answer  # noqa: N815  # so the library calls them
        do_POST = answer  # noqa: N815
        do_PUT = answer  # noqa: N815
        do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # A client that refuses a certificate hangs up: that is what is tested.

    with Quiet(("127.0.0.1", 0), Answering) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield StandIn(server.server_address[1], asked)
        finally:
            server.shutdown()
            thread.join()
