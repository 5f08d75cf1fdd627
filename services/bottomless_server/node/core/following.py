"""Decide what a log that follows an owner's keeps, and what it takes of what is sent to it.

A follower's log has the owner's files, byte for byte; which of them is the
owner's is said by the record. Within an epoch one node writes, and nothing that it sent is written
anew: so two logs that hold one epoch at one place hold the same bytes there. What may differ are
chunks of an owner of the past that the owner of now never had, or has cut: an opening finds these.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from bottomless.formats.segment import HEADER_SIZE
from bottomless.guards import guard
from bottomless_server.protocol.replica import NOWHERE, Opening, Place, Taken


class Run(NamedTuple):
    """Chunks of one epoch in one segment, without others between them."""

    epoch: int
    end: Place
    next_offset: int


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment that a follower holds."""

    first_offset: int
    runs: tuple[Run, ...]
    """In their order; their epochs rise."""

    @property
    def next_offset(self) -> int:
        """Where its records end."""
        return self.runs[-1].next_offset if self.runs else self.first_offset

    @property
    def end(self) -> Place:
        """Where its chunks end."""
        return self.runs[-1].end if self.runs else Place(self.first_offset, HEADER_SIZE)


@dataclass(frozen=True, slots=True)
class Held:
    """What a follower's disk says of a stream."""

    epoch: int = 0
    """The highest that was opened here, or that a chunk has."""
    committed_next: int = 0
    """The highest bound that it was told, as far as its checkpoint has it."""
    segments: tuple[HeldSegment, ...] = ()
    """Oldest first, each beginning where the one before ends."""

    @property
    def next_offset(self) -> int:
        """Where its records end; 0 of none."""
        return self.segments[-1].next_offset if self.segments else 0


class LastOwned(NamedTuple):
    """What a node knows of its last time as the owner of a stream, since its process began."""

    epoch: int = 0
    """The epoch under which it owned the stream; 0 if it did not."""
    shown_next: int = 0
    """The offset up to which it has shown records."""
    shown: Place = NOWHERE
    """The place where the last chunk ends that it has shown, or that was shown before; also one without records."""


NEVER_OWNED: Final = LastOwned()


class OpenRefusal(StrEnum):
    """Why a follower does not open its log."""

    FENCED = "fenced"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Opened:
    """What a follower has to do, each durable before the next: write a checkpoint with the epoch and,
    where it cuts, the lower place; remove; cut. Its log then is `held`."""

    held: Held
    set_aside: bool
    """Whether nothing of its log stays although not all of it is published: it is not removed but
    put aside."""
    cut: Place | None
    """Where the log ends before it ended before the opening; None if nothing is cut."""

    @property
    def end(self) -> Place | None:
        """Where the owner goes on; None of an empty log, which begins at the segment that holds the
        published end."""
        return self.held.segments[-1].end if self.held.segments else None


def open_log(
    held: Held, opening: Opening, *, in_sync: bool, owned: LastOwned = NEVER_OWNED
) -> Opened | OpenRefusal:
    """Decide what of a log stays when an owner opens it; `in_sync`: whether the record says so.

    A follower that was told of more than it would keep does not cut, unless that is published. In
    sync it refuses: the owner, whose disk came back older, gives its place to it. Otherwise it sets
    its log aside and begins anew. In sync it refuses as well where it would cut, and has all that the
    owner has: so it has all that was acknowledged, whichever of the two lacks something, and what
    comes after that may have been. Only of its own newest epoch a node knows better: what it did not
    show itself of that was never acknowledged, as long as nobody else has opened its log since. A late
    opening that is repeated decides the same.
    """
    if is_fenced(held, opening.epoch):
        return OpenRefusal.FENCED
    segments = tuple(_kept(held, opening))
    if segments and segments[-1].first_offset < opening.local_first:
        # The owner has freed the segment in which this log ends, so it cannot go on from there.
        segments = ()
    kept = replace(held, epoch=max(held.epoch, opening.epoch), segments=segments)
    end = kept.next_offset if segments else opening.published_next
    if knows_more(held, end, opening):
        if in_sync:
            return OpenRefusal.DIVERGED
        return Opened(replace(kept, segments=(), committed_next=0), set_aside=True, cut=None)
    stays = segments[-1].end if segments else None
    is_shorter = bool(held.segments) and stays != held.segments[-1].end
    knows_all = lacks_nothing(opening) or is_own(held, stays, owned)
    if in_sync and is_shorter and not knows_all and goes_beyond(held, opening):
        return OpenRefusal.DIVERGED
    is_cut = bool(segments) and segments[-1].end != held.segments[-1].end
    aside = not segments and held.next_offset > opening.published_next
    return Opened(kept, set_aside=aside, cut=segments[-1].end if is_cut else None)


