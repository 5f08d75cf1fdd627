"""The directories of a drive: made with durable names, and removed when they are empty.

A directory whose name is not synced may be lost with the power, and with it all objects in it. So
each process syncs the name of every directory that it puts into, once, and remembers that. Calls
come from several threads, and several processes may use the same directories.
"""

import errno
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from bottomless_server.drives.drive_calls import DriveCalls
from bottomless_server.drives.local_errors import ABSENT, translated

DURABLE_COUNT_MAX: Final = 16_384
"""Directories that are known to be durable; of one that was forgotten a put syncs the name again."""


class Directories:
    """All directories below `root`, of which at most `known_count_max` are known to be durable."""

    def __init__(
        self, root: Path, calls: DriveCalls, known_count_max: int = DURABLE_COUNT_MAX
    ) -> None:
        self._root = root
        self._calls = calls
        self._known = _Recent(known_count_max)

    @property
    def known_count(self) -> int:
        """How many directories are known to be durable."""
        return len(self._known)

    def make_ready(self, directory: Path, *, anew: bool = False) -> None:
        """Make the directory of an object, durable with its name.

        `remove_empty`, of another process perhaps, may have taken it away since it was made, or
        those above it. With `anew` nothing that was known of them is believed.
        """
        above = [each for each in directory.parents if self._root in each.parents]
        if anew:
            self._known.discard(directory, *above)
        try:
            self.make(directory)
        except FileNotFoundError:
            self._known.discard(directory, *above)
            self.make(directory)

    def make(self, directory: Path) -> None:
        """Make a directory and what is missing above it, and make their names durable.

        A directory that exists proves nothing about its name, since whoever made it may
        have died before syncing: so each is synced once by each process.
        """
        inside = directory.is_relative_to(self._root)
        if directory in self._known or (not inside and directory.is_dir()):
            return
        self.make(directory.parent)
        self._calls.make_directory(directory)
        try:
            self._calls.sync_directory(directory.parent)
        except PermissionError:
            # The root may be a mount in a directory that is not ours to open.
            if directory != self._root:
                raise
        self._known.add(directory)

    def remove_empty(self, top: Path) -> None:
        """Remove a directory, and those below it, as far as they are empty."""
        for name, _, _ in os.walk(top, topdown=False):
            directory = Path(name)
            # First, so that nobody of this process takes it for one that is there.
            self._known.discard(directory)
            with translated():
                try:
                    self._calls.remove_directory(directory)
                except OSError as error:
                    # What is not empty stays, with what is above it.
                    if error.errno not in ABSENT | {errno.ENOTEMPTY, errno.EEXIST}:
                        raise


class _Recent:
    """The directories that were asked for last, for several threads."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, directory: Path) -> bool:
        with self._lock:
            if directory not in self._kept:
                return False
            self._kept.move_to_end(directory)
            return True

    def add(self, directory: Path) -> None:
        with self._lock:
            self._kept[directory] = None
            if len(self._kept) > self._count_max:
                self._kept.popitem(last=False)

    def discard(self, *directories: Path) -> None:
        with self._lock:
            for directory in directories:
                self._kept.pop(directory, None)
