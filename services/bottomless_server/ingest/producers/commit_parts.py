"""The parts of a commit that is too large for one append: what they are called, and how far it is.

The last part has the number that the commit was asked under, and it alone: so a number that
is known of a producer is that of a whole commit, in any log and at any owner. The parts before
it are appends of a producer of their own, whose name no request can have. Its epoch is the
commit's number, its numbers count the parts from 0. What is known of it goes where all that is
known of producers goes: into each segment, and with the stream to its next owner.

    commit 7 of "job", three parts:   "~5f…" epoch 7, number 0
                                      "~5f…" epoch 7, number 1
                                      "job"  number 7

A commit is open while some of its parts are stored and the last one is not. Until it is finished no
later number of its producer is taken, and its own number is no repeat.

Commits of earlier builds gave each part a number of the producer itself. Their plans are of
version 1, and what is begun by one is finished in its way, by a request for its number: the numbers
of its other parts may be the writer's next ones.
"""

from dataclasses import replace
from typing import NamedTuple

from bottomless.model.chunk import AppendMode
from bottomless_server.core.tracking.known_producers import Producer, Remembered
from bottomless_server.core.tracking.open_commits import name_of_parts
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.commit_plan import CommitPlan
from bottomless_server.ingest.records.conditions import FromProducer


class OpenCommit(NamedTuple):
    """A commit whose last part is missing."""

    number: int
    part_count: int
    """How many parts are stored, at least one."""


class Progress(NamedTuple):
    """How far the commit of a plan is."""

    start: int
    """The number of the first part that is not stored; 0 where none is, or where all are."""
    stored: tuple[Remembered, ...]
    """The parts before, as far as they are remembered."""


def open_commit(tracking: Tracking, producer_id: str) -> OpenCommit | None:
    """The commit of a producer that is begun and not whole, if there is one."""
    parts = tracking.producers.get(name_of_parts(producer_id))
    if parts is None or parts.last_sequence is None:
        return None
    last = _last_number(tracking.producers.get(producer_id))
    if last is not None and last >= parts.epoch:
        return None
    return OpenCommit(parts.epoch, parts.last_sequence + 1)


def stored_parts(tracking: Tracking, producer_id: str, number: int) -> tuple[Remembered, ...]:
    """The parts before the last of a commit, as far as they are remembered."""
    parts = tracking.producers.get(name_of_parts(producer_id))
    appends = () if parts is None else parts.appends
    return tuple(one for one in appends if one.epoch == number)


def parts_before(
    tracking: Tracking, producer_id: str, last: Remembered
) -> tuple[Remembered, ...] | None:
    """The parts of a whole commit before its last; None where not all of them are remembered."""
    stored = stored_parts(tracking, producer_id, last.sequence)
    if stored:
        return stored if stored[0].sequence == 0 else None
    parts = tracking.producers.get(name_of_parts(producer_id))
    # It was in one piece, unless parts of later commits are all that is remembered.
    if parts is None or tracking.bounds.has_all(parts.appends):
        return ()
    return () if parts.appends[0].first_offset < last.first_offset else None


def progress(plan: CommitPlan, tracking: Tracking) -> Progress:
    """How far a plan was followed, by what the log says."""
    if plan.epoch is None:
        return _progress_by_numbers(plan, tracking)
    begun = open_commit(tracking, plan.producer_id)
    if begun is None or begun.number != plan.number or begun.part_count >= len(plan.parts):
        return Progress(0, ())
    stored = stored_parts(tracking, plan.producer_id, plan.number)
    return Progress(begun.part_count, stored)


def place_in(plan: CommitPlan, stored: Remembered) -> int:
    """Find the part of a plan that an append is, by its number."""
    return stored.sequence - (plan.number if plan.epoch is None else 0)


def identity_of(plan: CommitPlan, number: int, asked: FromProducer) -> FromProducer:
    """The name and the number under which a part of a plan is appended."""
    if plan.epoch is None:
        return replace(asked, number=plan.number + number)
    if number == len(plan.parts) - 1:
        return replace(asked, parts_before=number)
    name = name_of_parts(plan.producer_id)
    return FromProducer(name, plan.number, AppendMode.TRANSACTION, number, part_of=asked)


def _progress_by_numbers(plan: CommitPlan, tracking: Tracking) -> Progress:
    known = tracking.producers.get(plan.producer_id)
    last = _last_number(known)
    end = plan.number + len(plan.parts)
    if known is None or last is None or not plan.number <= last < end - 1:
        return Progress(0, ())
    stored = tuple(one for one in known.appends if plan.number <= one.sequence <= last)
    return Progress(last + 1 - plan.number, stored)


def _last_number(known: Producer | None) -> int | None:
    if known is None or known.mode is not AppendMode.TRANSACTION:
        return None
    return known.last_sequence
