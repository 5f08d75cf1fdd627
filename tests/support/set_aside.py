"""What collection made stays set aside from Python's garbage collector until the session ends.

Services that run in the process of a test set objects aside too (runtime/process/collector.py), and look
at all there is before. Ten thousand collected tests are a million objects, and each such pass over
them took longer than the test; so here nothing brings them back to sight. Tests of the collector
itself are a process of their own, with a handful of objects.
"""

import gc
from typing import Final

_UNFREEZE: Final = gc.unfreeze


def set_aside() -> None:
    """Set aside what there is; from now on `gc.unfreeze` does nothing."""
    gc.freeze()
    setattr(gc, "unfreeze", lambda: None)  # noqa: B010


def bring_back() -> None:
    """Let the collector look at everything again."""
    setattr(gc, "unfreeze", _UNFREEZE)  # noqa: B010
    gc.unfreeze()
