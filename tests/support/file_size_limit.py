"""A bound on the size of files of this process, beyond which writes fail: a disk that is full for some files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """The bound is that of the whole process, so it should be larger than what others write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
