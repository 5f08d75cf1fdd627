"""The events that a keeper is told, and the actions that it asks for."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import GapReason, Node
from bottomless.model.names import Uid
from bottomless.model.stream import RootPointer, StreamRecord
from bottomless.model.tiers import Move
from bottomless_server.tree.drive_loss import Lost
from bottomless_server.tree.rebalance import SealedNode
from bottomless_server.tree.relocate import Relocated
from bottomless_server.tree.retention import Cut, Retired

# Edits: other changes of the manifest than a run at its end


@dataclass(frozen=True, slots=True)
class CutFront:
    """Retention and trim: the oldest entries go."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class Empty:
    """Trim of everything that is published; the end stays where it is."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The end of a takeover, after its fence: a gap up to `next_offset`, and no home."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class AcceptGap:
    """An operator gave up what neither the manifest nor the owner's log holds, or what is damaged in
    the tail of a leaderless stream: a gap up to `next_offset`.
    """

    next_offset: int
    reason: GapReason = GapReason.LOCAL_LOG_LOST


@dataclass(frozen=True, slots=True)
class FirstRoot:
    """A stream's first root, which has no entries: the bucket has it before any fragment."""


@dataclass(frozen=True, slots=True)
class Relocate:
    """The copies of a move are named instead of what they were made from, and the move ends."""

    move: Move
    relocated: Relocated


@dataclass(frozen=True, slots=True)
class LoseDrive:
    """Gaps are in the place of fragments that lay on a drive which is lost."""

    lost: Lost


Edit = CutFront | Empty | TakeOver | AcceptGap | FirstRoot | Relocate | LoseDrive


# Events


@dataclass(frozen=True, slots=True)
class FragmentsRegistered:
    """The objects of these fragments are durable; `session` asked for their uids."""

    session: str | None
    """None where the resolver adopted them: their intents may be of any session."""
    fragments: tuple[FragmentInfo, ...]


@dataclass(frozen=True, slots=True)
class EditAsked:
    """Publish this edit; it was worked out for exactly the manifest that the keeper has now."""

    edit: Edit


@dataclass(frozen=True, slots=True)
class TimeReached:
    """The time is `now`: all that was to be done by then is due."""


@dataclass(frozen=True, slots=True)
class Published:
    """The planned root is the stream's root: this is the record that says so."""

    record: StreamRecord


@dataclass(frozen=True, slots=True)
class Failed:
    """The planned root was certainly not published, and nothing else changed: try again."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The stream as it is now, read anew; whatever was planned was certainly not published."""

    record: StreamRecord
    root: Node


Event = FragmentsRegistered | EditAsked | TimeReached | Published | Failed | Resolved


# Actions


class Why(StrEnum):
    """Reasons to refuse a fragment."""

    FENCED = "its epoch did not write all of its offsets"
    OLD_SESSION = "a newer uploader session has begun"
    NO_INTENT = "its uid is not among the live intents"
    TAKEN = "its offsets belong to another fragment"
    FULL = "too many fragments wait for the run to close"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse fragments that are not held (any more). One whose intent is used up may have been
    applied.
    """

    fragments: tuple[FragmentInfo, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class PublishAt:
    """Send TimeReached at this time, ms since 1970."""

    at: int


@dataclass(frozen=True, slots=True)
class PutGroup:
    group: SealedNode


@dataclass(frozen=True, slots=True)
class PutRoot:
    root: SealedNode


@dataclass(frozen=True, slots=True)
class Publish:
    """Make `pointer` the stream's root in one transaction, if nothing came between."""

    base: StreamRecord
    """The record for which this was planned: its version and epoch are the condition."""
    pointer: RootPointer
    next_offset: int
    last_timestamp: int
    uids: frozenset[Uid]
    """Must be among the live intents, and leave them in the same transaction."""
    edit: Edit | None = None
    retired: tuple[Retired, ...] = ()
    """Entries that become unreachable; they go into the delete queue in the same transaction."""

    @property
    def displaced(self) -> tuple[np.void, ...]:
        """Entries of single objects that are not named any more: what was below them still is."""
        match self.edit:
            case Relocate(_, relocated):
                return relocated.displaced
            case LoseDrive(lost):
                return lost.displaced
            case _:
                return ()

    @property
    def relocate(self) -> Relocate | None:
        """The edit, if it is the end of a move."""
        return self.edit if isinstance(self.edit, Relocate) else None


Action = Refuse | PublishAt | PutGroup | PutRoot | Publish
