"""The order in which a queue delivers, and what makes room in it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from bottomless.model.queue import QueueConfig


def delivery_order(priority: int, sequence: int) -> tuple[int, int]:
    """What ready items are sorted by: the highest priority first, then the lowest sequence.

    What comes back to a queue keeps its sequence, and with it its turn.
    """
    return -priority, sequence


class Excess(NamedTuple):
    """How much has to leave a queue before new messages have room in it."""

    message_count: int = 0
    size: int = 0
    """Bytes of their records."""


FITS: Final = Excess()


def can_ever_fit(config: QueueConfig, new_count: int, new_size: int) -> bool:
    """Whether new messages have room in the queue when it is empty; otherwise no waiting helps."""
    return new_count <= (config.max_messages or new_count) and new_size <= (
        config.max_bytes or new_size
    )


def excess(
    config: QueueConfig, count: int, size: int, new_count: int, new_size: int
) -> Excess | None:
    """What has to leave a queue of `count` messages with `size` bytes, so that new ones have room.

    FITS where nothing has to. None where they have none, whatever leaves: then, or where the queue
    refuses instead of dropping, the publish is refused as a whole.
    """
    over = [
        max(0, has + new - bound) if bound is not None else 0
        for has, new, bound in (
            (count, new_count, config.max_messages),
            (size, new_size, config.max_bytes),
        )
    ]
    needed = Excess(*over)
    if needed == FITS:
        return FITS
    if config.overflow == "reject" or over[0] > count or over[1] > size:
        return None
    return needed


def heads_to_drop(sizes: Iterable[int], needed: Excess) -> int:
    """How many of the first items leave, whose sizes come in their order, so that enough is gone.

    Fewer may be there than are needed, since nobody drops what is in flight.
    """
    number, count, size = 0, needed.message_count, needed.size
    sized: Iterator[int] = iter(sizes)
    while count > 0 or size > 0:
        first = next(sized, None)
        if first is None:
            return number
        number, count, size = number + 1, count - 1, size - first
    return number


def closes_circle(name: str, target: str, targets: Mapping[str, str]) -> bool:
    """Whether dead letters of a queue would come back to it, if they went to `target`.

    `targets` says where those of each other queue go that sends any to a queue.
    """
    seen = {name}
    while target not in seen:
        seen.add(target)
        following = targets.get(target)
        if following is None:
            return False
        target = following
    # A circle that others make already is theirs to break; this one has to be met at its beginning.
    return target == name
