"""One start of a node of the queues service: which copy of its data directory is the newest. Pure."""

from typing import Final, NamedTuple

from bottomless.model.names import NodeId

NUMBER_MAX: Final = 10**10 - 1
"""The largest number of a start: what fits into the key of its object."""


class QueueStart(NamedTuple):
    """A start of a process on the data directory of a node."""

    node_id: NodeId
    number: int
    """Counts the starts of a node that were let in, from 1. The highest counts."""
    token: str
    """Random, 32 hex digits. The directory has it too, so that a copy that is older can be told."""
    lock: str
    """What is one for each run of a machine and each lock file: who holds that lock afterwards knows that
    the process of this start has ended. 32 hex digits."""
    url: str
    """The url of its internal listener, for an operator who looks for the other copy."""
    started_at: int
    """In ms since 1970, by the clock of the node."""
