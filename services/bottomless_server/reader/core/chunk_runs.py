"""Decide which chunks of a fragment a page with a filter reads, by what the fragment says of them. Pure.

Chunks that certainly hold nothing of it are passed over; but where only a little lies between two that
are read, it is read with them, since a request costs more than its bytes.
"""

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.formats.fragment import FragmentIndex
from bottomless.model.limits import KIB

JOINED_SIZE: Final = 256 * KIB
"""So much, and less, between two chunks that are read is read too."""


class ChunkRun(NamedTuple):
    """Chunks of a fragment that follow each other: all are read, or all are passed over."""

    first: int
    stop: int
    is_read: bool
    size: int
    """Bytes of these chunks."""


def chunk_runs(
    index: FragmentIndex, may_hold: NDArray[np.bool_], offset: int, size: int, end: int
) -> list[ChunkRun]:
    """Runs of chunks from the one that holds `offset`, of which some `size` bytes are read.

    At least one chunk is in them, and none that starts at `end` or later. `may_hold` says of each
    chunk of the fragment whether it may hold what is asked for.
    """
    first = index.at_offset(offset)
    records = index.records
    by_end = int(np.searchsorted(records["first_offset"], np.uint64(end), side="left"))
    stop = max(first + 1, by_end)
    sizes = records["size"][first:stop].astype(np.int64)
    wanted = _joined(may_hold[first:stop], sizes)
    before = np.cumsum(sizes * wanted) - sizes * wanted
    beyond = np.flatnonzero(wanted & (before >= max(size, 1)))
    count = int(beyond[0]) if len(beyond) else stop - first
    return [
        ChunkRun(first + a, first + b, bool(wanted[a]), int(sizes[a:b].sum()))
        for a, b in _bounds(wanted[:count])
    ]


def _joined(may_hold: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    wanted = may_hold.copy()
    for a, b in _bounds(may_hold)[1:-1]:
        if not may_hold[a] and int(sizes[a:b].sum()) <= JOINED_SIZE:
            wanted[a:b] = True
    return wanted


def _bounds(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where runs of equal flags begin and end."""
    changes = (np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist()
    return list(pairwise([0, *changes, len(flags)])) if len(flags) else []
