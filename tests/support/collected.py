"""What only Python's garbage collector would free: things of ours in a circle that nobody uses."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_what_is_new() -> Iterator[None]:
    """Within, the collector is off, and looks at nothing that was there before: with what a process
    that runs thousands of tests has, each look took longer than the test."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left_to_the_collector() -> Counter[str]:
    """How many there are of each class of ours since the last look; afterwards they are gone.

    The collector has to be off: else what it has found by itself is not seen.
    """
    assert not gc.isenabled()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = Counter(
            f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.garbage
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
    return Counter({name: count for name, count in found.items() if name.startswith("bottomless")})
