"""Guards of the services, with what it would be to do without them.

A guard that can be removed without any of these seeds noticing guards nothing here, or the
simulation is blind. Each names seeds of which at least one has to fail.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.power_loss import PowerLossDisk

from bottomless_server.ingest.core.tracking import Tracking
from bottomless_server.ingest.upkeep import Upkeep
from bottomless_server.reader.follow import _Following
from bottomless_server.reader.pages import Page


class Replaced(NamedTuple):
    owner: Any
    name: str
    value: object


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _unsynced_data(disk: PowerLossDisk, fd: int) -> None:
    if disk._file(fd).path.suffix != ".segment":
        disk._file(fd).sync()


def _unsynced_names(disk: PowerLossDisk, path: Path) -> None:
    """The names of segments are not synced; all others are."""
    if path.parent.name != "streams":
        _fsync_dir(disk, path)


def _unsynced_data_dir(disk: PowerLossDisk, path: Path) -> None:
    if not path.name.startswith("simulation-"):
        _fsync_dir(disk, path)


_fsync_dir: Final = PowerLossDisk.fsync_dir


def _mark_everything(upkeep: Upkeep) -> None:
    for segment in upkeep._log.segments[:-1]:
        segment.published_at = segment.published_at or upkeep._clocks.elapsed()


def _counted_when_read(following: _Following, page: Page) -> None:
    _remember(following, page)
    following._next_offset = page.next_offset


_remember: Final = _Following._remember

GUARDS: Final[dict[str, tuple[list[Replaced], list[int]]]] = {
    "a sync before the answer": (
        [Replaced(PowerLossDisk, "fdatasync", _unsynced_data)],
        [1, 2, 3],
    ),
    "a sync of a segment's name": (
        [Replaced(PowerLossDisk, "fsync_dir", _unsynced_names)],
        [1, 2, 3],
    ),
    "a sync of the data directory's name": (
        [Replaced(PowerLossDisk, "fsync_dir", _unsynced_data_dir)],
        [6, 14, 16, 17, 19, 20],
    ),
    "producers": ([Replaced(Tracking, "take_chunk", _nothing)], [1, 2, 3]),
    "a free after its EXEC": ([Replaced(Upkeep, "_mark_published", _mark_everything)], [1, 2, 3]),
    "an end that names what was sent": (
        [Replaced(_Following, "_remember", _counted_when_read)],
        [1, 2, 3],
    ),
}


@contextmanager
def without(guard: str) -> Iterator[None]:
    """Take a guard away for a while."""
    replaced, _ = GUARDS[guard]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(replaced, before, strict=True):
            setattr(owner, name, value)
