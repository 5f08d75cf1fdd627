"""The home of a tenant's queues: the one node on whose disk all of them are. Pure."""

from typing import Final, NamedTuple

from bottomless.model.names import NodeId

TERM_MAX: Final = 10**10 - 1
"""The largest number of a home: what fits into the key of its object."""


class QueueHome(NamedTuple):
    """The node that has the queues of a tenant, in one term."""

    tenant: str
    term: int
    """Counts the homes of a tenant, from 1. Each term has one node, and the highest counts."""
    node_id: NodeId
    url: str | None
    """The url of its internal listener, as the node said it last; None where it has not said it since
    the record was brought back."""
    noted: bool
    """Whether the bucket says so too. Nobody serves queues under a term before that."""
    generation: int
    """The generation of coordination in which this was written."""
