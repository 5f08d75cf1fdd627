"""Objects as a Spark worker reads them: synchronous, in ranges, counted.

Beside the drives, which are asynchronous and made for services; a worker has no
event loop and reads one range after the other.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from bottomless.errors import Code, InvalidRequest, NotFound, Unavailable


class StorePlace(NamedTuple):
    """Where a store is, as the fragment list names it."""

    kind: str
    root: str
    endpoint: str | None = None


@dataclass(slots=True)
class Counts:
    """What one task read, and from where."""

    object_reads: int = 0
    """Ranged reads of objects, made by this task itself."""
    object_bytes: int = 0
    page_reads: int = 0
    """Requests to the reader service."""
    page_bytes: int = 0
    record_count: int = 0
    batch_count: int = 0


class Objects(Protocol):
    """Ranged reads of one store."""

    def read(self, object_key: str, start: int, size: int) -> bytes:
        """Exactly `size` bytes of an object.

        Raises:
            NotFound: `data-missing`, there is no such object (any more).
            Unavailable: the store does not give them.
        """
        ...


def open_objects(place: StorePlace, counts: Counts) -> Objects:
    """The reader of a store.

    Raises:
        InvalidRequest: workers cannot read stores of this kind by themselves.
    """
    if place.kind != "file":
        raise InvalidRequest(
            f"a store of kind {place.kind} cannot be read directly yet; use mode=reader"
        )
    return LocalObjects(Path(place.root), counts)


class LocalObjects:
    """Objects that are files under a directory."""

    def __init__(self, root: Path, counts: Counts) -> None:
        self._root = root
        self._counts = counts

    def read(self, object_key: str, start: int, size: int) -> bytes:
        assert ".." not in PurePosixPath(object_key).parts
        try:
            descriptor = os.open(self._root / object_key, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound("an object is not there (any more)", code=Code.DATA_MISSING) from error
        except OSError as error:
            raise _unavailable() from error
        try:
            data = _read_all(descriptor, start, size)
        except OSError as error:
            raise _unavailable() from error
        finally:
            os.close(descriptor)
        self._counts.object_reads += 1
        self._counts.object_bytes += len(data)
        return data


def _read_all(descriptor: int, start: int, size: int) -> bytes:
    data = os.pread(descriptor, size, start)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _unavailable() -> Unavailable:
    return Unavailable("an object cannot be read", code=Code.OBJECT_STORE_UNAVAILABLE)
