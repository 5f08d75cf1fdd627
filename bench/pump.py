"""The load generators, `native/pump.c` and, for workers of queues, `native/work.c`: requests into a
file, connected sockets, one line back.

They have no client in them: all requests are made before the clock starts, and of replies
only the end is looked for. A figure keeps what it needed of the CPU, so that one can see
whether the server was measured or the generator.

A load is a closed loop, in which the next request waits for a reply, or an open one, in which
each request has its time and its latency counts from there.
"""

import json
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.figures import Figure, quantile
from bench.place import CACHE, native
from bench.tree import Tree

HEADER: Final = struct.Struct("<4I")
SETTLE_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Request:
    """Bytes that are sent at once, how many records they are, how many replies answer them."""

    content: bytes
    units: int
    replies: int = 1
    tag: int = 0
    """What its replies are known by where they come in another order than requests: of RabbitMQ
    the publisher, of NATS the last word of the inbox. 0: they come in order."""


def pack(requests: Iterable[Request]) -> bytes:
    """The file of requests that the generator takes."""
    parts: list[bytes] = []
    for request in requests:
        head = (len(request.content), request.units, request.replies, request.tag)
        parts.append(HEADER.pack(*head))
        parts.append(request.content)
    return b"".join(parts)


@dataclass
class Load:
    """A load: the same requests for so many seconds, or each once."""

    protocol: str
    requests: Sequence[Request]
    sockets: Sequence[socket.socket]
    window: int
    """Units that a connection may wait for; it always may send one request."""
    until: int = 0
    """Stop after so many units have been delivered, where the server pushes; workers: after so many
    cycles of all of them together."""
    tree: Tree = field(default_factory=Tree)
    greet: Callable[[], None] | None = None
    """Called as the clock starts: what a server is told before it pushes."""
    rate: float = 0.0
    """Requests a second that are sent whatever the server does (an open loop); 0: a closed loop."""
    works: bool = False
    """Each connection publishes, takes and acknowledges in turn (`native/work.c`), by its own three of
    the requests; a unit is a message that was acknowledged."""

    def run(self, seconds: float = 0.0, settle_seconds: float = SETTLE_SECONDS) -> Figure:
        """Run it against a quiet server, and wait until it is quiet again.

        Args:
            seconds: 0 sends each request once.
            settle_seconds: the longest to wait for quiet, before and after.

        Raises:
            RuntimeError: the server hung up, refused, or answered nothing within the time.
        """
        with tempfile.NamedTemporaryFile(dir=CACHE, suffix=".requests") as file:
            file.write(pack(self.requests))
            file.flush()
            self.tree.settle(settle_seconds)
            before = self.tree.cpu_seconds()
            with self.tree.watched() as rss:
                if self.greet is not None:
                    self.greet()
                answer = self._run(Path(file.name), seconds)
                busy = self.tree.cpu_seconds() - before
                self.tree.settle(settle_seconds)
            spent = self.tree.cpu_seconds() - before
        if not answer["units_all" if self.rate else "units"]:
            raise RuntimeError("nothing was answered within the time, so there is no rate")
        return Figure(
            units=answer["units"],
            seconds=answer["seconds"],
            cpu_seconds=spent,
            cpu_busy_seconds=busy,
            units_all=answer["units_all"],
            generator_cpu_seconds=answer["cpu"],
            rss_mib=max(rss),
            p50_ms=answer["p50_ms"],
            p99_ms=answer["p99_ms"],
            p999_ms=answer["p999_ms"],
            extra={key: answer[key] for key in ("received", "requests", "refusals")},
        )

    def _run(self, requests: Path, seconds: float) -> dict[str, float]:
        handles = [handle.fileno() for handle in self.sockets]
        end = ["--seconds", str(seconds)] if seconds else []
        end += ["--rate", str(self.rate)] if self.rate else []
        if self.until:
            end += ["--cycles" if self.works else "--until", str(self.until)]
        end += [] if self.works else ["--window", str(self.window)]
        program = native("work" if self.works else "pump")
        command = [str(program), self.protocol, str(requests)]
        with tempfile.NamedTemporaryFile(dir=CACHE, suffix=".latencies") as file:
            done = subprocess.run(
                [*command, *end, "--latencies", file.name, *map(str, handles)],
                pass_fds=handles,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"the load ended early: {done.stderr[-1000:]}")
            answer: dict[str, float] = json.loads(done.stdout)
            return answer | quantiles(np.fromfile(file.name, dtype="<u4"))


def quantiles(microseconds: "np.ndarray[Any, Any]") -> dict[str, float]:
    """The latencies that a figure keeps, in milliseconds."""
    ordered = np.sort(microseconds)
    parts = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: quantile(ordered, part) / 1000 for name, part in parts.items()}


@dataclass(frozen=True)
class HttpLoad:
    """A load of HTTP, over connections that are new in each run: servers close idle ones."""

    port: int | tuple[int, ...]
    """Of several, the connections go to one after the other."""
    tree: Tree
    requests: Sequence[Request]
    connections: int
    again: bool = True
    """The same requests over and over for so many seconds; else each once."""
    depth: int = 1
    """How many requests of a connection may wait for their answers."""
    rate: float = 0.0
    """Requests a second of an open loop; 0: a closed one."""
    settle_seconds: float = SETTLE_SECONDS
    """The longest to wait for quiet, before and after."""

    def __call__(self, seconds: float) -> Figure:
        with ExitStack() as stack:
            window = self.depth * max(request.units for request in self.requests)
            ports = (self.port,) if isinstance(self.port, int) else self.port
            sockets = [
                stack.enter_context(connect(ports[number % len(ports)]))
                for number in range(self.connections)
            ]
            load = Load("http", self.requests, sockets, window, tree=self.tree, rate=self.rate)
            return load.run(seconds if self.again else 0, self.settle_seconds)


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection((host, port), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(None)
    return made
