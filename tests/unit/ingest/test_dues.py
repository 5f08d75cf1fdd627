"""Who is due first, beside a model that looks at everybody, and what finding it out costs.

At the bound of the process every new key looked at every stream: the checks before knew what was
forgotten, with two streams, and not what that cost.
"""

import random
from dataclasses import dataclass

import pytest

from bottomless_server.ingest.producers.dues import Dues


@dataclass(eq=False)
class Queue:
    """What it holds becomes due in its order."""

    times: list[int]

    def due_at(self) -> int | None:
        return self.times[0] if self.times else None


@pytest.mark.parametrize("seed", range(5))
def test_the_first_is_whoever_has_what_is_due_longest(seed: int) -> None:
    chance = random.Random(seed)
    dues, queues, now = Dues(Queue.due_at), [Queue([]) for _ in range(8)], 0
    for _ in range(3_000):
        now += chance.randint(0, 2)
        queue = chance.choice(queues)
        step = chance.random()
        if step < 0.5:
            queue.times.append(max([now + 5, *queue.times]))
        elif step < 0.6:
            queue.times = [chance.randint(now - 5, now + 20)]
        elif step < 0.65:
            dues.leave(queue)
            queues[queues.index(queue)] = queue = Queue([])
        elif step < 0.8 and queue.times:
            # What has become younger is found out when its turn comes.
            queue.times.pop(0)
            continue
        dues.note(queue)
        first = dues.first(now)
        due = [one.times[0] for one in queues if one.times and one.times[0] <= now]
        assert (first is None) == (not due)
        if first is not None:
            assert first in queues
            assert first.times[0] == min(due)
            if chance.random() < 0.5:
                first.times.pop(0)


def test_who_has_left_is_not_kept() -> None:
    dues = Dues(Queue.due_at)
    queues = [Queue([number]) for number in range(1_000)]
    for queue in queues:
        dues.note(queue)
    for queue in queues[:-1]:
        dues.leave(queue)
    assert len(dues._heap) <= 2
    assert dues.first(10_000) is queues[-1]
