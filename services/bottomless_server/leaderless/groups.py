"""How a flush is divided into the groups that one EXEC each commits.

An EXEC watches a bounded number of keys, and nobody else is served meanwhile. The pieces of one stream
may have more names than fit: then they go into several groups, one after the other and in their order.
Nothing needs them in one, since groups are committed in sequence, a later part waits with a stream
that waits, and the writer settles the flush with its last group only.
"""

from collections.abc import Collection, Hashable, Sequence
from typing import Final, NamedTuple

from bottomless.model.names import StreamId

GROUP_STREAM_COUNT_MAX: Final = 256
"""Streams of one EXEC: nobody else is served meanwhile."""
GROUP_KEY_COUNT_MAX: Final = 1_022
"""Tails and names of one EXEC, which watches 1,024 keys: the generation and the instance too."""


class Wanted(NamedTuple):
    """A piece of a flush, as far as dividing goes."""

    stream_id: StreamId
    names: Collection[Hashable]
    """Producers and keys of its appends; far fewer than one group holds."""


class Part(NamedTuple):
    """Pieces of one stream in one group."""

    stream_id: StreamId
    pieces: range
    """Their places in the flush."""


def groups(
    flush: Sequence[Wanted], stream_count_max: int = GROUP_STREAM_COUNT_MAX
) -> list[list[Part]]:
    """Divide pieces, which stand in the order of a directory: those of a stream beside each other.
    A group has at most so many streams.

    A stream that fits into a group of its own is in one group.
    """
    made: list[list[Part]] = []
    keys = GROUP_KEY_COUNT_MAX
    for part, count in _parts(flush):
        last = made[-1] if made else []
        again = bool(last) and last[-1].stream_id == part.stream_id
        if not last or again or len(last) == stream_count_max:
            keys = GROUP_KEY_COUNT_MAX
        if keys + count > GROUP_KEY_COUNT_MAX:
            made.append([])
            keys = 0
        made[-1].append(part)
        keys += count
    return made


def _parts(flush: Sequence[Wanted]) -> list[tuple[Part, int]]:
    """The runs of pieces of one stream that fit into one group, each with the keys that it needs."""
    parts: list[tuple[Part, int]] = []
    start, names = 0, set[Hashable]()
    for place, piece in enumerate(flush):
        assert len(piece.names) < GROUP_KEY_COUNT_MAX, "no group holds the names of this piece"
        more = names | set(piece.names)
        other = place > 0 and flush[place - 1].stream_id != piece.stream_id
        if place > start and (other or 1 + len(more) > GROUP_KEY_COUNT_MAX):
            parts.append((Part(flush[start].stream_id, range(start, place)), 1 + len(names)))
            start, more = place, set(piece.names)
        names = more
    if flush:
        parts.append((Part(flush[start].stream_id, range(start, len(flush))), 1 + len(names)))
    return parts
