"""Where jobs leave what they make: a directory of this machine, or a store that Arrow can write to.

Files appear whole or not at all: in a directory they are written under another name, synced
and renamed; a store shows an object when it is complete.
"""

import os
import uuid
from pathlib import Path
from typing import NamedTuple

import pyarrow.fs as arrow_fs

from bottomless.errors import InvalidRequest


class Place(NamedTuple):
    """A directory, as `/data/orders` or `s3://bucket/orders`."""

    text: str

    @classmethod
    def named(cls, text: str) -> "Place":
        """What the user calls it: a path is meant from here, and workers are somewhere else."""
        return cls(text if "://" in text else str(Path(text).absolute()))

    def open(self) -> tuple[arrow_fs.FileSystem, str]:
        """The file system, with credentials of the environment, and the path in it.

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
        return isinstance(self.open()[0], arrow_fs.LocalFileSystem)


def read(place: Place) -> bytes | None:
    """The bytes of a file, None where there is none."""
    files, path = place.open()
    if files.get_file_info(path).type is not arrow_fs.FileType.File:
        return None
    with files.open_input_file(path) as opened:
        return bytes(opened.read())


def names(place: Place) -> list[str]:
    """What lies in a directory, sorted; nothing where there is none."""
    files, path = place.open()
    selector = arrow_fs.FileSelector(path, allow_not_found=True)
    return sorted(info.base_name for info in files.get_file_info(selector))


def write(place: Place, data: bytes) -> None:
    """Put a file where there is none, or in place of the one that is there.

    After a crash the old one is there, or the new one; beside it may lie a draft, whose name
    starts with a dot.
    """
    files, path = place.open()
    if not place.is_local:
        with files.open_output_stream(path) as stream:
            stream.write(data)
        return
    make_directory(place)
    draft = Path(path).with_name(f".{a_name()}.draft")
    draft.write_bytes(data)
    settle(draft, Path(path))


def a_name() -> str:
    """A name that nobody else has."""
    return uuid.uuid4().hex


def make_directory(place: Place) -> None:
    """See that the directory of a local file is there; a store needs none."""
    if place.is_local:
        Path(place.open()[1]).parent.mkdir(parents=True, exist_ok=True)


def settle(draft: Path, path: Path) -> None:
    """Sync a draft and give it its name; afterwards it outlives a power cut."""
    sync(draft)
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """See that a file, or what a directory says, outlives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