@guard("the epoch that a follower has seen")
def is_fenced(held: Held, epoch: int) -> bool:
    """Whether an owner is one of the past."""
    return epoch < held.epoch


@guard("a follower that was told of more")
def knows_more(held: Held, end: int, opening: Opening) -> bool:
    """Whether a log that ends at `end` would lack what its follower knows to be committed."""
    return max(end, opening.published_next) < held.committed_next


@guard("an owner that has shown what it found")
def lacks_nothing(opening: Opening) -> bool:
    """Whether all that were in sync had the owner's log once: one that goes on after it is of a disk that
    came back older, with something that was cut since."""
    return opening.shown


def is_own(held: Held, stays: Place | None, owned: LastOwned) -> bool:
    """Whether all of a log that would be cut is of the epoch under which this node owned the stream last,
    and was shown neither by itself nor by anybody since."""
    runs = [run for segment in held.segments for run in segment.runs]
    lost = [run for run in runs if stays is None or run.end > stays]
    keeps_shown = (NOWHERE if stays is None else stays) >= owned.shown
    is_of_it = all(run.epoch == owned.epoch for run in lost)
    return is_of_it and keeps_shown and not was_opened_since(held, owned)


@guard("an opening since a node owned a stream")
def was_opened_since(held: Held, owned: LastOwned) -> bool:
    """Whether another owner has opened the log here since this node owned the stream.

    It may have shown a round that was found here, and its word of that may not have come. Who did not
    open this log has shown nothing, since this node is counted on.
    """
    return held.epoch > owned.epoch


@guard("a follower that has all of its owner's log, and more")
def goes_beyond(held: Held, opening: Opening) -> bool:
    """Whether a log has all that the owner's has and that is not published, and goes on after it.

    It holds the last place of the owner's newest epoch then: two logs that hold one epoch at one
    place hold the same before it. Or all of the owner's log is published, and this one begins with
    an epoch that the owner never had; or the owner has no log at all. What lies here need not be
    records: chunks without them say something of producers.
    """
    runs = [run for segment in held.segments for run in segment.runs]
    if not runs or not opening.ends:
        return bool(runs)
    newest = max(opening.ends)
    ends = [run.end for run in runs if run.epoch == newest.epoch]
    if ends:
        return max(ends) >= newest.end < runs[-1].end
    return newest.next_offset <= opening.published_next and runs[0].epoch > newest.epoch


@guard("what is published stays out of a cut")
def is_freed(segment: HeldSegment, opening: Opening) -> bool:
    """Whether the owner may have freed this segment with all epochs that it has.

    Only then it is left out of the comparison, and removed. A segment whose first epoch the owner
    still names is compared, published or not: it may hold chunks that the stream never had. Of one
    that begins with an epoch that was freed, and goes on with one that is named, nothing is missed.
    """
    named = {one.epoch for one in opening.ends} | {opening.epoch}
    published = segment.next_offset <= opening.published_next
    return published and not (segment.runs and segment.runs[0].epoch in named)


@guard("the cut at an opening")
def keeps(run: Run, ends: Mapping[int, tuple[Place, int]], opening: Opening) -> Run | None:
    """Keep as much of a run as the owner has, and all that is of the epoch that opens."""
    if run.epoch == opening.epoch:
        return run
    if run.epoch not in ends:
        return None
    end, next_offset = ends[run.epoch]
    return run if run.end <= end else Run(run.epoch, end, next_offset)


