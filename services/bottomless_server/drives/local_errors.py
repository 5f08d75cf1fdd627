"""What the system answers to calls for files, told as what a caller of a drive can do about it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bottomless.drives.base import DriveFull, DriveRefused, DriveUnavailable

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
REFUSED: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EMLINK,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    }
)
"""What waiting does not mend; the last two where there are no hard links."""


@contextmanager
def absent_is_fine() -> Iterator[None]:
    """Pass over what is not there."""
    try:
        yield
    except OSError as error:
        if error.errno not in ABSENT:
            raise


@contextmanager
def translated() -> Iterator[None]:
    """Raise what the system says as what a caller can do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DriveFull("there is no room in the directory of the store") from error
        name = errno.errorcode.get(error.errno or 0, "unknown")
        if error.errno in REFUSED:
            raise DriveRefused(
                "the directory of the store refuses", facts={"errno": name}
            ) from error
        raise DriveUnavailable(
            "the directory of the store does not answer", facts={"errno": name}
        ) from error
