"""beanstalkd with its log, synced after each write, unpacked from Debian's package."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.install import beanstalkd
from bench.servers.process import free_port, running
from bench.tree import Tree


@dataclass(frozen=True)
class Beanstalkd:
    port: int
    tree: Tree
    version: str


@contextmanager
def running_beanstalkd(directory: Path) -> Iterator[Beanstalkd]:
    directory.mkdir(parents=True, exist_ok=True)
    program, port = beanstalkd(), free_port()
    told = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout
    # Jobs of up to a MiB; "-f 0" syncs each write.
    command: list[str | Path] = [program, "-l", "127.0.0.1", "-p", str(port), "-b", directory]
    command += ["-f", "0", "-z", str(1 << 20)]
    with running(command, directory / "beanstalkd.log", port) as process:
        yield Beanstalkd(port, Tree(process.pid), told.split()[-1] if told.split() else "")
