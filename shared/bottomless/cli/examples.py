"""Examples: a command in use, below its help. A test checks them against the options."""

from collections.abc import Sequence


def examples(*lines: str) -> str:
    """Make the end of a command's help; a line is what follows the name of the program."""
    return "Examples:\n\n" + _verbatim([f"  bottomless {line}" for line in lines])


def _verbatim(lines: Sequence[str]) -> str:
    # The mark keeps the lines below from being filled up to one.
    return "\n".join(["\b", *lines])
