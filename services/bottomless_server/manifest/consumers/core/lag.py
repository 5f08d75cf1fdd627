"""Say how much of its stream comes after a position: in records, seconds and bytes. Pure.

    published, in the manifest's entries        not published, in the tail
    ──────┬──────────────────────────────┬──────────────────────────────┬─► end
       position: its entry tells        published_next               committed_next

Records are exact. Seconds and bytes are exact to the entry where the position is published (a
fragment, or a group of fragments far back): within it they grow evenly; else to the chunk.
"""

from collections.abc import Mapping
from typing import NamedTuple

from bottomless.model.manifest import Entries, EntryKind, Node
from bottomless_server.protocol.places import TailPlace


class Lag(NamedTuple):
    """What a consumer has not processed yet; None of what nobody can tell now."""

    record_count: int | None
    seconds: float | None
    """How old the first record is that is not processed; 0 where none is left."""
    size: int | None
    """Bytes as they are stored."""


class Ends(NamedTuple):
    """What is known of a stream's records when its lags are asked for."""

    root: Node
    committed_next: int | None
    places: Mapping[int, TailPlace]
    """Where the offsets lie in the tail that `asked_of_tail` names, as far as the tail tells."""


def asked_of_tail(next_offset: int, root: Node, committed_next: int | None) -> int | None:
    """Tell which offset the tail has to be asked about for a position; None if none."""
    at = max(next_offset, root.next_offset)
    return None if committed_next is None or at >= committed_next else at


def lag_of(next_offset: int, ends: Ends, now: int) -> Lag:
    """Tell the lag of who goes on at `next_offset`; `now` is in ms since 1970.

    What retention removed is no lag: nobody can read it.
    """
    root, committed_next, places = ends
    at = max(next_offset, root.first_offset)
    record_count = None if committed_next is None else max(0, committed_next - at)
    if record_count == 0:
        return Lag(0, 0.0, 0)
    timestamp, size = published_after(root.entries, at)
    if record_count is None:
        return Lag(None, _age(timestamp, now), None)
    place = places.get(max(at, root.next_offset))
    if at >= root.next_offset:
        timestamp = None if place is None else place.timestamp
    if committed_next is not None and committed_next <= root.next_offset:
        unpublished: int | None = 0
    else:
        unpublished = None if place is None else place.size_after
    return Lag(
        record_count, _age(timestamp, now), None if unpublished is None else size + unpublished
    )


def published_after(entries: Entries, at: int) -> tuple[int | None, int]:
    """Tell the time of the published record at an offset, None if it is not published; and how many
    bytes of entries come from it on."""
    left = entries[(entries["next_offset"] > at) & (entries["kind"] != EntryKind.GAP)]
    if not len(left):
        return None, 0
    first = left[0]
    start, end = int(first["first_offset"]), int(first["next_offset"])
    done = max(0, at - start) / (end - start)
    began, ended = int(first["first_timestamp"]), int(first["last_timestamp"])
    size = int(first["byte_size"])
    after = int(left["byte_size"].sum()) - size
    return began + round((ended - began) * done), after + size - round(size * done)


def _age(timestamp: int | None, now: int) -> float | None:
    # Clocks differ: nothing is younger than now.
    return None if timestamp is None else max(0, now - timestamp) / 1000
