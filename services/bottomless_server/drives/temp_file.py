"""A temp file of the directory drive that is written block by block, in one thread after another."""

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

from bottomless_server.drives.checked_parts import require_sum
from bottomless_server.drives.drive_calls import DriveCalls


class TempFile:
    """It is there from `create` to `discard`. All of it blocks.

    Whoever waits for a call may be cancelled while it runs in its thread, and then nobody can end
    it: so what ends the file waits for the call, and what comes after the end does nothing. A
    descriptor that was closed under a write would be another file's by then.
    """

    def __init__(self, calls: DriveCalls, path: Path) -> None:
        self.path = path
        self._calls = calls
        self._file: int | None = None
        self._crc = 0
        self._ended = False
        self._turn = Lock()

    def create(self) -> None:
        with self._turn:
            if not self._ended:
                self._file = self._calls.create(self.path)

    def write(self, part: memoryview) -> None:
        """Write what follows. All parts but the last are of whole blocks."""
        with self._turn:
            if self._file is not None:
                self._crc = self._calls.write(self._file, [part], self._crc)

    def close_durably(self, crc: int) -> None:
        """Sync and close what was written.

        Raises:
            Corrupt: its CRC-32C is not `crc`; it was not synced.
        """
        with self._turn:
            if self._file is None:
                raise OSError("the put was given up")
            require_sum(self._crc, crc)
            self._calls.sync_file(self._file)
            file, self._file = self._file, None
            os.close(file)

    def discard(self) -> None:
        """Close and remove it, if it is there."""
        with self._turn:
            created = self._file is not None or not self._ended
            self._ended = True
            if self._file is not None:
                file, self._file = self._file, None
                os.close(file)
            if created:
                with suppress(OSError):
                    self._calls.unlink(self.path)
