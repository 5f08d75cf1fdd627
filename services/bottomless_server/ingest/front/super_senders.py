"""The producer that numbers a request to a super stream, as the headers of the request name it.

On the record's path: beside super_produce.py.
"""

from typing import Final

from bottomless.model.chunk import AppendMode
from bottomless_server.core.faults import bad_header
from bottomless_server.ingest.records.conditions import Conditions, FromProducer

PRODUCER_ID_SIZE_MAX: Final = 240
"""Characters of the name of a producer of super streams: ours are longer, by the layout."""


def sender_of(conditions: Conditions) -> FromProducer | None:
    """The producer that numbers a request; None if it has no numbers.

    Raises:
        InvalidRequest: `bad-header`: conditions that one stream alone can look after.
    """
    identity = conditions.identity
    if conditions.expected_offset is not None:
        raise bad_header("stream-expected-offset", _ONE_STREAM)
    if identity is None:
        return None
    if not isinstance(identity, FromProducer):
        raise bad_header("idempotency-key", _ONE_STREAM)
    if identity.mode is not AppendMode.STRICT:
        header = "txn-number" if identity.mode is AppendMode.TRANSACTION else "producer-id"
        raise bad_header(header, f"{_ONE_STREAM}; number the records by Producer-Seq")
    check_producer_id(identity.producer_id)
    return identity


_ONE_STREAM: Final = "goes with appends to one stream, and not to a super stream"


def check_producer_id(producer_id: str) -> None:
    """Refuse a name under which nothing could be kept.

    Raises:
        InvalidRequest: `bad-header`.
    """
    if len(producer_id) > PRODUCER_ID_SIZE_MAX:
        sentence = f"must have at most {PRODUCER_ID_SIZE_MAX} characters, to a super stream"
        raise bad_header("producer-id", sentence)
