"""Where jobs leave what they make: a local directory, or a store that Arrow can write to.

Files appear whole or not at all: each is written somewhere else, and only when it is complete is it
renamed, or, in an object store, sent.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

import pyarrow.fs as arrow_fs

from bottomless.errors import InvalidRequest, Unavailable
from bottomless.model.limits import MIB

_SENT_SIZE: Final = 8 * MIB
"""Bytes of a file that are in memory when it is sent."""


class Place(NamedTuple):
    """A directory, such as `/data/orders` or `s3://bucket/orders`."""

    text: str

    @classmethod
    def named(cls, text: str) -> "Place":
        """Make a place from what a user typed.

        A relative path counts from this process's directory.

        Workers may run in another directory.
        """
        return cls(text if "://" in text else str(Path(text).absolute()))

    def open(self) -> tuple[arrow_fs.FileSystem, str]:
        """Open the file system, with the environment's credentials.

        Returns it and the path in it.

        Raises:
            InvalidRequest: no file system that is known here.
        """
        if "://" not in self.text:
            return arrow_fs.LocalFileSystem(), self.text
        try:
            found, path = arrow_fs.FileSystem.from_uri(self.text)
        except (ValueError, OSError) as error:
            raise InvalidRequest("that is no place that can be written to") from error
        return found, path.rstrip("/")

    def __truediv__(self, name: str) -> "Place":
        return Place(f"{self.text.rstrip('/')}/{name}")

    @property
    def is_local(self) -> bool:
        """Whether the place is a directory of a machine.

        Raises:
            InvalidRequest: no file system that is known here.
        """
        return isinstance(self.open()[0], arrow_fs.LocalFileSystem)


def read(place: Place) -> bytes | None:
    """Read the bytes of a file; None where there is none.

    Raises:
        Unavailable: the place cannot be reached.
    """
    files, path = place.open()
    with _reached():
        if files.get_file_info(path).type is not arrow_fs.FileType.File:
            return None
        with files.open_input_file(path) as opened:
            return bytes(opened.read())


def names(place: Place) -> list[str]:
    """List what lies in a directory, sorted; empty where there is none.

    Raises:
        Unavailable: the place cannot be reached.
    """
    files, path = place.open()
    selector = arrow_fs.FileSelector(path, allow_not_found=True)
    with _reached():
        return sorted(info.base_name for info in files.get_file_info(selector))


def write(place: Place, data: bytes) -> None:
    """Put a file, replacing one that is there.

    Raises:
        Unavailable: the place cannot be reached.
    """
    with whole_file(place) as draft:
        draft.write(data)


@contextmanager
def whole_file(place: Place) -> Iterator[IO[bytes]]:
    """Write a file, which takes its place when the block ends, unless that ends with an error.

    After a crash either the previous file is there, if any, or the new one. In a directory a draft
    may lie beside it, whose name starts with a dot; in a store nothing, except parts that it drops
    by itself. So an attempt that fails in the middle takes nothing from another attempt at the same
    file.

    Raises:
        Unavailable: the store cannot be reached.
    """
    files, path = place.open()
    if place.is_local:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{a_name()}.draft")
        try:
            with draft.open("wb") as opened:
                yield opened
            settle(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        return
    # An object cannot be renamed, and Arrow ends one that is under way also after an error: it
    # would be visible, and cut short.
    with tempfile.TemporaryFile() as whole:
        yield whole
        whole.seek(0)
        with _reached(), files.open_output_stream(path) as stream:
            while piece := whole.read(_SENT_SIZE):
                stream.write(piece)


@contextmanager
def _reached() -> Iterator[None]:
    """Say what is wrong without names of buckets and keys, of which Arrow's errors are full."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            "the place of the output does not answer, or refuses: look at its name, at the "
            "credentials and, where it is not that of AWS, at AWS_ENDPOINT_URL"
        ) from error


def a_name() -> str:
    """Make a name that nobody else has."""
    return uuid.uuid4().hex


def settle(draft: Path, path: Path) -> None:
    """Sync a draft and give it its name; afterwards it survives a power cut."""
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file or a directory to its disk, so that it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
