"""Decide what a stream was, from what its bucket shows: the pure part of a rebuild.

Coordination is lost, so nobody says which root was published. What is believed, and why:

- Roots of the newest generation only. Each rebuild gives every stream a root of its own
  generation, so an older one is a time before that, or was put by a process of that time.
- Of those the highest version, since that grows with every publish under any epoch; among
  equals the highest epoch, and of that the longest, and of those the one with most records, if it
  verifies and everything that it names directly is there: see decision 241.
- If something is missing, either an attempt that lost has put this root, and its fragments were
  given up and deleted; or what was published is damaged. An older root is believed only where
  nothing is lost by it: where the newer one names nothing after its end that is there, or the
  fragments in the bucket prove all of that. Otherwise the newer one stays as it is, with its
  hole: an older one would give up all published fragments after it. And never where it names
  something else at offsets of which the newer one names something: see `root_agreement.py`.
  What is below the floor of the newer one is cut from the older one: see decision 230.
- Of roots of one version, of which some end in the gap of a takeover, what the others hold is
  kept. If the takeover's fence came first, the gap goes to their end. Earlier releases put
  the gap before the takeover was decided: where a home is known, it is not believed.
- Of roots of one version and one epoch the highest floor is kept, and after its root's end what
  the longest names. A cut that was answered has its root there, and one that was not may have
  happened. The root of an attempt that failed just before the cut has the same version and the
  lower floor: see decision 71. So it is where something is missing of them: see decision 221.
- No root of an epoch before one of its version, as long as there is another one: its owner was
  deposed before it could be published.
- Fragments that go on from its end without a hole, whole, of this stream, of an epoch and a
  time that do not go back, and of none before the epoch that a newer root names there. One after
  a hole never enters the tree: what was in the hole may have been acknowledged, and the home
  has it.

Nobody can vouch for anything else: it is deleted, late enough for uploads under way.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from bottomless.formats.keys import RootKey
from bottomless.guards import guard
from bottomless.model.config import StreamConfig
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.manifest import Entries, EntryKind, GapReason, Node
from bottomless.model.names import NodeId, Uid, uid_from_bytes
from bottomless.model.stream import (
    NOBODY,
    EpochStart,
    RootPointer,
    StreamRecord,
    unknown_epoch,
)
from bottomless_server.leaderless.noted import after_undecided
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.tree.append import append_entries

_VERSIONS_EACH: Final = 2**40
"""More versions than any stream takes in one generation: a thousand a second for thirty years."""
_ATTEMPTS_EACH: Final = 2**20
"""More attempts than are made to rebuild one generation, or changes of a registry object."""
RESERVED_COUNT: Final = 2**32
"""How many offsets after the end the home may have acknowledged; it never reserves nearly as many."""


class RootsFound(NamedTuple):
    candidates: tuple[RootKey, ...]
    """Roots of the newest generation, best first."""
    others: tuple[RootKey, ...]
    """Roots of older generations, or of one that a rebuild began and did not finish."""


def rank_roots(found: Iterable[RootKey], generation: int) -> RootsFound:
    """Order the roots of a stream; `generation` is the bucket's."""
    roots = sorted(found, key=lambda root: (root.generation, root.version, root.epoch, root.uid))
    newest = max((root.generation for root in roots if root.generation <= generation), default=-1)
    candidates = [root for root in reversed(roots) if root.generation == newest]
    others = [root for root in roots if root.generation != newest]
    return RootsFound(tuple(candidates), tuple(others))


@guard("one version for all who restore a stream")
def first_version(generation: int) -> int:
    """The version with which every stream is served first in a generation that a rebuild goes to.

    It is above all versions of the generations before, and known without a look at the bucket. So
    whoever restores a stream, however often, and whatever a process of an older generation puts
    meanwhile, comes to the same version: a root that is put late is above no record that is served.
    """
    return generation * _VERSIONS_EACH + _ATTEMPTS_EACH


def attempt_version(generation: int, attempt: int) -> int:
    """The version of the root that one attempt of a rebuild puts, below the first that is served.

    Attempts have numbers that nobody else has, and that grow: an attempt that was given up is below
    the one that ended, since what came between the two may be known to the later one alone.
    """
    return generation * _VERSIONS_EACH + min(attempt, _ATTEMPTS_EACH - 1)


