"""How many producers and keys a stream without an owner knows: what its tail counts.

Whoever commits reads that count with the tail, so it is exact over all nodes. No name makes room for
another here: manifest forgets those that were silent for long.
"""

from bottomless.guards import guard
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds
from bottomless_server.ingest.producers.places import quota_exceeded
from bottomless_server.leaderless.decided import KnownName
from bottomless_server.leaderless.tail import Tail


def require_place(tail: Tail, name: KnownName, bounds: KnownBounds, new_count: int = 0) -> None:
    """Refuse a name that is not known yet, where the stream knows as many as it may.

    `new_count` are those of its kind that become known before it, in the same commit.

    Raises:
        Overloaded: `quota-exceeded`.
    """
    count = tail.producer_count if name.is_producer else tail.key_count
    count_max = bounds.count_max(name)
    if not has_place(count + new_count, count_max):
        what = "producers" if name.is_producer else "idempotency keys"
        raise quota_exceeded(what, count_max)


@guard("the number of producers and keys in the tail")
def has_place(count: int, count_max: int) -> bool:
    """Whether a stream that knows so many names may know one more."""
    return count < count_max
