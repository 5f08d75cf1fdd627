"""Work out what a publish makes of a stream's record, its conditions, and whether it happened.

Each condition guards against something that the others let pass:

- the version: another root was published, and this plan does not hold what is in it;
- the epoch: a new owner came, and may not have confirmed what this plan holds;
- the intents: a fragment was given up meanwhile, so that its object will be deleted;
- the move and its session: it was given up meanwhile, so that its copies will be deleted, or another
  session is at it.
"""

from dataclasses import replace
from typing import Final

from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.manifest.tree.core.events import Publish, TakeOver
from bottomless_server.manifest.tree.core.takeovers import without_home

PAST_ROOT_COUNT: Final = 8
"""More publishes than can happen between a lost reply and the look that decides it, by one
mutator; with several processes the record still shows at least this many."""


@guard("the version in the EXEC of a publish")
def version_holds(record: StreamRecord, publish: Publish) -> bool:
    return record.version == publish.base.version


@guard("the epoch in the EXEC of a publish")
def epoch_holds(record: StreamRecord, publish: Publish) -> bool:
    return record.epoch <= publish.base.epoch


@guard("the intents in the EXEC of a publish")
def intents_hold(record: StreamRecord, publish: Publish) -> bool:
    return publish.uids <= {intent.uid for intent in record.intents}


@guard("the move and its session in the EXEC of a relocation")
def move_holds(record: StreamRecord, publish: Publish) -> bool:
    relocate = publish.relocate
    if relocate is None:
        return True
    # Its session may have said in the meantime that it is still there.
    mine = (relocate.move.copy, relocate.move.session)
    return mine in {(move.copy, move.session) for move in record.moves}


def all_hold(record: StreamRecord, publish: Publish) -> bool:
    """Whether a publish could be made part of this record."""
    holds = (version_holds, epoch_holds, intents_hold, move_holds)
    return all(one(record, publish) for one in holds)


def publish_in(record: StreamRecord, publish: Publish) -> StreamRecord:
    """The record with the new root in it; the conditions are the caller's."""
    past = record.past_roots if record.root is None else (*record.past_roots, record.root.uid)
    published = replace(
        record,
        version=publish.pointer.version,
        root=publish.pointer,
        past_roots=past[-PAST_ROOT_COUNT:],
        published_next=publish.next_offset,
        last_timestamp=max(record.last_timestamp, publish.last_timestamp),
        intents=tuple(intent for intent in record.intents if intent.uid not in publish.uids),
        epochs=_live_epochs(record.epochs, publish.next_offset),
    )
    if (relocate := publish.relocate) is not None:
        left = tuple(move for move in record.moves if move.copy != relocate.move.copy)
        published = replace(published, moves=left)
    return without_home(published) if isinstance(publish.edit, TakeOver) else published


def _live_epochs(epochs: tuple[EpochStart, ...], published_next: int) -> tuple[EpochStart, ...]:
    """Leave out epochs that ended: an epoch ends where the next one starts."""
    ended = sum(1 for start in epochs[1:] if start.first_offset <= published_next)
    return epochs[ended:]


def has_root(record: StreamRecord, uid: Uid) -> bool:
    return (record.root is not None and record.root.uid == uid) or uid in record.past_roots
