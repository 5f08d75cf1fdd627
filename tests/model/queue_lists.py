"""Queues as plain lists: what the engine of queues has to do, without a disk, rounds or a ledger.

Every operation is told the time, and answers what the engine has to answer. What leaves a queue
is in `leaving` until whoever drives this has seen it arrive.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from bottomless.model.queue import QueueConfig
from bottomless_server.queues.calls import OutMessage
from bottomless_server.queues.changes.storing import stored_size

Refusal = str
"""The code of a refusal."""


@dataclass
class Entry:
    """A message in one queue."""

    message_id: bytes
    sequence: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    priority: int
    state: str
    due_at: int | None
    expires_at: int | None
    published_at: int
    size: int
    deliveries: int = 0
    origin: str | None = None


@dataclass(frozen=True)
class Leaving:
    """A message on its way to a target."""

    kind: str
    target: str
    queue: str
    reason: str
    entry: Entry


@dataclass
class Known:
    """What a queue remembers of a publish."""

    body: Any
    ids: list[tuple[bytes, int]]
    until: int


@dataclass
class Totals:
    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    duplicates: int = 0
    rejected: int = 0
    purged: int = 0
    refused: int = 0


@dataclass
class QueueList:
    """One queue."""

    name: str
    queue_id: bytes
    config: QueueConfig
    version: int = 1
    epoch: int = 0
    """Counts purges: a receipt of before is good for nothing."""
    next_sequence: int = 0
    entries: list[Entry] = field(default_factory=list)
    seen: dict[Any, Known] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def ready(self) -> list[Entry]:
        there = [each for each in self.entries if each.state == "ready"]
        return sorted(there, key=lambda each: (-each.priority, each.sequence))

    def at(self, sequence: int) -> Entry | None:
        return next((each for each in self.entries if each.sequence == sequence), None)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.entries)

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.entries)


class Lists:
    """All queues of a tenant."""

    def __init__(self, dedup_count_max: int) -> None:
        self.queues: dict[str, QueueList] = {}
        self.leaving: list[Leaving] = []
        self.dedup_count_max = dedup_count_max

    # What becomes of one

    def leave(self, queue: QueueList, entry: Entry, reason: str) -> None:
        queue.entries.remove(entry)
        config = queue.config
        totals = queue.totals
        target: tuple[str, str] | None = None
        if reason == "acknowledged":
            totals.acked += 1
            if config.archive is not None:
                target = ("stream", config.archive.stream)
        elif config.dead_letter is not None:
            to = config.dead_letter
            target = ("queue", to.queue) if to.queue is not None else ("stream", str(to.stream))
            totals.dead_lettered += 1
        totals.expired += reason == "expired"
        totals.dropped += reason == "max-length"
        totals.rejected += reason == "rejected"
        if target is not None:
            self.leaving.append(Leaving(*target, queue.name, reason, replace(entry)))

    def back(self, queue: QueueList, entry: Entry, now: int, delay: int = 0) -> None:
        most = queue.config.max_deliveries
        if most is not None and entry.deliveries >= most:
            self.leave(queue, entry, "max-deliveries")
        elif entry.expires_at is not None and entry.expires_at <= now:
            self.leave(queue, entry, "expired")
        elif delay:
            entry.state, entry.due_at = "delayed", now + delay
        else:
            entry.state, entry.due_at = "ready", None

    def pass_time(self, now: int) -> None:
        for queue in self.queues.values():
            for entry in list(queue.entries):
                if entry.due_at is not None and entry.due_at <= now:
                    if entry.state == "in-flight":
                        self.back(queue, entry, now)
                    else:
                        entry.state, entry.due_at = "ready", None
            for entry in list(queue.entries):
                if entry.state != "in-flight" and (entry.expires_at or now + 1) <= now:
                    self.leave(queue, entry, "expired")
            queue.seen = {key: known for key, known in queue.seen.items() if known.until > now}

    # Publish

    def publish(
        self,
        names: list[str],
        messages: list[OutMessage],
        key: str | None,
        body: str,
    ) -> "Refusal | Plan":
        if any(name not in self.queues for name in names):
            return "queue-not-found"
        plan = Plan(names, messages, {}, {})
        for name in names:
            refusal = self._recognise(plan, self.queues[name], messages, key, (body, tuple(names)))
            if refusal is not None:
                return refusal
        count = len(names)
        drops: list[tuple[QueueList, Entry]] = []
        for name in names:
            queue = self.queues[name]
            config = queue.config
            sizes = [
                stored_size(one.headers, len(one.value), count, checksum=True)
                for number, one in enumerate(messages)
                if plan.is_new(name, number)
            ]
            if not sizes:
                continue
            bounds = ((1, max(sizes), "record"), (len(sizes), sum(sizes), "batch"))
            for number, size, what in bounds:
                if number > (config.max_messages or number) or size > (config.max_bytes or size):
                    return f"{what}-too-large"
            over = [
                max(0, has + sum_new - bound) if bound is not None else 0
                for has, sum_new, bound in (
                    (len(queue.entries), len(sizes), config.max_messages),
                    (queue.size, sum(sizes), config.max_bytes),
                )
            ]
            if not any(over):
                continue
            if config.overflow == "reject" or over[0] > len(queue.entries) or over[1] > queue.size:
                queue.totals.refused += len(sizes)
                return "queue-full"
            ready = queue.ready()
            while max(over) > 0:
                if not ready:
                    queue.totals.refused += len(sizes)
                    return "queue-full"
                entry = ready.pop(0)
                over = [over[0] - 1, over[1] - entry.size]
                drops.append((queue, entry))
        for queue, entry in drops:
            self.leave(queue, entry, "max-length")
        return plan

    def _recognise(
        self, plan: "Plan", queue: QueueList, messages: list[OutMessage], key: str | None, body: Any
    ) -> Refusal | None:
        asked: list[tuple[Any, Any, list[int]]] = []
        if key is not None:
            asked.append((("key", key), body, list(range(len(messages)))))
        else:
            for number, one in enumerate(messages):
                if one.dedup_id is not None:
                    asked.append((("id", one.dedup_id), one._replace(dedup_id=None), [number]))
        here: dict[Any, tuple[Any, list[int]]] = {}
        for found_key, found_body, numbers in asked:
            if found_key in here:
                if here[found_key][0] != found_body:
                    return "idempotency-mismatch"
                plan.same[queue.name, numbers[0]] = here[found_key][1][0]
                continue
            here[found_key] = (found_body, numbers)
            known = queue.seen.get(found_key)
            if known is None:
                new = sum(1 for each in plan.to_remember if each[0] == queue.name)
                full = len(queue.seen) + new >= self.dedup_count_max
                if queue.config.dedup_ms and full:
                    return "quota-exceeded"
                plan.to_remember.append((queue.name, found_key, found_body, numbers))
            elif known.body != found_body:
                return "idempotency-mismatch"
            else:
                for number, told in zip(numbers, known.ids, strict=True):
                    plan.known[queue.name, number] = told
        return None

    def published(
        self, plan: "Plan", answers: dict[str, list[tuple[bytes, int]]], now: int
    ) -> None:
        """Enter what was published under the ids that the engine gave."""
        counts = [
            sum(plan.is_new(name, number) for name in plan.names)
            for number in range(len(plan.messages))
        ]
        for name in plan.names:
            queue = self.queues[name]
            for number, one in enumerate(plan.messages):
                if plan.is_new(name, number):
                    size = stored_size(one.headers, len(one.value), counts[number], checksum=True)
                    message_id, sequence = answers[name][number]
                    assert sequence == queue.next_sequence
                    self.enter(queue, message_id, one, size, now)
                else:
                    queue.totals.duplicates += 1
        for name, key, body, numbers in plan.to_remember:
            queue = self.queues[name]
            if queue.config.dedup_ms:
                ids = [answers[name][number] for number in numbers]
                queue.seen[key] = Known(body, ids, now + queue.config.dedup_ms)

    def enter(
        self,
        queue: QueueList,
        message_id: bytes,
        one: OutMessage,
        size: int,
        now: int,
        origin: str | None = None,
    ) -> None:
        config = queue.config
        delay = config.delay_ms if one.delay_ms is None else one.delay_ms
        lives = [each for each in (one.ttl_ms, config.message_ttl_ms) if each is not None]
        queue.entries.append(
            Entry(
                message_id,
                queue.next_sequence,
                bytes(one.value),
                tuple(one.headers),
                one.priority,
                "delayed" if delay else "ready",
                now + delay if delay else None,
                now + min(lives) if lives else None,
                now,
                size,
                origin=origin,
            )
        )
        queue.next_sequence += 1
        queue.totals.published += 1

    # Receive and settle

    def receive(
        self, queue: QueueList, limit: int, size_max: int, visibility: int | None, now: int
    ) -> list[Entry]:
        taken: list[Entry] = []
        for entry in queue.ready()[:limit]:
            if taken and sum(each.size for each in taken) + entry.size > size_max:
                break
            taken.append(entry)
        for entry in taken:
            entry.state = "in-flight"
            entry.due_at = now + (queue.config.visibility_ms if visibility is None else visibility)
            entry.deliveries += 1
            queue.totals.delivered += 1
            queue.totals.redelivered += entry.deliveries > 1
        return taken


@dataclass
class Plan:
    """What a publish is about to do."""

    names: list[str]
    messages: list[OutMessage]
    known: dict[tuple[str, int], tuple[bytes, int]]
    same: dict[tuple[str, int], int]
    to_remember: list[tuple[str, Any, Any, list[int]]] = field(default_factory=list)

    def is_new(self, name: str, number: int) -> bool:
        return (name, number) not in self.known and (name, number) not in self.same