def equals(candidates: Sequence[RootKey]) -> list[list[RootKey]]:
    """Candidates in groups of the same version, best first: plans for one and the same record."""
    groups: list[list[RootKey]] = []
    for root in candidates:
        if groups and groups[-1][0].version == root.version:
            groups[-1].append(root)
        else:
            groups.append([root])
    return groups


class RootCandidate(NamedTuple):
    """A root that was read, with the key under which it lay."""

    key: RootKey
    root: Node

    @property
    def gap(self) -> Entries:
        """The gap of a takeover that it ends in, if it does."""
        last = self.root.entries[-1:]
        gaps: Entries = last[
            (last["kind"] == EntryKind.GAP) & (last["reason"] == GapReason.TAKEOVER)
        ]
        return gaps

    @property
    def fenced(self) -> bool:
        """Whether its gap is of its own epoch, which a fence had made before: it did happen."""
        return bool(np.any(self.gap["last_epoch"] == self.key.epoch))


class RootSeen(NamedTuple):
    """A root that was read, and what of all that it names directly is there."""

    found: RootCandidate
    there: frozenset[Uid]

    @property
    def missing(self) -> frozenset[Uid]:
        root = self.found.root
        named = (named_directly(root, kind) for kind in (EntryKind.FRAGMENT, EntryKind.GROUP))
        return frozenset[Uid]().union(*named) - self.there

    def is_there_after(self, offset: int, *, home_known: bool) -> bool:
        """Whether it holds something after an offset that is there; a gap is, if it is believed."""
        for entry in self.found.root.entries:
            if int(entry["next_offset"]) <= offset:
                continue
            if entry["kind"] == EntryKind.GAP:
                if self.found.fenced or not home_known or entry["reason"] != GapReason.TAKEOVER:
                    return True
            elif uid_from_bytes(entry["uid"].tobytes()) in self.there:
                return True
        return False

    def is_proved_by(self, root: Node, run: Sequence[FragmentInfo]) -> bool:
        """Whether an older root and the fragments that go on from its end hold all of it."""
        entries = self.found.root.entries
        after = entries[entries["next_offset"] > root.next_offset]
        wanted = {
            uid_from_bytes(entry["uid"].tobytes())
            for entry in after
            if entry["kind"] == EntryKind.FRAGMENT
        }
        end = run[-1].next_offset if run else root.next_offset
        no_gap = not np.any(after["kind"] == EntryKind.GAP)
        return (
            bool(no_gap) and end >= self.found.root.next_offset and wanted <= {f.uid for f in run}
        )


def best_of(whole: Collection[RootCandidate], *, home_known: bool) -> RootCandidate:
    """The root to believe among whole ones that were planned for one and the same record."""
    return _cut_as(_longest_of(whole, home_known=home_known), whole)


def _longest_of(whole: Collection[RootCandidate], *, home_known: bool) -> RootCandidate:
    best = max(whole, key=_rank)
    plain = [one for one in whole if not len(one.gap)]
    if not plain or not len(best.gap):
        return best
    kept = max(plain, key=_rank)
    if best.fenced:
        return RootCandidate(kept.key, _closed(kept.root, best.gap))
    return kept if home_known else best


def _cut_as(best: RootCandidate, whole: Collection[RootCandidate]) -> RootCandidate:
    """`best` with the highest floor that a root of its epoch has.

    What `best` names after the end of that root goes to the end of it. A group that begins before
    that end cannot: then `best` stays as it is, since a floor is worth less than records.
    """
    floors = [
        one
        for one in whole
        if one.key.epoch == best.key.epoch and one.root.next_offset <= best.root.next_offset
    ]
    cut = max(floors, key=lambda one: (one.root.first_offset, one.root.next_offset))
    if cut.root.first_offset <= best.root.first_offset:
        return best
    entries = best.root.entries
    rest = entries[entries["next_offset"] > cut.root.next_offset]
    starts_there = not len(rest) or int(rest["first_offset"][0]) == cut.root.next_offset
    if not starts_there or np.any(rest["kind"] == EntryKind.GROUP):
        return best
    return RootCandidate(cut.key, append_entries(cut.root, rest, best.root.filters))


