"""Limits of this process that the system sets: its file descriptors, and the arenas of its allocator.

Each client takes a file descriptor, so a process takes as many as it is allowed.

Glibc gives threads arenas of their own and keeps in each what was freed there. Large bodies are
decoded in one thread now and in another one later, so a process with many arenas would grow for a
long time without holding anything. With few of them every thread can use the memory that was freed.
"""

import ctypes
import resource
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_KEPT_BACK: Final = 512
"""Descriptors that are kept for files, the object store, coordination and peers."""
_COUNTED_MAX: Final = 1 << 20
"""A limit above this one counts as none."""
_ARENA_COUNT_OPTION: Final = -8
"""M_ARENA_MAX of glibc's malloc.h."""
_ARENA_COUNT_MAX: Final = 2


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one; returns how many descriptors there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _COUNTED_MAX if hard == resource.RLIM_INFINITY else min(hard, _COUNTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("the descriptor limit stays", soft=soft, hard=hard, error=str(error))
            return soft
    return wanted


def open_log_count_max(wanted: int) -> int:
    """How many logs, of two files each, may stay open: at most `wanted`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft // 16), 1)


def connection_count_max(descriptor_count: int) -> int:
    """How many connections a process with so many descriptors may have."""
    return max(descriptor_count - _KEPT_BACK, descriptor_count // 2)


def bound_arenas() -> bool:
    """Bound the arenas of this process, before it starts threads; False where that is not known."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_ARENA_COUNT_OPTION, _ARENA_COUNT_MAX) == 1
