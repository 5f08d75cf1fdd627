"""Secret file: a secret that exists once goes to disk whole, readable for its owner alone."""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bottomless.cli.failures import tell


class SecretFile:
    """A place for a secret, made before the secret is.

    If it cannot be written, that is known before a key is made whose secret nobody has. What is on
    disk after a crash:

    1. `FILE.new` is made, empty. After a crash: it is there, and perhaps a key without a
       secret on the server, to be revoked. Whatever `FILE` held, it still holds.
    2. The secret is written to `FILE.new` and synced. After a crash it is there, whole.
    3. `FILE.new` takes the name `FILE`. After a crash the secret is under one of the two.

    A `FILE.new` that is there already is left as it is, and nothing is begun.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f"{path.name}.new")
        self._descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._written = False
        _sync_directory(path.parent)

    def keep(self, secret: str) -> None:
        """Write the secret and give the file its name."""
        with os.fdopen(os.dup(self._descriptor), "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
            file.flush()
            os.fsync(file.fileno())
        self._written = True
        try:
            self._new.replace(self._path)
        except OSError:
            tell(f"the secret is in {self._new}")
            raise
        _sync_directory(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        if not self._written:
            with suppress(FileNotFoundError):
                self._new.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
