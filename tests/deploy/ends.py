"""Both ends of a proxy, byte by byte: what is sent to it, and what arrives behind it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from bottomless.errors import Code
from bottomless_server.runtime.http.problems import STATUS

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Echo(BaseHTTPRequestHandler):
    """Answers with the name of its service and with the target as it came."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    service = ""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.send_header("asked", self.service)
        self.send_header("target", self.requestline.split(" ")[1])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the tests say what went wrong."""


for each in METHODS:
    setattr(Echo, f"do_{each}", Echo.answer)


@contextmanager
def echoing(name: str) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type(name, (Echo,), {"service": name})) as server:
        threading.Thread(target=server.serve_forever, args=[0.02]).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        yield client


def answer_on(client: socket.socket) -> httpx.Response:
    """Read one answer with a declared length."""
    received = receive_until(client, b"\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    length = int(next(value for name, value in headers.items() if name.lower() == "content-length"))
    while len(body) < length:
        body += client.recv(65_536)
    return httpx.Response(int(first.split(" ")[1]), headers=headers, content=body)


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        more = connection.recv(65_536)
        assert more, f"the connection ended after {received[-200:]!r}"
        received += more
    return received


@contextmanager
def accepted(listening: socket.socket) -> Iterator[socket.socket]:
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(30)
        yield connection


def problem_of(answer: httpx.Response, code: Code) -> dict[str, Any]:
    """The problem that an answer is: of the one shape, with the status of its code."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem: dict[str, Any] = answer.json()
    members = {"type", "title", "status", "detail", "code", "retryable", "outcome", "request_id"}
    if "allow" in answer.headers:
        members.add("allowed")
        assert ", ".join(problem["allowed"]) == answer.headers["allow"]
    assert set(problem) == members
    assert problem["code"] == code
    assert problem["status"] == answer.status_code == STATUS[code]
    assert problem["type"] == f"urn:bottomless:problem:{code}"
    assert problem["title"] == code.replace("-", " ").capitalize()
    assert problem["request_id"] == answer.headers["request-id"]
    return problem
