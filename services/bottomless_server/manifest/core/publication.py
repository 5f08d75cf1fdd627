"""What a publish makes of a stream's record, and how to tell whether it happened."""

from dataclasses import replace
from typing import Final

from bottomless.model.names import Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.manifest.core.events import Publish

PAST_ROOT_COUNT: Final = 8
"""More publishes than can happen between a lost reply and the look that decides it, by one
mutator; with several processes the record still shows at least this many."""


def publish_in(record: StreamRecord, publish: Publish) -> StreamRecord:
    """The record with the new root in it; the conditions are the caller's."""
    past = record.past_roots if record.root is None else (*record.past_roots, record.root.uid)
    return replace(
        record,
        version=publish.pointer.version,
        root=publish.pointer,
        past_roots=past[-PAST_ROOT_COUNT:],
        published_next=publish.next_offset,
        last_timestamp=max(record.last_timestamp, publish.last_timestamp),
        intents=tuple(intent for intent in record.intents if intent.uid not in publish.uids),
        epochs=_live_epochs(record.epochs, publish.next_offset),
    )


def _live_epochs(epochs: tuple[EpochStart, ...], published_next: int) -> tuple[EpochStart, ...]:
    """Without those that ended: an epoch ends where the next one starts."""
    ended = sum(1 for start in epochs[1:] if start.first_offset <= published_next)
    return epochs[ended:]


def has_root(record: StreamRecord, uid: Uid) -> bool:
    return (record.root is not None and record.root.uid == uid) or uid in record.past_roots
