"""The yardstick, `native/reference.c`: the least that a server can do that keeps its bytes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.place import native
from bench.tree import Tree


@dataclass(frozen=True)
class Reference:
    port: int
    tree: Tree


@contextmanager
def running_reference(
    directory: Path, level: Literal["null", "os", "fsync"]
) -> Iterator[Reference]:
    directory.mkdir(parents=True, exist_ok=True)
    program = [native("reference"), level, directory]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Reference(int(process.stdout.readline()), Tree(process.pid))
        finally:
            process.kill()
