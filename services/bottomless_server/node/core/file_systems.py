"""What a directory's file system is, from what Linux says of its mounts: whether one sync of all of
it can stand for the syncs of single files there.
"""

import re
from typing import Final, NamedTuple

from bottomless.guards import guard

KINDS: Final = frozenset({"xfs"})
"""File systems whose sync of everything waits for all data and tells of each error. ext4 drops what it
cannot find blocks for when it writes back, and says nothing; before Linux 6.13 it says nothing either
once it has given up and takes no write any more. An overlay does not tell of errors of the file
system below it; of others we do not know."""
KERNEL_MIN: Final = (5, 17)
"""Since 5.8 Linux tells a sync of a file system of each write-back that failed, and only since 5.17
also of an error of the file system itself, such as a log that was not written."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


class FileSystem(NamedTuple):
    """The file system of a directory."""

    kind: str
    """As Linux names it: `ext4`."""
    is_own: bool
    """Whether all of it is mounted at that directory, and nowhere else that this process sees."""
    kernel: tuple[int, int]
    is_single: bool = True
    """Whether nothing else is mounted below that directory, and nothing in it leads elsewhere."""
    device: str = ""

    @property
    def tells_errors(self) -> bool:
        """Whether a sync of all of it reports every error since the last one."""
        return tells_of_each_loss(self.kind, self.kernel)


@guard("file systems whose sync of everything tells of each loss")
def tells_of_each_loss(kind: str, kernel: tuple[int, int]) -> bool:
    """Whether a sync of all of a file system fails wherever that of a file would."""
    return kind in KINDS and kernel >= KERNEL_MIN


class _Mount(NamedTuple):
    device: str
    root: str
    point: str
    kind: str


def file_system_of(path: str, mountinfo: str, release: str) -> FileSystem | None:
    """The file system of an absolute path without links; None where that cannot be told.

    `mountinfo` is the text of /proc/self/mountinfo, `release` that of the kernel.
    """
    version = _RELEASE.match(release)
    mounts = [mount for line in mountinfo.splitlines() if (mount := _mount(line)) is not None]
    above = [mount for mount in mounts if _is_below(path, mount.point)]
    if version is None or not above:
        return None
    # Of two on the same place the later one hides the other.
    mount = max(enumerate(above), key=lambda one: (len(one[1].point), one[0]))[1]
    alone = sum(other.device == mount.device for other in mounts) == 1
    is_own = alone and mount.point == path and mount.root == "/" and path != "/"
    is_single = not any(_is_below(other.point, path) for other in mounts if other.point != path)
    kernel = (int(version[1]), int(version[2]))
    return FileSystem(mount.kind, is_own, kernel, is_single, mount.device)


def _mount(line: str) -> _Mount | None:
    fields, dash, rest = line.partition(" - ")
    before, after = fields.split(" "), rest.split(" ")
    if not dash or len(before) < 6:
        return None
    return _Mount(before[2], _plain(before[3]), _plain(before[4]), after[0])


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