def _kept(held: Held, opening: Opening) -> Iterator[HeldSegment]:
    ends = {one.epoch: (one.end, one.next_offset) for one in opening.ends}
    compared = list(held.segments)
    while compared and is_freed(compared[0], opening):
        del compared[0]
    for segment in compared:
        runs: list[Run] = []
        for run in segment.runs:
            kept = keeps(run, ends, opening)
            begin = runs[-1].end if runs else Place(segment.first_offset, HEADER_SIZE)
            if kept is not None and kept.end > begin:
                runs.append(kept)
            if kept != run:
                break
        if runs:
            yield HeldSegment(segment.first_offset, tuple(runs))
        if tuple(runs) != segment.runs:
            return


class Sent(NamedTuple):
    """What is sent for one place."""

    epoch: int
    place: Place
    begins: bool
    before: int


def judge(held: Held, opened: int | None, sent: Sent, published_next: int) -> Taken | None:
    """Decide what is done with chunks that an owner sent: None if they are taken and then synced.

    `opened` is the epoch under which this log was opened in this life of the process, and
    `published_next` the bound that the opening named. OK is a repeat: it is answered once what is
    here is synced.
    """
    if is_fenced(held, sent.epoch):
        return Taken.FENCED
    if opened != sent.epoch:
        return Taken.NOT_OPEN
    if not held.segments:
        fits = sent.begins and may_begin(sent.place, published_next)
        return None if fits else Taken.GAP
    end = held.segments[-1].end
    if sent.place < end:
        return Taken.OK
    if sent.begins:
        follows = sent.place == Place(held.next_offset, HEADER_SIZE)
        return None if follows and ends_before(end, sent.before) else Taken.GAP
    return None if is_place(held, sent.place) else Taken.GAP


@guard("the beginning of an empty log")
def may_begin(place: Place, published_next: int) -> bool:
    """Whether an empty log may begin with a segment: all before it is published. A later one that
    overtook it on the way would leave a hole before it."""
    return place.segment_first <= published_next


@guard("the place of what is sent, and not its offset")
def is_place(held: Held, place: Place) -> bool:
    """Whether chunks go on exactly where a log ends."""
    return place == held.segments[-1].end


@guard("the end of the segment before")
def ends_before(end: Place, before: int) -> bool:
    """Whether a log has the segment before a new one to its end, chunks without records too."""
    return end.position == before


def added(held: Held, epoch: int, place: Place, size: int, next_offset: int) -> Held:
    """Add a chunk of so many bytes, which `judge` let pass, to the end of a log."""
    run = Run(epoch, Place(place.segment_first, place.position + size), next_offset)
    *earlier, last = held.segments or (HeldSegment(place.segment_first, ()),)
    if last.first_offset != place.segment_first:
        earlier, last = [*earlier, last], HeldSegment(place.segment_first, ())
    runs = [one for one in last.runs if one.epoch != epoch]
    grown = HeldSegment(last.first_offset, (*runs, run))
    return replace(held, epoch=max(held.epoch, epoch), segments=(*earlier, grown))


def told(held: Held, committed_next: int) -> Held:
    """Note in a log how far its owner says that it is committed.

    It never goes back, and counts only as far as this log goes: what the follower does not have
    it cannot keep.
    """
    known = min(committed_next, held.next_offset)
    return held if known <= held.committed_next else replace(held, committed_next=known)


@guard("the epoch under which a follower is read")
def may_be_read(opened: int | None, asked: int) -> bool:
    """Whether readers may be told what a log holds: it follows the owner that they have heard of, and
    no other. What lies here of an earlier one may differ from the stream; of a later one nobody has
    told them."""
    return opened == asked


@guard("the bound that a follower was told, before it is read")
def readable_next(held: Held) -> int:
    """Up to where readers may be told what a log holds. What comes after it may be on too few disks,
    and be cut."""
    return min(held.committed_next, held.next_offset)


def freed(held: Held, published_next: int, kept: Collection[int] = ()) -> Held:
    """Free the oldest segments of a log, as far as they are published; the last one stays, and
    so do those whose first offsets are in `kept` and all after them."""
    segments = list(held.segments)
    while len(segments) > 1 and segments[0].next_offset <= published_next:
        if segments[0].first_offset in kept:
            break
        del segments[0]
    return replace(held, segments=tuple(segments))
