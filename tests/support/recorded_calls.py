"""What a process did to the files of a directory, recorded below its libraries, and replayed on a disk in memory.

`file_calls.c` beside this is compiled once and preloaded into a process of its own, so that calls
of SQLite are seen as they reach the system. The log is replayed up to any call on a disk that
forgets what was not synced: what is left is written into a directory, and opened there.
"""

import atexit
import errno
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from support.power_loss import PowerLossDisk

SOURCE: Final = Path(__file__).with_name("file_calls.c")
ROOT: Final = Path(__file__).parents[2]
_HEAD: Final = struct.Struct("<cBHqI")
_DISK: Final = Path("/disk")


class Call(NamedTuple):
    """One call that changed something, or was to."""

    kind: str
    failed: bool
    name: str
    position: int
    data: bytes


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


@cache
def recorder() -> Path:
    """The recorder, compiled once for this process."""
    found = compiler()
    assert found is not None
    library = Path(tempfile.mkdtemp()) / "recorder.so"
    flags = ["-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([found, *flags], check=True, capture_output=True)
    atexit.register(shutil.rmtree, library.parent)
    return library


def record(
    directory: Path,
    program: str,
    faults: str = "",
    folders: Sequence[str] = (),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> list[Call]:
    """Run a Python program, and return what it did to the files of a directory, which is made with
    folders and files in it.
    """
    log = directory.with_suffix(".log")
    put_down(directory, files, folders=folders)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(recorder()),
        "RECORD_DIR": str(directory),
        "RECORD_LOG": str(log),
        "RECORD_FAIL": faults,
        "PYTHONPATH": str(ROOT / "tests"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(_calls(log.read_bytes()))


def _calls(log: bytes) -> Iterator[Call]:
    at = 0
    while at < len(log):
        kind, failed, name_size, position, size = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        name = log[at : at + name_size].decode()
        at += name_size
        yield Call(kind.decode(), bool(failed), name, position, log[at : at + size])
        at += size


class Replay:
    """A disk on which recorded calls are carried out, one after the other."""

    def __init__(
        self,
        chance: random.Random,
        folders: Sequence[str] = (),
        files: Mapping[str, bytes] = MappingProxyType({}),
        *,
        sector_size: int | None = None,
    ) -> None:
        """Folders and files are there, durably, before the first call."""
        self.disk = PowerLossDisk(_DISK, sector_size=sector_size)
        self._folders = {"": _DISK} | {folder: _DISK / folder for folder in folders}
        for folder in self._folders.values():
            self.disk.make_dir(folder)
            self.disk.fsync_dir(_DISK)
        for name, data in files.items():
            fd = self.disk.open(_DISK / name, create=True)
            self.disk.pwritev(fd, [data], 0)
            self.disk.fdatasync(fd)
            self.disk.close(fd)
        for folder in self._folders.values():
            self.disk.fsync_dir(folder)
        self._chance = chance

    def do(self, call: Call) -> None:
        path = _DISK / call.name
        if call.kind == "C":
            self.disk.close(self.disk.open(path, create=True))
        elif call.kind == "U":
            self.disk.unlink(path)
        elif call.kind == "R":
            self.disk.rename(path, _DISK / call.data.decode())
        elif call.name in self._folders:
            assert call.kind == "S"
            if not call.failed or self._chance.random() < 0.5:
                self.disk.fsync_dir(path)
        else:
            self._change(call, path)

    def _change(self, call: Call, path: Path) -> None:
        fd = self.disk.open(path)
        if call.kind == "S":
            self._sync(fd, failed=call.failed)
        elif call.failed:
            pass
        elif call.kind == "W":
            self.disk.pwritev(fd, [call.data], call.position)
        else:
            assert call.kind == "T"
            self.disk.truncate(fd, call.position)
        self.disk.close(fd)

    def _sync(self, fd: int, *, failed: bool) -> None:
        # Of a sync that failed everything may be written all the same, or nothing ever will be.
        if failed and self._chance.random() < 0.5:
            self.disk.before = _fail
        try:
            self.disk.fdatasync(fd)
        except OSError:
            assert failed
        finally:
            self.disk.before = lambda *_: None

    def left_by_a_kill(self) -> Mapping[str, bytes]:
        """What programs see."""
        return self._files(self.disk)

    def left_by_a_loss_of_power(self) -> Mapping[str, bytes]:
        disk = deepcopy(self.disk)
        disk.lose_power(self._chance)
        return self._files(disk)

    def _files(self, disk: PowerLossDisk) -> dict[str, bytes]:
        found = {}
        for folder in self._folders.values():
            for name in disk.names(folder):
                path = folder / name
                if path not in self._folders.values():
                    fd = disk.open(path)
                    found[str(path.relative_to(_DISK))] = disk.pread(fd, disk.size(fd), 0)
                    disk.close(fd)
        return found


def _fail(call: str, path: Path) -> None:
    if call == "fdatasync":
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def put_down(
    directory: Path,
    files: Mapping[str, bytes],
    without: Sequence[str] = (),
    folders: Sequence[str] = (),
) -> None:
    """Write files into a directory that is not there yet."""
    directory.mkdir()
    for folder in folders:
        (directory / folder).mkdir()
    for name, data in files.items():
        if name not in without:
            (directory / name).write_bytes(data)
