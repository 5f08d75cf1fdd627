"""Write past the page cache, where the file system lets us.

A page that the cache takes for the first time costs more than all else that is done to its bytes;
docs/decisions/0017 has the figures. Which file systems know `O_DIRECT`, and which alignment they
want, cannot be asked: it is tried, and what they refuse is written the usual way.
"""

import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from bottomless.formats.checks import crc32c
from bottomless.model.limits import MIB

try:
    import fcntl

    _DIRECT: int = os.O_DIRECT
except (ImportError, AttributeError):  # Not on Linux.
    _DIRECT = 0

_BLOCK_SIZE: Final = 4096
"""Bytes to which positions, sizes and memory are aligned; no usual disk wants more."""
_BUFFER_SIZE: Final = MIB
_OWN: Final = threading.local()


def write_past_cache(
    file: int, parts: Sequence[memoryview], crc: int = 0
) -> tuple[list[memoryview], int]:
    """Write as much as can go past the cache from the file's position, which is aligned.

    Returns what is left to be written after it: less than a block, or all that the file system
    did not take this way. And the CRC-32C of what was written, block by block while each is in the
    processor's cache; `crc` is that of the bytes before.

    Raises:
        OSError: as of any write.
    """
    flags = _make_direct(file)
    if flags is None:
        return list(parts), crc
    try:
        return _write(file, deque(parts), crc)
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)


def _make_direct(file: int) -> int | None:
    """The file's flags of before; None where it cannot be."""
    if not _DIRECT:
        return None
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT)
    except OSError:
        return None
    return flags


def _write(file: int, left: deque[memoryview], crc: int) -> tuple[list[memoryview], int]:
    size = sum(part.nbytes for part in left)
    size -= size % _BLOCK_SIZE
    while size:
        block = _whole_blocks(left[0])
        if block.nbytes:
            left[0] = left[0][block.nbytes :]
        else:
            block = _buffer()[: min(size, _BUFFER_SIZE)]
            _fill(block, left)
        size -= block.nbytes
        while block.nbytes:
            try:
                written = os.write(file, block)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # Not aligned as it wants it. The buffer may be the thread's, so this is a copy.
                return [memoryview(bytes(block)), *left], crc
            crc = crc32c(block[:written], crc)
            block = block[written:]
    return list(left), crc


def aligned_block() -> memoryview:
    """Memory that can go past the cache as it is, a MiB of it."""
    return memoryview(mmap.mmap(-1, _BUFFER_SIZE))


def _whole_blocks(part: memoryview) -> memoryview:
    """What of a part is aligned where it lies; nothing of one that begins elsewhere."""
    size = part.nbytes - part.nbytes % _BLOCK_SIZE
    if size and np.frombuffer(part, dtype=np.uint8).ctypes.data % _BLOCK_SIZE == 0:
        return part[:size]
    return part[:0]


def _fill(block: memoryview, left: deque[memoryview]) -> None:
    """Move bytes from the front of what is left until the block is full."""
    filled = 0
    while filled < block.nbytes:
        part = left.popleft()
        taken = min(part.nbytes, block.nbytes - filled)
        block[filled : filled + taken] = part[:taken]
        filled += taken
        if taken < part.nbytes:
            left.appendleft(part[taken:])


def _buffer() -> memoryview:
    """Aligned memory of this thread, kept: fresh memory would cost what the cache's pages do."""
    try:
        kept: memoryview = _OWN.buffer
    except AttributeError:
        kept = _OWN.buffer = aligned_block()
    return kept
