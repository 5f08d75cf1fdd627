"""Publish: messages are stored in all the queues that a request names, or in none.

Each queue answers repeats from its own memory. A message that one queue knows and another does not
is stored in the other, under the id that it has in this request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from typing import Final

from bottomless.errors import Code, Fault, InvalidRequest, Overloaded
from bottomless.guards import guard
from bottomless.model.queue import QueueConfig
from bottomless_server.core.faults import FAULT_COUNT_MAX
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.calls import (
    OutMessage,
    PublishAnswer,
    PublishedMessage,
    PublishedTo,
    PublishRequest,
)
from bottomless_server.queues.changes.fates import carry_out, config_of
from bottomless_server.queues.changes.storing import Copy, Fresh, store_messages, stored_size
from bottomless_server.queues.core.life import dropped, published
from bottomless_server.queues.core.message_ids import first_id
from bottomless_server.queues.core.order import FITS, Excess, can_ever_fit, excess, heads_to_drop
from bottomless_server.queues.core.repeats import (
    HASH_SIZE,
    Repeat,
    decide_repeat,
    ids_of,
    key_hash,
)
from bottomless_server.queues.ledger.base import QueueRow, Seen, Totals
from bottomless_server.queues.rounds.work import Work

_ITEM_OVERHEAD: Final = 200
"""Bytes that one message takes in memory for each queue, beside its own."""
_DROP_COUNT_MAX: Final = 10_000
"""Messages that one publish drops at most; a queue whose bound was lowered comes down to it with
several."""
_DROP_PAGE: Final = 1_000


@dataclass(slots=True)
class _Queue:
    """What a publish comes to in one queue."""

    row: QueueRow
    config: QueueConfig
    answers: dict[int, PublishedMessage] = field(default_factory=dict)
    """Answers for messages that it knows already, by their place in the request."""
    to_remember: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """Hashes of the key and of the body of a new message, or of a request at the place of its first."""
    same_as: dict[int, int] = field(default_factory=dict)
    """Repeats of an earlier message of the same request."""

    def takes(self, number: int) -> bool:
        return number not in self.answers and number not in self.same_as


@dataclass(frozen=True)
class Publish:
    """Store messages; the answer is a PublishAnswer."""

    request: PublishRequest
    randomness: bytes
    """10 random bytes, of which the ids are made."""
    checksum: bool = True
    dedup_count_max: int = 1_000_000

    @cached_property
    def size(self) -> int:
        """Bytes that it keeps in memory while it waits."""
        count = len(self.request.queues)
        return sum(
            stored_size(one.headers, len(one.value), count, checksum=True) + count * _ITEM_OVERHEAD
            for one in self.request.messages
        )

    def apply(self, work: Work) -> PublishAnswer:
        queues = [self._queue(work, name) for name in self.request.queues]
        for queue in queues:
            self._recognise(work, queue)
        for queue in queues:
            self._make_room(work, queue, len(queues))
        told = self._store(work, queues)
        answer = PublishAnswer(
            [self._answer(queue, told) for queue in queues],
            replayed=self.request.key is not None and not told,
        )
        for queue, of_queue in zip(queues, answer.queues, strict=True):
            self._remember(work, queue, of_queue.messages)
        return answer

    def _queue(self, work: Work, name: str) -> _Queue:
        row = work.ledger.queue_named(self.request.tenant, name)
        if row is None:
            raise queue_not_found(name)
        work.require_registry(row.queue_id)
        return _Queue(row, config_of(row.config))

    # Repeats

    def _recognise(self, work: Work, queue: _Queue) -> None:
        """Find out what of the request the queue knows already."""
        request = self.request
        if request.key is not None:
            key = key_hash(request.principal, request.key)
            body = _hash_of_request(request)
            seen = self._seen(work, queue, key, body, 0, _other_request)
            if seen is None:
                queue.to_remember[0] = (key, body)
                return
            ids = ids_of(seen.msg_id, seen.message_count)
            for number, msg_id in enumerate(ids):
                queue.answers[number] = PublishedMessage(msg_id, seen.sequence + number, True)
            return
        first_with: dict[bytes, tuple[int, bytes]] = {}
        for number, message in enumerate(request.messages):
            if message.dedup_id is None:
                continue
            key, body = _hash_of_dedup_id(message.dedup_id), _hash_of_message(message)
            if key in first_with:
                first, other = first_with[key]
                if other != body:
                    raise _other_message(number)
                queue.same_as[number] = first
                continue
            first_with[key] = (number, body)
            other_message = partial(_other_message, number)
            seen = self._seen(work, queue, key, body, len(queue.to_remember), other_message)
            if seen is None:
                queue.to_remember[number] = (key, body)
            else:
                queue.answers[number] = PublishedMessage(seen.msg_id, seen.sequence, True)

    def _seen(
        self,
        work: Work,
        queue: _Queue,
        key: bytes,
        body: bytes,
        new_count: int,
        mismatch: Callable[[], InvalidRequest],
    ) -> Seen | None:
        """What the queue remembers of a repeat; None of what is new.

        Raises:
            InvalidRequest: `idempotency-mismatch`.
            Overloaded: it remembers as many as it can.
        """
        seen = work.ledger.seen(queue.row.queue_id, key)
        known = None if seen is None else (seen.body_hash, seen.until)
        count = queue.row.remembered + new_count
        bound = self.dedup_count_max if queue.config.dedup_ms else count + 1
        repeat = remembered(known, body, work.now, count, bound)
        if repeat is Repeat.OTHER:
            raise mismatch()
        if repeat is Repeat.FULL:
            raise Overloaded(
                "a queue remembers as many publishes as it can, and forgets none of them early",
                code=Code.QUOTA_EXCEEDED,
                retry_after_seconds=5,
                facts={"queue": queue.row.name, "bound": self.dedup_count_max},
            )
        return seen if repeat is Repeat.SAME else None

    def _remember(self, work: Work, queue: _Queue, answers: Sequence[PublishedMessage]) -> None:
        duplicates = sum(answer.duplicate for answer in answers)
        if duplicates:
            work.count(queue.row.queue_id, Totals(duplicates=duplicates))
        if not queue.config.dedup_ms:
            return
        until = work.now + queue.config.dedup_ms
        count = len(answers) if self.request.key is not None else 1
        for number, (key, body) in queue.to_remember.items():
            first = answers[number]
            seen = Seen(key, body, first.sequence, first.message_id, count, until)
            work.ledger.remember(queue.row.queue_id, seen)

    # Bounds

    def _make_room(self, work: Work, queue: _Queue, queue_count: int) -> None:
        """Let the first messages leave, where the queue is configured to and has to.

        Raises:
            InvalidRequest: `record-too-large` or `batch-too-large`: an empty queue had no room either.
            Overloaded: `queue-full`.
        """
        if queue.config.max_messages is None and queue.config.max_bytes is None:
            return
        by_number = {
            number: stored_size(one.headers, len(one.value), queue_count, checksum=self.checksum)
            for number, one in enumerate(self.request.messages)
            if queue.takes(number)
        }
        if not by_number:
            return
        _require_chance(queue, by_number)
        sums, size = queue.row.sums, sum(by_number.values())
        needed = excess(queue.config, sums.item_count, sums.bytes, len(by_number), size)
        # Beside the others: one full queue refuses the whole request, and is the one that counts it.
        full = Totals(refused=len(by_number))
        if needed is None:
            work.count_if_refused(queue.row.queue_id, full)
            raise _full(queue.row)
        left = _DROP_COUNT_MAX
        while needed != FITS and left > 0:
            there = work.ledger.ready(queue.row.inside, min(_DROP_PAGE, left))
            if not there:
                # What is left is in flight or delayed: nobody drops that.
                work.count_if_refused(queue.row.queue_id, full)
                raise _full(queue.row)
            number = heads_to_drop((each.message.size for each in there), needed)
            first = there[:number]
            carry_out(work, queue.row, [(each, dropped(queue.config)) for each in first])
            needed = Excess(
                max(needed.message_count - number, 0),
                max(needed.size - sum(each.message.size for each in first), 0),
            )
            left -= number

    # What is new

    def _store(
        self, work: Work, queues: Sequence[_Queue]
    ) -> dict[int, tuple[bytes, dict[bytes, int]]]:
        """Store what is new somewhere; returns the id and the sequences of each, by its place in
        the request.
        """
        messages = self.request.messages
        ids = ids_of(first_id(work.now, self.randomness), len(messages))
        fresh: dict[int, Fresh] = {}
        # Most messages ask for nothing of their own: then they are alike in all queues.
        plain = [_copy(work, queue, _PLAIN) for queue in queues]
        for number, message in enumerate(messages):
            own = message.delay_ms is not None or message.ttl_ms is not None
            copies = [
                _copy(work, queue, message) if own else alike
                for queue, alike in zip(queues, plain, strict=True)
                if queue.takes(number)
            ]
            if copies:
                fresh[number] = Fresh(
                    ids[number],
                    message.content,
                    message.priority,
                    None if message.ttl_ms is None else work.now + message.ttl_ms,
                    tuple(message.headers),
                    message.value,
                    copies,
                    None if message.delay_ms is None else work.now + message.delay_ms,
                )
        if not fresh:
            return {}
        sequences = store_messages(work, list(fresh.values()), checksum=self.checksum)
        return {
            number: (ids[number], of_message)
            for number, of_message in zip(fresh, sequences, strict=True)
        }

    def _answer(
        self, queue: _Queue, told: dict[int, tuple[bytes, dict[bytes, int]]]
    ) -> PublishedTo:
        answers: list[PublishedMessage] = []
        for number in range(len(self.request.messages)):
            if number in queue.answers:
                answers.append(queue.answers[number])
            elif number in queue.same_as:
                answers.append(answers[queue.same_as[number]]._replace(duplicate=True))
            else:
                msg_id, sequences = told[number]
                answers.append(PublishedMessage(msg_id, sequences[queue.row.queue_id], False))
        return PublishedTo(queue.row.name, queue.row.queue_id, answers)


@guard("a repeat of a publish is told what the first one was told")
def remembered(
    known: tuple[bytes, int] | None, body_hash: bytes, now: int, count: int, count_max: int
) -> Repeat:
    """What a publish with a key is, by what its queue remembers."""
    return decide_repeat(known, body_hash, now, count, count_max)


_PLAIN: Final = OutMessage(b"")


def _copy(work: Work, queue: _Queue, message: OutMessage) -> Copy:
    life = published(queue.config, work.now, delay_ms=message.delay_ms, ttl_ms=message.ttl_ms)
    return Copy(queue.row, life)


def _hash_of_request(request: PublishRequest) -> bytes:
    """What a repeat of a request has too: it is bound to its queues and to its body."""
    names = "\n".join(sorted(request.queues)).encode()
    return sha256(b"r%d:%s%s" % (len(names), names, request.body_hash)).digest()[:HASH_SIZE]


def _hash_of_dedup_id(dedup_id: str) -> bytes:
    # No key of a request has this hash: those begin with a number.
    return sha256(b"d" + dedup_id.encode()).digest()[:HASH_SIZE]


def _hash_of_message(message: OutMessage) -> bytes:
    """What a repeat of a message has too: all that it is, but for its `dedup_id`."""
    found = sha256(b"m")
    numbers = (message.content, message.priority, message.delay_ms, message.ttl_ms)
    found.update(repr([None if each is None else int(each) for each in numbers]).encode())
    for name, value in message.headers:
        for part in (name.encode(), value):
            found.update(b"%d:" % len(part))
            found.update(part)
    found.update(b"=")
    found.update(message.value)
    return found.digest()[:HASH_SIZE]


def _other_request() -> InvalidRequest:
    return InvalidRequest("this key was used for another body", code=Code.IDEMPOTENCY_MISMATCH)


def _other_message(number: int) -> InvalidRequest:
    """The answer to a `dedup_id` of another message, which says of which message of the request."""
    sentence = "this dedup_id was used for a message that is not the same"
    fault = Fault(Code.IDEMPOTENCY_MISMATCH, sentence, f"/messages/{number}/dedup_id")
    return InvalidRequest(sentence, code=Code.IDEMPOTENCY_MISMATCH, faults=[fault])


def _require_chance(queue: _Queue, sizes: Mapping[int, int]) -> None:
    """Refuse what an empty queue had no room for either, so that nobody tries it again.

    `sizes` are those of the records that are new in the queue, by the place of the message.
    """
    config = queue.config
    if can_ever_fit(config, len(sizes), sum(sizes.values())):
        return
    bounds = {"max_messages": config.max_messages, "max_bytes": config.max_bytes}
    told = {name: bound for name, bound in bounds.items() if bound is not None}
    facts = {"queue": queue.row.name, **told}
    sentence = "a message alone is larger than all that its queue may have"
    faults = [
        Fault(Code.RECORD_TOO_LARGE, sentence, f"/messages/{number}")
        for number, size in sizes.items()
        if not can_ever_fit(config, 1, size)
    ][:FAULT_COUNT_MAX]
    if faults:
        raise InvalidRequest(sentence, code=Code.RECORD_TOO_LARGE, faults=faults, facts=facts)
    raise InvalidRequest(
        "the messages are more together than their queue may have: publish fewer at once",
        code=Code.BATCH_TOO_LARGE,
        facts=facts,
    )


def _full(row: QueueRow) -> Overloaded:
    return Overloaded(
        "the queue has as many messages or bytes as it may have",
        code=Code.QUEUE_FULL,
        retry_after_seconds=1,
        facts={"queue": row.name},
    )
