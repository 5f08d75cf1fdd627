"""Decide where a micro-batch ends, by how much it may take. Pure."""

from collections.abc import Callable, Iterable

from bottomless.spark.options import Limits
from bottomless.spark.plan import Stored


def admit(
    first_offset: int,
    end: int,
    limits: Limits,
    fragments: Iterable[Stored],
    tail_record_size: Callable[[int], float],
) -> int:
    """Choose the end (exclusive) of a batch that begins at `first_offset` and may reach `end`.

    Whole fragments are taken as long as they fit, and the last one in part, by its share of bytes;
    always at least one record. The tail, after the last fragment, counts as one fragment;
    `tail_record_size` estimates the bytes of a record there. `fragments` are asked for only as far
    as they are needed.
    """
    assert first_offset < end
    if limits.offsets is not None:
        end = min(end, first_offset + limits.offsets)
    if limits.size is None and limits.fragments is None:
        return end
    offset, left = first_offset, limits.size
    count = 0
    for fragment in fragments:
        if limits.fragments is not None and count == limits.fragments:
            return offset
        next_offset = min(fragment.next_offset, end)
        if left is not None:
            per_record = fragment.size / (fragment.next_offset - fragment.first_offset)
            # From where the batch is, over a gap before this fragment.
            start = max(offset, fragment.first_offset)
            if (next_offset - start) * per_record > left:
                return max(start + int(left / per_record), first_offset + 1)
            left -= int((next_offset - start) * per_record)
        offset = next_offset
        count += 1
        if offset == end:
            return end
    if limits.fragments is not None and count == limits.fragments:
        return offset
    if left is None:
        return end
    fitting = int(left / max(tail_record_size(offset), 1))
    return min(end, max(offset + fitting, first_offset + 1))
