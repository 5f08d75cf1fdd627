"""What waits: for its round, in the line, or for messages of its queue, beside the line."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from bottomless_server.queues.rounds.work import Change


class Taking(Change, Protocol):
    """A change that takes messages for whoever asked, and may wait for some."""

    @property
    def queue_id(self) -> bytes: ...

    def is_empty(self, answer: Any) -> bool:
        """Whether there was nothing to take."""
        ...

    def give_back(self, answer: Any) -> Change | None:
        """What undoes an answer that nobody hears; None if there is nothing to undo."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """A change that waits for its round, or a receive that waits for messages."""

    change: Change
    future: "asyncio.Future[Any]"
    taking: Taking | None = None
    deadline: float = 0.0
    """Until when it may wait for messages, on the loop's clock."""
    found: Any = None
    """The empty answer that it has got so far."""
    timer: asyncio.TimerHandle | None = None

    def is_wanted(self) -> bool:
        return not self.future.done()


@dataclass(slots=True)
class Waiting:
    """Receives that wait for messages, by the queue."""

    jobs: dict[bytes, deque[Job]] = field(default_factory=dict)

    def add(self, queue_id: bytes, job: Job) -> None:
        self.jobs.setdefault(queue_id, deque()).append(job)

    def has(self, job: Job) -> bool:
        return job.taking is not None and job in self.jobs.get(job.taking.queue_id, ())

    def count(self, queue_id: bytes) -> int:
        return len(self.jobs.get(queue_id, ()))

    def total(self) -> int:
        return sum(map(len, self.jobs.values()))

    def remove(self, job: Job) -> None:
        assert job.taking is not None
        queue_id = job.taking.queue_id
        if job in (there := self.jobs.get(queue_id, deque())):
            there.remove(job)
            if not there:
                del self.jobs[queue_id]

    def first(self, queue_id: bytes, count: int) -> list[Job]:
        """Take out those that have waited longest, of those whose senders are still there."""
        there = self.jobs.get(queue_id, deque())
        found: list[Job] = []
        while there and len(found) < count:
            job = there.popleft()
            if job.is_wanted():
                found.append(job)
        if not there:
            self.jobs.pop(queue_id, None)
        return found

    def all(self) -> list[Job]:
        found = [job for there in self.jobs.values() for job in there]
        self.jobs.clear()
        return found
