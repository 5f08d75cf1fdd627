"""The data directory of a node: which one it is, and that one process alone uses it."""

import fcntl
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.checks import corrupt
from bottomless.model.names import NodeId, parse_uid
from bottomless_server.node.core.lost_directory import AGAIN_SECONDS, DirectoryLooks, Seen
from bottomless_server.node.file_calls import (
    FileCalls,
    make_dir_durable,
    read_file,
    replace_file,
)
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.holders import lock_holder

_NODE_SIZE_MAX = 4096
_RUN_OF_THE_MACHINE: Final = Path("/proc/sys/kernel/random/boot_id")
_LOCK_ID_SIZE: Final = 32
"""Hex digits of the id of a lock."""


class DirectoryLock:
    """An flock on DIR/lock: it ends with the process, however that ends."""

    def __init__(self, data_dir: Path, service: str = "ingest") -> None:
        """Take the lock.

        Raises:
            CannotStart: another process uses the directory.
        """
        self._path = data_dir / "lock"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise CannotStart(
                f"another {service} process uses the data directory {data_dir}"
                f"{lock_holder(data_dir / 'lock')}; stop it, or give each node a directory of its own"
            ) from error
        self._taken = os.fstat(self._fd)

    def look(self) -> Seen:
        """Whether DIR/lock is still the file that was locked; this may block as long as a disk does."""
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return Seen.GONE
        except OSError:
            return Seen.UNKNOWN
        # While it is open no other file has its number.
        return Seen.SAME if os.path.samestat(there, self._taken) else Seen.GONE

    @property
    def id(self) -> str:
        """What this lock is in this run of the machine, as 32 hex digits.

        Who holds a lock knows that whoever held the one of the same id before has ended. A copy of a
        directory has a lock of another id, and so has the same directory on another machine.
        """
        there = os.fstat(self._fd)
        told = f"{_run_of_the_machine()}:{there.st_dev}:{there.st_ino}"
        return sha256(told.encode()).hexdigest()[:_LOCK_ID_SIZE]

    def release(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class DataDirectory:
    """The directory of a node, which one process alone has open; its id is the node's id."""

    def __init__(self, files: FileCalls, path: Path, service: str = "ingest") -> None:
        """The directory at `path`, of a node of a service."""
        self._service = service
        self._files = files
        self._path = path
        self._lock: DirectoryLock | None = None
        self._node_id: NodeId | None = None
        self._is_lost = False

    def open(self) -> None:
        """Make the directory if it is absent, lock it, and learn its id.

        Raises:
            CannotStart: another process uses it.
            OSError: the disk does not work.
        """
        make_dir_durable(self._files, self._path)
        self._lock = DirectoryLock(self._path, self._service)
        self._node_id = load_node_id(self._files, self._path, os.urandom(16).hex())

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    @property
    def node_id(self) -> NodeId:
        """The id of the directory, known once it was opened."""
        assert self._node_id is not None, "the directory was not opened"
        return self._node_id

    @property
    def lock_id(self) -> str:
        """The id of its lock (`DirectoryLock.id`), known while it is open."""
        assert self._lock is not None, "the directory is not open"
        return self._lock.id

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._lock is not None

    def look(self) -> Seen:
        """Whether its lock is still what lies at its path; nobody can tell where it is not open.

        For a thread: this may block as long as a disk does.
        """
        lock = self._lock
        return Seen.UNKNOWN if lock is None else lock.look()

    def is_lost(self, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Whether it is gone, by as many looks as that takes; what was lost stays lost.

        For threads, also several at once: this may block as long as a disk does.
        """
        looks = DirectoryLooks()
        while not self._is_lost:
            if looks.is_lost(self.look()):
                # One that was closed meanwhile belongs to nobody, or to another process.
                if not self.is_open:
                    return False
                self._is_lost = True
            elif not looks.is_doubted:
                return False
            else:
                sleep(AGAIN_SECONDS)
        return True

    def close(self) -> None:
        """Let another process open it; this may be asked for more than once."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _run_of_the_machine() -> str:
    try:
        return _RUN_OF_THE_MACHINE.read_text("ascii").strip()
    except OSError:
        # Nobody can tell: then no lock is one that was seen before.
        return os.urandom(16).hex()


def load_node_id(files: FileCalls, data_dir: Path, fresh: str) -> NodeId:
    """The id of this data directory, made of `fresh` once; under the directory's lock.

    After a crash there is no node.json, or a whole one: no stream was claimed under an id
    that is not durable.

    Raises:
        Corrupt: node.json is not what was written.
    """
    path = data_dir / "node.json"
    if path.name in files.names(data_dir):
        try:
            return NodeId(
                parse_uid(orjson.loads(read_file(files, path, _NODE_SIZE_MAX))["node_id"])
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, InvalidRequest) as error:
            raise corrupt("node.json", "it does not name the node") from error
    replace_file(files, path, orjson.dumps({"node_id": parse_uid(fresh)}))
    return NodeId(fresh)
