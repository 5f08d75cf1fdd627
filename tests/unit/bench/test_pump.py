"""The load generator against a server that stalls: what a closed loop hides, an open one shows."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.place import CACHE
from bench.pump import Load, Request, connect

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
REQUEST = Request(b"GET / HTTP/1.1\r\n\r\n", units=1)
SECONDS = 0.5
STALL_SECONDS = 0.6
RATE = 100.0
COUNT = int(SECONDS * RATE)


@contextmanager
def a_server_that_stalls_once() -> Iterator[int]:
    """Its first answer comes `STALL_SECONDS` after the request, every other one at once."""

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            while peer.recv(len(REQUEST.content), socket.MSG_WAITALL):
                stall.wait(STALL_SECONDS)
                stall.set()
                peer.sendall(ANSWER)

    stall = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        yield listener.getsockname()[1]
        server.join()


@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="the generator is C")
def test_an_open_loop_counts_the_wait_of_requests_that_could_not_be_sent() -> None:
    """One connection with one request under way. Request n is due n/100 s after the start and waits
    for the first one's answer, so however fast the rest is, it has what was left of the stall. The
    closed loop sends one request in the same time, and has no latency at all to tell."""
    CACHE.mkdir(exist_ok=True)
    with a_server_that_stalls_once() as port, connect(port) as client:
        opened = Load("http", [REQUEST], [client], window=1, rate=RATE).run(SECONDS, 0)
    with a_server_that_stalls_once() as port, connect(port) as client:
        closed = Load("http", [REQUEST], [client], window=1)
        with pytest.raises(RuntimeError, match="nothing was answered within the time"):
            closed.run(SECONDS, 0)
    assert opened.extra["requests"] == opened.units_all == COUNT
    assert opened.p50_ms >= 1000 * (SECONDS - (COUNT // 2) / RATE)
    assert opened.p999_ms >= 1000 * SECONDS
