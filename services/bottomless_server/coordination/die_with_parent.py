"""Let the kernel end a child process with the one that started it.

However a process ends, also by `kill -9`, nothing of it is left that holds its ports,
its locks and its files.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs before it becomes another program, as `preexec_fn` of `Popen`.

    None where the kernel cannot do it. It dies with the thread that forks it, so only a
    thread that lives as long as the process may: the main thread.
    """
    if not sys.platform.startswith("linux"):
        return None
    # All that the child does is two system calls, prepared before the fork.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call; then no signal comes.
        if os.getppid() != parent:
            os._exit(1)

    return prepare
