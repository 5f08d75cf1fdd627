"""Let Hypothesis draw the same examples from a seed, whatever else a process has loaded.

By itself it mixes in numbers and texts that it reads in the source of all modules of ours that are
loaded. So what a seed draws would depend on which tests ran before in the same process, and change
with each edit of any file of the product.

There is no setting for that. The name that is replaced here is the library's own:
tests/unit/test_same_examples.py fails where it means nothing any more.
"""

from typing import Final

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

NAME: Final = "_get_local_constants"
_NONE: Final = Constants()


def read_nothing_in_sources() -> None:
    """From here on nothing is drawn from sources in this process; the library's own list is."""
    setattr(providers, NAME, lambda: _NONE)
