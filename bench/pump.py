"""The load generator, `native/pump.c`: requests into a file, connected sockets, one line back.

Its program has no client in it: all requests are made before the clock starts, and of replies
only the end is looked for. A figure keeps what it needed of the CPU, so that one can see
whether the server was measured or the generator.
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
from typing import Final

from bench.figures import Figure
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


def pack(requests: Iterable[Request]) -> bytes:
    """The file of requests that the generator takes."""
    parts: list[bytes] = []
    for request in requests:
        parts.append(HEADER.pack(len(request.content), request.units, request.replies, 0))
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
    """Stop after so many units have been delivered, where the server pushes."""
    tree: Tree = field(default_factory=Tree)
    greet: Callable[[], None] | None = None
    """Called as the clock starts: what a server is told before it pushes."""

    def run(self, seconds: float = 0.0, settle_seconds: float = SETTLE_SECONDS) -> Figure:
        """Run it against a quiet server, and wait until it is quiet again.

        Args:
            seconds: 0 sends each request once.
            settle_seconds: the longest to wait for quiet, before and after.
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
        return Figure(
            units=answer["units"],
            seconds=answer["seconds"],
            cpu_seconds=spent,
            cpu_busy_seconds=busy,
            units_all=answer["units_all"],
            generator_cpu_seconds=answer["cpu"],
            rss_mib=max(rss),
            p50_ms=answer["p50_us"] / 1000,
            p99_ms=answer["p99_us"] / 1000,
            extra={key: answer[key] for key in ("received", "requests", "refusals")},
        )

    def _run(self, requests: Path, seconds: float) -> dict[str, float]:
        handles = [handle.fileno() for handle in self.sockets]
        end = ["--seconds", str(seconds)] if seconds else []
        end += ["--until", str(self.until)] if self.until else []
        command = [str(native("pump")), self.protocol, str(requests), "--window", str(self.window)]
        done = subprocess.run(
            [*command, *end, *map(str, handles)],
            pass_fds=handles,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the load ended early: {done.stderr[-1000:]}")
        answer: dict[str, float] = json.loads(done.stdout)
        return answer


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

    def __call__(self, seconds: float) -> Figure:
        with ExitStack() as stack:
            window = self.depth * max(request.units for request in self.requests)
            ports = (self.port,) if isinstance(self.port, int) else self.port
            sockets = [
                stack.enter_context(connect(ports[number % len(ports)]))
                for number in range(self.connections)
            ]
            load = Load("http", self.requests, sockets, window, tree=self.tree)
            return load.run(seconds if self.again else 0)


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection((host, port), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(None)
    return made
