"""Steps of what takes long in the store: each is done where it belongs, one after the other.

Compaction, a rewrite and a deletion change the ledger, the disk, and wait for readers. They are
generators of steps and do none of these by themselves, so whoever drives them decides the thread, and
a test can do anything between two steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bottomless_server.queues.ledger.base import Ledger


class Done(NamedTuple):
    """What a change of the ledger returned, and the number of its round."""

    value: Any
    round: int


@dataclass(frozen=True, slots=True)
class InRound:
    """Change the ledger in a round, which is durable when the generator goes on; it is sent a Done."""

    change: Callable[[Ledger], Any]


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Make file calls in a thread that may block; the generator is sent what they return.

    An OSError is thrown into the generator.
    """

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class UntilUnpinned:
    """Wait until nobody reads what rounds up to one saw of a file."""

    file: int
    up_to: int


Step = InRound | OnDisk | UntilUnpinned
