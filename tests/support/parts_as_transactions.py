"""What a part of a request to a super stream would be without the guard of its own: an append with a
number like any other."""

from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.producers import Appended, New
from bottomless_server.ingest.producers.super_requests import Request, part_name
from bottomless_server.ingest.records.intake import Append


def as_a_transaction(
    tracking: Tracking, request: Request, layout: int, part: Append
) -> New | Appended:
    """The rule of an ordinary append with a number: a number that is not above the last one is
    taken for a repeat, whatever its body was."""
    known = tracking.producers.get(part_name(layout, request.producer_id))
    if known is None or known.last_sequence is None or known.last_sequence < request.last:
        return New()
    return Appended(None, 0, None, 0, part.record_count, replayed=True)
