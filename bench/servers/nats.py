"""NATS with JetStream in files, one node."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.install import nats_server
from bench.servers.process import free_port, running, version_of
from bench.tree import Tree


@dataclass(frozen=True)
class Nats:
    port: int
    tree: Tree
    version: str


@contextmanager
def running_nats(directory: Path, *, sync_always: bool = False) -> Iterator[Nats]:
    """By default it syncs every two minutes. It does not ask whether a connection lives: between
    its turns nobody would answer."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    store: dict[str, str] = {"store_dir": str(directory / "store")}
    if sync_always:
        store["sync_interval"] = "always"
    configuration = directory / "nats.conf"
    settings = {"listen": f"127.0.0.1:{port}", "jetstream": store, "ping_interval": "1h"}
    configuration.write_text(json.dumps(settings))
    command: list[str | Path] = [nats_server(), "--config", configuration]
    with running(command, directory / "nats.log", port) as process:
        yield Nats(port, Tree(process.pid), version_of(command[0]))
