"""Changes of what is known of a producer of a leaderless stream that come without an append.

What is decided is that of every stream (ingest/producers/producer_changes.py), by what coordination
knows of this one producer; how many the stream knows is counted in its tail.
"""

from bottomless_server.ingest.leaderless.core.places import require_place
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds, RememberedNames
from bottomless_server.ingest.producers import producer_changes
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.tail import Tail
from bottomless_server.leaderless.tail_changes import timestamp_of
from bottomless_server.leaderless.tail_format import Known


def raise_epoch(
    producer_id: str, tail: Tail, known: Known | None, clock: int, bounds: KnownBounds
) -> NewKnown:
    """What is known of a producer once its epoch is raised; one that is not known is from then on.

    `clock` is in ms since 1970.

    Raises:
        Overloaded: `quota-exceeded`.
        InvalidRequest: it was raised as often as can be.
    """
    name = KnownName(producer_id, is_producer=True)
    if known is None:
        require_place(tail, name, bounds)
    names = RememberedNames({name: known}, bounds)
    now = timestamp_of(tail, clock)
    names.tracking.take_tracked(producer_changes.raise_epoch(names.tracking, producer_id, now))
    return names.written(name)


def forget(known: Known | None) -> None:
    """Nothing is known of a producer from then on.

    Raises:
        NotFound: `producer-not-found`.
    """
    if known is None:
        raise producer_changes.producer_not_found()
