"""Queues are made, changed, emptied and deleted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from bottomless.errors import Code, Exists, InvalidRequest, NotServed, Overloaded, WrongOffset
from bottomless.model.closed_schema import refused
from bottomless.model.limits import QUEUE_COUNT_MAX
from bottomless.model.queue import (
    QueueConfig,
    encode_queue_config,
    patch_queue_config,
    queue_config_differences,
)
from bottomless_server.core.not_found import queue_not_found
from bottomless_server.queues.changes.fates import config_of, live_queue
from bottomless_server.queues.core.order import closes_circle
from bottomless_server.queues.ledger.base import Ledger, QueueRow, Totals
from bottomless_server.queues.rounds.work import Work

_PAGE: Final = 1_000
_WAKE_ALL: Final = 2**31
_PURGE_COUNT: Final = 5_000
"""Damaged messages that are removed in one round."""


@dataclass(frozen=True)
class CreateQueue:
    """Make a queue; the answer is its row, and whether it is new."""

    queue_id: bytes
    tenant: str
    name: str
    config: QueueConfig
    size: int = 0

    def apply(self, work: Work) -> tuple[QueueRow, bool]:
        ledger = work.ledger
        there = ledger.queue_named(self.tenant, self.name)
        if there is not None:
            differences = queue_config_differences(config_of(there.config), self.config)
            if differences:
                raise Exists(
                    "the queue exists with another configuration; PATCH changes it",
                    code=Code.QUEUE_EXISTS,
                    facts={"differences": differences},
                )
            work.require_registry(there.queue_id)
            return there, False
        if ledger.queue_count(self.tenant) >= QUEUE_COUNT_MAX:
            raise Overloaded(
                "the tenant has as many queues as it may have",
                code=Code.QUOTA_EXCEEDED,
                facts={"bound": QUEUE_COUNT_MAX},
            )
        check_circle(ledger, self.tenant, self.name, self.config)
        row = ledger.create_queue(self.queue_id, self.tenant, self.name, encoded(self.config))
        return row, True


@dataclass(frozen=True)
class UpdateQueue:
    """Apply a merge patch to one version of a queue's configuration; the answer is its row."""

    queue_id: bytes
    patch: Any
    version: int
    size: int = 0

    def apply(self, work: Work) -> QueueRow:
        row = live_queue(work, self.queue_id)
        if row.version != self.version:
            raise changed_meanwhile()
        work.require_registry(row.queue_id)
        before = config_of(row.config)
        config = patch_queue_config(before, self.patch)
        if not queue_config_differences(before, config):
            return row
        check_circle(work.ledger, row.tenant, row.name, config)
        work.ledger.set_config(row.queue_id, encoded(config))
        return live_queue(work, self.queue_id)


@dataclass(frozen=True)
class DeleteQueue:
    """Delete a queue with all that is in it; the answer is its row before."""

    tenant: str
    name: str
    if_empty: bool = False
    size: int = 0

    def apply(self, work: Work) -> QueueRow:
        row = work.ledger.queue_named(self.tenant, self.name)
        if row is None:
            raise queue_not_found()
        if self.if_empty and row.sums.item_count:
            raise WrongOffset("the queue has messages", code=Code.QUEUE_NOT_EMPTY)
        users = [
            other.name
            for other in _all_queues(work.ledger, self.tenant)
            if other.name != self.name and _sends_to(other.config, self.name)
        ]
        if users:
            raise WrongOffset(
                "dead letters of another queue go to this one",
                code=Code.QUEUE_IN_USE,
                facts={"queue": users[0], "count": len(users)},
            )
        work.ledger.delete_queue(row.queue_id)
        work.needs_upkeep = True
        # Who waits for its messages is told that it is gone.
        work.wake(row.queue_id, _WAKE_ALL)
        return row


@dataclass(frozen=True)
class PurgeQueue:
    """Remove everything that is in a queue; the answer says how many messages."""

    queue_id: bytes
    size: int = 0

    def apply(self, work: Work) -> int:
        row = live_queue(work, self.queue_id)
        work.require_registry(row.queue_id)
        work.needs_upkeep = True
        purged = work.ledger.purge(row.queue_id)
        if purged:
            work.count(row.queue_id, Totals(purged=purged))
        return purged


@dataclass(frozen=True)
class PurgeDamaged:
    """Remove some of the damaged messages of a queue; none is left where the answer is below `count`."""

    queue_id: bytes
    count: int = _PURGE_COUNT
    size: int = 0

    def apply(self, work: Work) -> int:
        row = live_queue(work, self.queue_id)
        there = work.ledger.damaged(row.inside, self.count)
        work.ledger.remove_items(there)
        if there:
            work.count(row.queue_id, Totals(purged=len(there)))
        return len(there)


def encoded(config: QueueConfig) -> str:
    """A configuration as the ledger keeps it."""
    return orjson.dumps(encode_queue_config(config)).decode()


def changed_meanwhile() -> WrongOffset:
    return WrongOffset("the queue was changed meanwhile", code=Code.ETAG_MISMATCH)


def check_circle(ledger: Ledger, tenant: str, name: str, config: QueueConfig) -> None:
    """Refuse a configuration with which dead letters would go round for ever.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    target = None if config.dead_letter is None else config.dead_letter.queue
    if target is not None and closes_circle(name, target, _Targets(ledger, tenant)):
        raise circle()


def circle() -> InvalidRequest:
    return refused(
        "dead-letter-circle",
        "dead letters of this queue would come back to it",
        "/dead_letter/queue",
    )


class _Targets(Mapping[str, str]):
    """Where the dead letters of each queue of a tenant go, if they go to a queue; each is looked up."""

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant

    def __getitem__(self, name: str) -> str:
        row = self._ledger.queue_named(self._tenant, name)
        try:
            target = None if row is None else config_of(row.config).dead_letter
        except NotServed:
            # Nothing leaves it before the release is back that can read it.
            target = None
        if target is None or target.queue is None:
            raise KeyError(name)
        return target.queue

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in _all_queues(self._ledger, self._tenant))

    def __len__(self) -> int:
        return self._ledger.queue_count(self._tenant)


def _all_queues(ledger: Ledger, tenant: str) -> Iterator[QueueRow]:
    after = ""
    while page := ledger.queues(tenant, after, _PAGE):
        yield from page
        after = page[-1].name


def _sends_to(config: str, name: str) -> bool:
    # Most configurations do not have the name anywhere: those are not read.
    if name not in config:
        return False
    try:
        target = config_of(config).dead_letter
    except NotServed:
        return True
    return target is not None and target.queue == name
