"""A load that keeps a pace: each request at its time, whatever became of those before it.

For streams that are appended to seldom: what counts is not how many appends a server takes, but
what each of them costs it. Latencies are those from the time at which a request was due, so that a
server that falls back cannot hide it.
"""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.figures import Figure, quantile
from bench.pump import Request, connect
from bench.tree import Tree

_CONTENT_LENGTH = b"content-length:"


@dataclass(frozen=True)
class PacedLoad:
    """All requests, spread evenly over `seconds`, in turn over some connections."""

    port: int
    tree: Tree
    requests: Sequence[Request]
    seconds: float
    connections: int = 8
    idle_seconds: float = 10.0
    """How long the server is watched without any load before: what it spends then is not the
    requests'."""

    def __call__(self, _: float) -> Figure:
        idle = self._idle_share()
        before, started = self.tree.cpu_seconds(), time.perf_counter()
        with self.tree.watched() as rss, ThreadPoolExecutor(self.connections) as pool:
            lanes = [pool.submit(self._run, lane, started) for lane in range(self.connections)]
            latencies = sorted(latency for lane in lanes for latency in lane.result())
            # The last one has its share of the time too.
            time.sleep(max(started + self.seconds - time.perf_counter(), 0))
        took = time.perf_counter() - started
        spent = self.tree.cpu_seconds() - before
        units = sum(request.units for request in self.requests)
        of_requests = max(spent - idle * took, 0.0)
        return Figure(
            units=units,
            seconds=took,
            cpu_seconds=of_requests,
            cpu_busy_seconds=spent,
            rss_mib=max(rss),
            p50_ms=quantile(latencies, 0.5) * 1000,
            p99_ms=quantile(latencies, 0.99) * 1000,
            p999_ms=quantile(latencies, 0.999) * 1000,
            extra={
                "CPU ms an append": of_requests / self.count * 1000,
                "CPU ms an append, with what the server does idle": spent / self.count * 1000,
                "share of a core, idle": idle,
            },
        )

    @property
    def count(self) -> int:
        return len(self.requests)

    def _idle_share(self) -> float:
        self.tree.settle(self.idle_seconds)
        before, started = self.tree.cpu_seconds(), time.perf_counter()
        time.sleep(self.idle_seconds)
        return (self.tree.cpu_seconds() - before) / (time.perf_counter() - started)

    def _run(self, lane: int, started: float) -> list[float]:
        with connect(self.port) as connection:
            numbers = range(lane, self.count, self.connections)
            return [self._ask(connection, number, started) for number in numbers]

    def _ask(self, connection: socket.socket, number: int, started: float) -> float:
        due = started + self.seconds * number / self.count
        time.sleep(max(due - time.perf_counter(), 0))
        connection.sendall(self.requests[number].content)
        _read_answer(connection)
        return time.perf_counter() - due


def _read_answer(connection: socket.socket) -> None:
    """Read one whole answer, which has to be a success.

    Raises:
        RuntimeError: it is none.
    """
    held = b""
    while b"\r\n\r\n" not in held:
        held += _receive(connection)
    head, _, body = held.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")):
        raise RuntimeError(f"a request was refused: {held[:500]!r}")
    size = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_CONTENT_LENGTH):
            size = int(line[len(_CONTENT_LENGTH) :])
    while len(body) < size:
        body += _receive(connection)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise RuntimeError("the server closed the connection")
    return data
