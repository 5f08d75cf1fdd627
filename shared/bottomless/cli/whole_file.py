"""A file that is there whole or not at all: written beside its place, and renamed into it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; it takes its name when the block ends without an error.

    A file that had the name is replaced. After a crash within the block, what was at `path` is
    still there, and beside it may lie a file with a name that begins with a dot and ends in
    `.part`. The data is on disk before the name is, so a name never leads to half of it.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
