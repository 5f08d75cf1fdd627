"""Rounds and steps of somebody who has a store to himself: at a start, or with the service stopped."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.store.steps import Done, InRound, OnDisk, Step

T = TypeVar("T")
LOG_BYTES_MAX: Final = 16 * 2**20
"""The log of the ledger is checkpointed once it is longer: each round writes whole pages, so that of many
small ones would have ten times what is in the ledger, and the disk may have no room for that."""


@contextmanager
def a_round(ledger: Ledger) -> Iterator[int]:
    """A round of one change, with its number; it is durable after the block, or taken back."""
    number = ledger.begin()
    ledger.savepoint()
    try:
        yield number
    except BaseException:
        ledger.rollback()
        raise
    ledger.keep()
    ledger.commit()
    if ledger.log_size > LOG_BYTES_MAX:
        ledger.checkpoint()


def drive_alone(ledger: Ledger, steps: Generator[Step, Any, T]) -> T:
    """Do steps one after the other, and return their result. Nobody reads, so nobody is waited for."""
    sent: Any = None
    error: OSError | None = None
    while True:
        try:
            step = steps.send(sent) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        sent, error = None, None
        if isinstance(step, InRound):
            with a_round(ledger) as number:
                value = step.change(ledger)
            sent = Done(value, number)
        elif isinstance(step, OnDisk):
            try:
                sent = step.call()
            except OSError as failed:
                error = failed
