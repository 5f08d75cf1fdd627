"""Members of the delete queues: which object, and how much of what lies below it.

    {object key}                                   an object that no manifest names any more
    {object key}?from={first}&below={next}         what retention or trim removed of it
    {object key}?moved                             a fragment that a move took elsewhere, or a group
                                                   that was made anew for it
    {data folder}/copies.{copy}?from={first}&below={next}
                                                   what a move left: copies that no manifest names

The second form says that offsets `first` to `next`, exclusive, of this fragment or of this
group's subtree are unreachable; the object itself goes when its range ends at or below
`next`, and all that is left below it goes before it. It waits for leases, and the range is condemned before
anything of it is deleted.

The third stands for one object and never for what is below it: that lies below its successor. Of a
fragment it waits for leases, since who has one may have been told the old place. The form is not that
of an object that nobody reads, so that in doubt of the clock it stays; and it does not say where the
records end, so that a collection of garbage can ask for it by the key alone.

The last is looked for on its drive: a move that has ended leaves the copies of what was cut
meanwhile, and what was put late. Each object that is found becomes a member of the first form.

Each drive has a queue of its own, since a drive may be away; a member does not name the drive.
Groups, and all else that is no fragment, are in that of drive 0.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from bottomless.formats.keys import FragmentPlace, fragment_place, group_key, stream_prefix
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless.model.names import StreamId, Uid, uid_from_bytes
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move, copy_text
from bottomless_server.tree.retention import Retired

_MEMBER = re.compile(
    r"(?P<object_key>[^/]+/(?P<stream>[0-9a-f-]{36})/(?:"
    r"data/(?P<first>[0-9]{20})\.(?P<fragment>[0-9a-f]{32})"
    r"(?:\.(?P<copy>(?!0{16})[0-9a-f]{16}))?\.fragment"
    r"|data/copies\.(?P<copies>(?!0{16})[0-9a-f]{16})(?=\?from)"
    r"|metadata/root\.[0-9]{10}\.[0-9]{20}\.[0-9]{20}\.(?P<root>[0-9a-f]{32})\.manifest"
    r"|metadata/(?P<start>[0-9]{20})\.(?P<group>[0-9a-f]{32})\.g(?P<height>[0-9]{1,3})"
    r"|stream\.(?P<registry>[0-9]{10})\.json"
    r"|staged/[0-9a-f]{32}\.staged"
    r"|staged/plans/[0-9]{20}\.[0-9]{10}\.[0-9a-f]{32}\.plan"
    r"|metadata/consumers\.[0-9]{20}\.[0-9a-f]{32}\.json))"
    r"(?:\?from=(?P<from>[0-9]{1,16})&below=(?P<below>[0-9]{1,16})|(?P<moved>\?moved))?",
    re.ASCII,
)


_MOVED: Final = "?moved"


class OffsetRange(NamedTuple):
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class DeleteTarget:
    """One member of the delete queue: an object, and the offsets of it that may go."""

    object_key: str
    stream_id: StreamId
    uid: Uid | None = None
    """None of registry objects and consumer snapshots, which only the record names, and of staged
    batches and plans of their commits, which no manifest names."""
    first_offset: int | None = None
    """The first offset of a fragment or a group; None for a root, which no entry names."""
    height: int = 0
    """The height of a group; 0 for everything else."""
    registry_version: int | None = None
    """The version of a registry object; None for everything else."""
    range: OffsetRange | None = None
    """The offsets that retention removed of it, or between which copies are looked for; None of an
    object that no manifest names."""
    copy: int = 0
    """What the key of a fragment has after the uid; 0 for one that was never moved."""
    drive: int = DEFAULT_NUMBER
    """The number of the drive on which it lies, in whose queue it is."""
    moved: bool = False
    """Whether a move took it elsewhere, or it is a group that was made anew for that."""

    @property
    def is_unread(self) -> bool:
        """Whether it is a fragment as a whole that no manifest ever named, or several of them."""
        return (self.is_fragment and not self.moved) or self.is_of_copies

    @property
    def is_of_copies(self) -> bool:
        """Whether it stands for all that is left of the copies of a move."""
        return self.copy != 0 and self.uid is None

    @property
    def is_fragment(self) -> bool:
        """Whether it is one fragment that was not cut, in whatever form."""
        return self.range is None and self.height == 0 and self.is_of_tree

    @property
    def may_be_named(self) -> bool:
        """Whether it may have the bytes of what the manifest names elsewhere, and be named instead of that:
        all fragments but those that were cut, since a rebuild takes one of two with the same uid for a stray."""
        return self.is_fragment or self.copy != 0

    @property
    def place(self) -> FragmentPlace:
        """The drive and the key of the object."""
        return FragmentPlace(self.drive, self.object_key)

    @property
    def is_of_tree(self) -> bool:
        """Whether it is a fragment or a group: what roots and groups can name."""
        return self.first_offset is not None

    @property
    def member(self) -> bytes:
        range_ = self.range
        if range_ is None:
            return (self.object_key + (_MOVED if self.moved else "")).encode("ascii")
        suffix = f"?from={range_.first_offset}&below={range_.next_offset}"
        return (self.object_key + suffix).encode("ascii")


def parse_delete_target(member: bytes, drive: int = DEFAULT_NUMBER) -> DeleteTarget | None:
    """Read a member of the delete queue of a drive; None of bytes that are none of that queue."""
    match = _MEMBER.fullmatch(member.decode("ascii", "replace"))
    if match is None:
        return None
    if drive != DEFAULT_NUMBER and not (match["fragment"] or match["copies"]):
        return None
    first = match["first"] or match["start"]
    uid = match["fragment"] or match["root"] or match["group"]
    range_ = None
    if first is None and match["copies"] is None and (match["from"] or match["moved"]):
        return None
    if match["from"] is not None:
        range_ = OffsetRange(int(match["from"]), int(match["below"]))
    return DeleteTarget(
        object_key=match["object_key"],
        stream_id=StreamId(match["stream"]),
        uid=None if uid is None else Uid(uid),
        first_offset=None if first is None else int(first),
        height=int(match["height"] or 0),
        registry_version=None if match["registry"] is None else int(match["registry"]),
        range=range_,
        copy=int(match["copy"] or match["copies"] or "0", 16),
        drive=drive,
        moved=match["moved"] is not None,
    )


def moved_member(object_key: str) -> bytes:
    """Make the member for an object that a move took elsewhere."""
    return (object_key + _MOVED).encode("ascii")


def copies_target(record: StreamRecord, move: Move) -> DeleteTarget:
    """Make the member for what is left of the copies of a move that has ended."""
    folder = f"{stream_prefix(record.stream_id, record.tenant)}data/"
    return DeleteTarget(
        f"{folder}copies.{copy_text(move.copy)}",
        record.stream_id,
        range=OffsetRange(move.first_offset, move.next_offset),
        copy=move.copy,
        drive=move.to_drive,
    )


def displaced_target(record: StreamRecord, entry: np.void) -> DeleteTarget:
    """Make the member for the object of an entry that a move took elsewhere, or a group's that was
    made anew for it."""
    return _target_of(record, entry, None, moved=True)


@guard("the drive in the deleter's look")
def is_at(entry: np.void, target: DeleteTarget) -> bool:
    """Whether an entry with the uid of a target means this object of it, and not a copy elsewhere."""
    if entry["kind"] == EntryKind.GROUP:
        return True
    return (int(entry["drive"]), int(entry["copy"])) == (target.drive, target.copy)


def is_copied(move: Move, target: DeleteTarget) -> bool:
    """Whether a target is a copy that a move makes, and that may be named soon."""
    return (move.copy, move.to_drive) == (target.copy, target.drive)


def delete_target(record: StreamRecord, retired: Retired) -> DeleteTarget:
    """Make the member for an entry that an edit made unreachable."""
    range_ = OffsetRange(retired.first_offset, retired.next_offset)
    return _target_of(record, retired.entry, range_)


def _target_of(
    record: StreamRecord, entry: np.void, range_: OffsetRange | None, *, moved: bool = False
) -> DeleteTarget:
    first, uid = int(entry["first_offset"]), uid_from_bytes(entry["uid"].tobytes())
    height, stream_id = int(entry["height"]), record.stream_id
    if entry["kind"] == EntryKind.GROUP:
        object_key = group_key(stream_id, first, uid, height, record.tenant)
        return DeleteTarget(object_key, stream_id, uid, first, height, range=range_, moved=moved)
    info = fragment_info(entry)
    drive, object_key = fragment_place(stream_id, info, record.tenant)
    return DeleteTarget(
        object_key,
        stream_id,
        uid,
        first,
        range=range_,
        copy=info.copy,
        drive=drive,
        moved=moved,
    )
