"""Which process holds what this one needs: a locked file, a port.

For the sentence of a process that cannot start. It is read from /proc, so it is empty where the
system has none, and where the other process belongs to somebody else.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LISTENS: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def lock_holder(path: Path) -> str:
    """Name the process that holds an flock on a file, as ` (process 7, name)`, or as nothing."""
    with_file = f"{path.stat().st_ino}"
    for line in _lines(_PROC / "locks"):
        fields = line.split()
        if "FLOCK" in fields and any(field.endswith(f":{with_file}") for field in fields):
            pid = fields[fields.index("FLOCK") + 3]
            if os.path.realpath(path) in _opened(_PROC / pid):
                return _named(pid)
    return ""


def port_holder(port: int) -> str:
    """Name the process that listens on a TCP port, as ` (process 7, name)`, or as nothing."""
    sockets = set(_listening(port))
    if sockets:
        for process in _PROC.iterdir():
            if process.name.isdigit() and not sockets.isdisjoint(_opened(process)):
                return _named(process.name)
    return ""


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _lines(_PROC / "net" / table)[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def _opened(process: Path) -> Iterator[str]:
    """What a process has open; nothing where that is not ours to see, or it has just ended."""
    try:
        for descriptor in (process / "fd").iterdir():
            yield str(descriptor.readlink())
    except OSError:
        return


def _named(pid: str) -> str:
    name = " ".join(_lines(_PROC / pid / "comm"))
    return f" (process {pid}, {name})" if name else f" (process {pid})"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