def highest_floor(one: RootSeen, rank: Sequence[RootSeen]) -> RootSeen:
    """The root that was cut furthest, of those of one version that are of the epoch of `one`."""
    same = [other for other in rank if other.found.key.epoch == one.found.key.epoch]
    return max(same, key=lambda other: other.found.root.first_offset, default=one)


def in_order(found: Sequence[RootSeen], *, home_known: bool) -> list[RootSeen]:
    """Roots of one version, of which at most two count: the best with a hole, and the best whole.

    The one with a hole comes first, as if it were newer: the other one has to hold all of it. If
    the other one ends in a gap that a fence came before, both do. One with a hole of an owner that was
    deposed before it could be published does not count, as long as another one is whole.
    """
    broken = sorted((one for one in found if one.missing), key=lambda one: _rank(one.found))
    whole = [one.found for one in found if not one.missing]
    if not whole:
        return broken[-1:]
    best = best_of(whole, home_known=home_known)
    broken = [one for one in broken if may_be_published(one.found, whole)]
    there = frozenset[Uid]().union(*(one.there for one in found if not one.missing))
    return [*(_ending_as(one, best) for one in broken[-1:]), RootSeen(best, there)]


@guard("roots of a deposed owner, beside a whole one of the next")
def may_be_published(one: RootCandidate, whole: Collection[RootCandidate]) -> bool:
    """Whether no later owner has planned a root for the same record: then that record was not replaced
    before this root's owner was deposed, and could not be replaced by it afterwards.

    A gap that no fence came before proves no later owner.
    """
    owners = [other.key.epoch for other in whole if other.fenced or not len(other.gap)]
    return one.key.epoch >= max(owners, default=0)


def _ending_as(seen: RootSeen, best: RootCandidate) -> RootSeen:
    found = seen.found
    if len(found.gap) or not best.fenced:
        return seen
    return seen._replace(found=RootCandidate(found.key, _closed(found.root, best.gap)))


def _rank(one: RootCandidate) -> tuple[int, int, int]:
    return one.key.epoch, one.root.next_offset, record_count_of(one.root)


@guard("more records, of roots of one version and one end")
def record_count_of(root: Node) -> int:
    """How many records a root leads to. Where a drive was lost, a root with gaps may have come to nothing, and
    the next one, of the same version, may name what was found whole elsewhere meanwhile."""
    return int(root.entries["record_count"].sum())


def _closed(root: Node, gap: Entries) -> Node:
    """The root with as much of the gap at its end as lies beyond."""
    if int(gap["next_offset"][0]) <= root.next_offset:
        return root
    rest = gap.copy()
    rest["first_offset"] = root.next_offset
    rest["first_timestamp"] = rest["last_timestamp"] = root.last_timestamp
    return append_entries(root, rest)


def is_root_of(node: Node, record: StreamRecord, key: RootKey) -> bool:
    """Whether a node is what its key says it is."""
    said = (node.stream_id, node.height, node.generation, node.epoch, node.version, node.uid)
    return said == (record.stream_id, 0, *key)


def named_directly(root: Node, kind: EntryKind) -> frozenset[Uid]:
    """The uids of a root's own entries of one kind."""
    entries = root.entries[root.entries["kind"] == kind]
    return frozenset(uid_from_bytes(entry["uid"].tobytes()) for entry in entries)


@dataclass(frozen=True, slots=True)
class TreeEnd:
    """Where the tree ends, and what may go on from there."""

    next_offset: int
    epoch: int
    timestamp: int

    @classmethod
    def of(cls, root: Node) -> "TreeEnd":
        epoch = int(root.entries["last_epoch"][-1]) if len(root.entries) else 0
        return cls(root.next_offset, epoch, root.last_timestamp)

    def extended_by(self, found: Collection[FragmentInfo]) -> FragmentInfo | None:
        """The fragment that goes on from here, of several that are verified; None if none does.

        Two owners may have begun at the same place: the newer one knew what the older had not
        kept. Of one owner the longer one leaves less to do again.
        """
        fitting = [
            fragment
            for fragment in found
            if fragment.first_offset == self.next_offset
            and fragment.epoch >= self.epoch
            and fragment.first_timestamp >= self.timestamp
        ]
        if not fitting:
            return None
        return max(fitting, key=lambda fragment: (fragment.epoch, fragment.next_offset))

    def after(self, fragment: FragmentInfo) -> "TreeEnd":
        return TreeEnd(fragment.next_offset, fragment.epoch, fragment.last_timestamp)


