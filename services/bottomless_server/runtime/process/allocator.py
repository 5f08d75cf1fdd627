"""The C allocator: few arenas, so that memory that was freed can be used by every thread.

Glibc gives threads arenas of their own and keeps in each what was freed there. Large bodies are
decoded now in this thread and now in that one, and the process would grow for a long time
without holding anything.
"""

import ctypes
from typing import Final

_ARENA_COUNT_OPTION: Final = -8
"""M_ARENA_MAX of glibc's malloc.h."""
_ARENA_COUNT_MAX: Final = 2


def bound_arenas() -> bool:
    """Bound the arenas of this process, before it starts threads; False where that is not known."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_ARENA_COUNT_OPTION, _ARENA_COUNT_MAX) == 1
