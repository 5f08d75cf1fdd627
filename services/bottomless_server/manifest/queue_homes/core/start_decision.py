"""Decide whether a start of a node of queues is let in: whether its directory is the newest copy.

A directory keeps the token of the last start that was let in on it. A copy, or a back-up that is put
back, has the token of an earlier start as soon as there was another one: what was confirmed since is
not in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bottomless.errors import Fenced
from bottomless.formats.queue_start import StartRecord
from bottomless.guards import guard
from bottomless.model.queue_start import QueueStart


class StartAsked(NamedTuple):
    """What a process asks for that has begun on the data directory of a node."""

    start: QueueStart
    """Its number means nothing: it is given one."""
    known: Sequence[str]
    """Tokens that the directory has: one of them is the newest, unless the directory is not."""
    accept_loss: bool = False
    """Whether an operator has said that this directory is to be the newest, whatever it lacks."""


def decide_start(
    before: StartRecord | None, asked: StartAsked, *, last: QueueStart | None
) -> StartRecord:
    """The newest start of a node after one has asked; `last` is the newest in the bucket.

    Raises:
        Fenced: the directory is older than the newest start; the facts say of that one where and when.
    """
    newest = newest_of(before, last)
    if newest is None:
        return StartRecord(asked.start._replace(number=1), noted=False)
    if newest.start.token == asked.start.token:
        return newest
    require_newest(newest.start, asked)
    number = newest.start.number + 1
    return StartRecord(asked.start._replace(number=number), noted=False)


def newest_of(before: StartRecord | None, last: QueueStart | None) -> StartRecord | None:
    """The newest start that is known: coordination may be an older copy, or have lost it."""
    if last is not None and (before is None or last.number > before.start.number):
        return StartRecord(last, noted=True)
    return before


@guard("the newest start of a node of queues")
def require_newest(newest: QueueStart, asked: StartAsked) -> None:
    """Refuse a directory that lacks what was done since the newest start of its node.

    Raises:
        Fenced
    """
    if newest.token not in asked.known and not asked.accept_loss:
        raise Fenced(
            "another copy of this data directory was started later",
            facts={"start": newest.number, "url": newest.url, "started_at": newest.started_at},
            retryable=False,
        )


def noted(before: StartRecord | None, record: StartRecord) -> StartRecord:
    """The newest start after the bucket says so; another one that came meanwhile stays."""
    same = before is not None and before.start == record.start
    return record._replace(noted=True) if same or before is None else before


def under_a_later_number(before: StartRecord | None, record: StartRecord) -> StartRecord:
    """The start with the next number, since the bucket says something else of this one."""
    later = record.start._replace(number=record.start.number + 1)
    same = before is None or before.start == record.start
    return StartRecord(later, noted=False) if same or before is None else before
