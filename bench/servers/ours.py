"""Bottomless as its users run it: `bottomless serve` on a directory, all services in one process."""

import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.servers.process import free_port
from bench.tree import Tree
from bottomless_server.coordination.die_with_parent import die_with_parent

START_SECONDS: Final = 300
UPLOAD_SECONDS: Final = 120
CALLS: Final = re.compile(
    r'^bottomless_object_store_calls_total\{operation="(\w+)",[^}]*\} ([0-9.e+]+)$', re.MULTILINE
)
READ: Final = re.compile(
    r"^bottomless_object_store_read_bytes_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE
)
SAMPLE: Final = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.e+-]+)$", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
READY: Final = re.compile(r"ready http://127\.0\.0\.1:([0-9]+)\n")


@dataclass(frozen=True)
class Counters:
    """What a server has counted by a moment, as its metrics say."""

    text: str

    def total(self, name: str) -> float:
        """Of all series of this name."""
        return sum(value for _, value in self._series(name))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The same, for each value of a label."""
        counts: dict[str, float] = defaultdict(float)
        for labels, value in self._series(name):
            counts[labels[label]] += value
        return dict(counts)

    def _series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        for found, labels, value in SAMPLE.findall(self.text):
            if found == name:
                yield dict(LABEL.findall(labels)), float(value)


@dataclass(frozen=True)
class Ours:
    port: int
    tree: Tree
    data_dir: Path
    metrics_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create(self, stream: str, config: Mapping[str, Any] | None = None) -> bool:
        """Make a stream; False if this version does not know something of its config."""
        answer = httpx.put(f"{self.url}/v1/streams/{stream}", json=config or {}, timeout=30)
        if answer.status_code == 422 or answer.status_code == 400:  # noqa: PLR1714
            return False
        answer.raise_for_status()
        return True

    def delete(self, stream: str) -> None:
        httpx.delete(f"{self.url}/v1/streams/{stream}", timeout=60).raise_for_status()

    def counters(self) -> Counters:
        return Counters(self._metrics())

    def _metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30).text

    def store_calls(self) -> dict[str, float]:
        """What was asked of the object store so far: calls by operation, and `read_bytes`."""
        text = self._metrics()
        counts: dict[str, float] = defaultdict(float)
        for operation, count in CALLS.findall(text):
            counts[operation] += float(count)
        for count in READ.findall(text):
            counts["read_bytes"] += float(count)
        return dict(counts)

    def wait_uploaded(self, stream: str) -> None:
        """Until object storage has all of it."""
        deadline = time.monotonic() + UPLOAD_SECONDS
        while True:
            found = self.offsets(stream)
            if found["object_store_next_offset"] == found["next_offset"]:
                return
            if time.monotonic() > deadline:
                raise RuntimeError("the upload takes too long")
            # No answer of the API waits for an upload.
            time.sleep(0.1)

    def offsets(self, stream: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/v1/streams/{stream}/offsets", timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def running_ours(
    data_dir: Path,
    settings: Mapping[str, str] | None = None,
    program: Sequence[str] | None = None,
) -> Iterator[Ours]:
    """Start it, and kill it at the end: nothing of it is needed any more.

    `program` is what is run instead of `bottomless`.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    metrics_port = free_port()
    begun = program or [str(Path(sys.executable).parent / "bottomless")]
    with (data_dir.parent / f"{data_dir.name}.log").open("a") as log:
        process = subprocess.Popen(
            [*begun, "serve", "--port", "0", "--data-dir", str(data_dir)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                "BOTTOMLESS_METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
                **(settings or {}),
            },
            preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
    assert process.stdout is not None
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        match = READY.fullmatch(process.stdout.readline())
        watchdog.cancel()
        if match is None:
            raise RuntimeError(f"no ready line; see {log.name}")
        yield Ours(int(match[1]), Tree(process.pid), data_dir, metrics_port)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