def record_before(registry: StreamRecord, root: Node | None, generation: int) -> StreamRecord:
    """The record of a stream in its new generation, before a root of it is put.

    `registry` is what its registry object says, with the number of the object that this attempt has
    put for it.
    The home may hold more than the bucket, so the stream is dirty and its home's alone. Whoever
    takes it from the home begins after everything that the home can have acknowledged. A leaderless
    stream has no home: what is in no fragment of it is in WAL objects, which are looked at too.
    """
    leaderless = registry.config.leaderless
    epoch = first_epoch(generation) if leaderless else unknown_epoch(generation)
    next_offset = 0 if root is None else root.next_offset
    last_timestamp = 0 if root is None else max(0, root.last_timestamp)
    return replace(
        registry,
        in_sync=_in_sync_before(registry),
        generation=generation,
        version=attempt_version(generation, registry.registry_version - 1),
        epoch=epoch,
        dirty=registry.home is not None,
        reserved_next=0 if leaderless else reserved_from(next_offset),
        epochs=(EpochStart(epoch, next_offset),),
        published_next=next_offset,
        last_timestamp=last_timestamp,
    )


def _in_sync_before(registry: StreamRecord) -> tuple[NodeId, ...]:
    """Nobody knows any more which members have everything; the home has, where there is one."""
    if not registry.members or registry.home in (None, NOBODY):
        return ()
    return (registry.home,)


def record_after(before: StreamRecord, pointer: RootPointer, root: Node) -> StreamRecord:
    """The record that names the root which the rebuild has put."""
    return replace(
        before,
        version=pointer.version,
        root=pointer,
        published_next=root.next_offset,
        reserved_next=0 if before.config.leaderless else reserved_from(root.next_offset),
        epochs=(EpochStart(before.epoch, root.next_offset),),
        last_timestamp=max(before.last_timestamp, root.last_timestamp),
        # What was condemned, and what is deleted already, is known to nobody any more: a lease on
        # what lies below the floor would be a promise that may be broken by now.
        condemned_next=root.first_offset,
    )


def record_without_root(
    before: StreamRecord, lost: RootKey | None, known_next: int = 0
) -> StreamRecord:
    """The record of a stream whose manifest is missing: every use of it must be told so.

    It names a root that cannot be loaded. An empty stream would be a lie, and deletes nothing
    only as long as nobody believes it. `known_next` is after the last offset that anything in the
    bucket speaks of.
    """
    named = lost or RootKey(before.generation, before.epoch, before.version, Uid("0" * 32))
    pointer = RootPointer(
        named.uid, named.generation, named.epoch, min(named.version, before.version), 0, 0
    )
    if before.config.leaderless:
        # Nobody knows from where on offsets are free, so none is given until somebody says so; and
        # then far after all that anybody can have read.
        fenced = replace(before, root=pointer, config=_fenced(before.config))
        return ending_at(fenced, after_undecided(known_next))
    # Nobody knows from where on offsets are free, so nobody may claim it but a home that does.
    return replace(before, root=pointer, dirty=True, home=before.home or NOBODY)


@guard("the end of a leaderless stream whose manifest is lost")
def ending_at(record: StreamRecord, next_offset: int) -> StreamRecord:
    """A record by which readers ask the manifest about all that is below an offset, and the tail gives
    none of it once more."""
    epochs = (EpochStart(record.epoch, next_offset),)
    return replace(record, published_next=next_offset, epochs=epochs)


def _fenced(config: StreamConfig) -> StreamConfig:
    return config.model_copy(update={"fenced": True})


def reserved_from(next_offset: int) -> int:
    return min(next_offset + RESERVED_COUNT, OFFSET_MAX + 1)
