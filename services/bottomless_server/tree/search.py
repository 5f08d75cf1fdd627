"""Find the entry of one node that leads to an offset or to a time.

The descent through groups is the caller's, because each step down is a request.
"""

import numpy as np

from bottomless.model.manifest import Node


def at_offset(node: Node, offset: int) -> int:
    """Number of the entry whose range holds `offset`, which must lie in the node."""
    assert node.first_offset <= offset < node.next_offset
    firsts = node.entries["first_offset"]
    return int(np.searchsorted(firsts, np.uint64(offset), side="right")) - 1


def since(node: Node, timestamp: int) -> int:
    """Number of the first entry that ends at `timestamp` or later; the entry count if none.

    The record looked for is in that entry: an earlier one ends too early, and in this
    one at least the last chunk is late enough.
    """
    return int(np.searchsorted(node.entries["last_timestamp"], np.int64(timestamp), side="left"))
