"""The run of one stream in a round: which of its entries become fragments now, and what is left.

    published_next     first entry whose object was not taken
        |<------ run ------>|<-- left for another round -->|
        | fragment | fragm. |

A run is cut as a whole or not at all. It is cut when its oldest record has half of the age that the
stream allows: so a stream gets at most two fragments for each round that it would have begun itself,
and most streams that share objects are cut by the same rounds.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Final

from bottomless.model.chunk import ChunkFlags, ChunkHeader
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.uploader.compaction.core.waiting import Left, Place, Why

ASIDE_REST_MS: Final = 600_000
"""How long nobody looks, for a stream that is set aside, at the objects after its first one."""


def place_of(entry: TailEntry) -> Place:
    return Place(entry.instance, entry.sequence)


def unpublished(entries: Sequence[TailEntry], published_next: int) -> list[TailEntry]:
    """The entries of which no fragment has all; those below are leftovers that will be pruned."""
    return [entry for entry in entries if entry.next_offset > published_next]


def run_of(
    entries: Sequence[TailEntry], published_next: int, taken: Container[Place]
) -> list[TailEntry]:
    """The entries from the end of the manifest on whose objects are here, without a hole.

    `entries` are in the order of their offsets. One that begins after the end of the manifest, where
    none is before it, is not reached: what lies between is not known yet.
    """
    run: list[TailEntry] = []
    for entry in unpublished(entries, published_next):
        if place_of(entry) not in taken or entry.first_offset > published_next:
            break
        run.append(entry)
        published_next = entry.next_offset
    return run


def is_cut(
    run: Sequence[TailEntry], why: Why, *, waited_ms: int, max_age_ms: int, target_bytes: int
) -> bool:
    """Whether a run becomes fragments in this round. `waited_ms` is the age of its oldest record."""
    if not run:
        return False
    old = 2 * waited_ms >= max_age_ms
    return old or why.cuts_all or sum(entry.size for entry in run) >= target_bytes


def left_by(
    left: Sequence[TailEntry], *, now: int, waited_ms: int, max_age_ms: int
) -> dict[Place, Left]:
    """What a stream leaves of each object, and when it wants it: all of them with its oldest record,
    which has waited for `waited_ms`. `now` is of the clock of rounds.
    """
    if not left:
        return {}
    since = now - waited_ms
    return _at_once(left, Left(since + max_age_ms // 2, since + max_age_ms, 1))


def left_aside(left: Sequence[TailEntry], *, now: int, until: int) -> dict[Place, Left]:
    """What a stream that is set aside leaves of each object.

    The first is looked at when its time is over. The others are of no use before that, so they are
    looked at now and then only; but they are, since the stream may be gone meanwhile.
    """
    if not left:
        return {}
    later = now + ASIDE_REST_MS
    found = _at_once(left, Left(later, later, 0))
    found[place_of(left[0])] = Left(until, until, 0)
    return found


def _at_once(left: Sequence[TailEntry], one: Left) -> dict[Place, Left]:
    found: dict[Place, Left] = {}
    for entry in left:
        place = place_of(entry)
        before = found.get(place)
        found[place] = one if before is None else before.with_(one)
    return found


def batches_of(run: Sequence[TailEntry], target_bytes: int) -> Iterator[Sequence[TailEntry]]:
    """Divide a run into what is looked at together: about a fragment, and never less than an entry.
    Of tiny chunks what is known of each takes more room than they do."""
    start = size = 0
    for number, entry in enumerate(run):
        size += entry.size
        if size >= target_bytes:
            yield run[start : number + 1]
            start, size = number + 1, 0
    if start < len(run):
        yield run[start:]


def fragments_of(
    headers: Sequence[ChunkHeader], target_bytes: int, *, goes_on: bool = False
) -> Iterator[range]:
    """Divide the chunks of a run into fragments: each has `target_bytes`, or is the last, and ends
    with a whole append. Where the run `goes_on` what is left over comes with the next chunks."""
    start = size = 0
    for number, header in enumerate(headers):
        size += header.total_size
        if size >= target_bytes and ChunkFlags.MORE_FOLLOWS not in header.flags:
            yield range(start, number + 1)
            start, size = number + 1, 0
    if start < len(headers) and not goes_on:
        yield range(start, len(headers))
