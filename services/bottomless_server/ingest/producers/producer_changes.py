"""Changes of what is known of a producer that come without an append: what is written of them.

Asked by the stream's appender, in order with its appends, against what is committed. `places` are
those that are left for new names by the other changes of a round.

On the record's path: beside it; asked by local/appender.py, for front/producer_routes.py and staged/commits.py.
"""

from dataclasses import replace

from bottomless.errors import Code, InvalidRequest, NotFound
from bottomless.model.chunk import AppendMode, TrackedEntry
from bottomless_server.core.tracking.known_producers import Producer, forgotten, tracked
from bottomless_server.core.tracking.open_commits import name_of_parts
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.places import Places, check_place
from bottomless_server.ingest.records.conditions import SEQUENCE_MAX, FromProducer


def raise_epoch(
    tracking: Tracking, producer_id: str, now: int, places: Places | None = None
) -> list[TrackedEntry]:
    """Entries that raise the epoch of a producer; one that is not known is known from then on.

    Raises:
        Overloaded: `quota-exceeded`.
        InvalidRequest: it was raised as often as can be.
    """
    before = tracking.producers.get(producer_id)
    if before is None:
        identity = FromProducer(producer_id, 0, AppendMode.PLAIN)
        check_place(tracking, identity, places or Places(tracking))
        raised = Producer(AppendMode.PLAIN, 1, None, 0, now)
    else:
        if before.epoch >= SEQUENCE_MAX:
            raise InvalidRequest("the epoch cannot be raised", code=Code.VALIDATION_FAILED)
        begins = 0 if before.last_sequence is None else before.last_sequence + 1
        raised = replace(before, epoch=before.epoch + 1, epoch_sequence=begins, timestamp=now)
    return list(tracked(producer_id, raised))


def forget(tracking: Tracking, producer_id: str, now: int) -> list[TrackedEntry]:
    """Entries that make a producer unknown.

    Raises:
        NotFound: `producer-not-found`.
    """
    names = [producer_id, name_of_parts(producer_id)]
    known = [name for name in names if name in tracking.producers]
    if not known:
        raise producer_not_found()
    return [forgotten(name, now) for name in known]


def note(
    tracking: Tracking, producer_id: str, epoch: int, now: int, places: Places | None = None
) -> list[TrackedEntry]:
    """Entries that make a producer known before the first part of a commit of its own, so that a
    question what was begun under its name finds it. A producer that is known counts as heard: the
    first part does not take the place of the last.

    Raises:
        Overloaded: `quota-exceeded`.
    """
    known = tracking.producers.get(producer_id)
    if known is None:
        identity = FromProducer(producer_id, epoch, AppendMode.PLAIN)
        check_place(tracking, identity, places or Places(tracking))
        known = Producer(AppendMode.PLAIN, epoch, None, 0, now)
    return list(tracked(producer_id, replace(known, timestamp=now)))


def producer_not_found() -> NotFound:
    return NotFound("the stream knows no such producer", code=Code.PRODUCER_NOT_FOUND)
