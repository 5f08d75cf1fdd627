"""Members of the delete queue: which object, and how much of what lies below it.

    {object key}                                   an object that no manifest names any more
    {object key}?from={first}&below={next}         what retention or trim removed of it

The second form says that offsets `first` to `next`, exclusive, of this fragment or of this
group's subtree are unreachable; the object itself goes when its range ends at or below
`next`. It waits for leases, and the range is condemned before anything of it is deleted.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from bottomless.formats.keys import fragment_key, group_key
from bottomless.model.manifest import EntryKind
from bottomless.model.names import StreamId, Uid, uid_from_bytes
from bottomless.model.stream import StreamRecord
from bottomless_server.tree.retention import Retired

_MEMBER = re.compile(
    r"(?P<object_key>[^/]+/(?P<stream>[0-9a-f-]{36})/(?:"
    r"data/(?P<first>[0-9]{20})\.(?P<fragment>[0-9a-f]{32})\.fragment"
    r"|metadata/root\.[0-9]{10}\.[0-9]{20}\.[0-9]{20}\.(?P<root>[0-9a-f]{32})\.manifest"
    r"|metadata/(?P<start>[0-9]{20})\.(?P<group>[0-9a-f]{32})\.g(?P<height>[0-9]{1,3})"
    r"|stream\.(?P<registry>[0-9]{10})\.json"
    r"|staged/[0-9a-f]{32}\.staged"
    r"|metadata/consumers\.[0-9]{20}\.[0-9a-f]{32}\.json))"
    r"(?:\?from=(?P<from>[0-9]{1,16})&below=(?P<below>[0-9]{1,16}))?",
    re.ASCII,
)


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
    batches, which nothing names."""
    first_offset: int | None = None
    """The first offset of a fragment or a group; None for a root, which no entry names."""
    height: int = 0
    """The height of a group; 0 for everything else."""
    registry_version: int | None = None
    """The version of a registry object; None for everything else."""
    range: OffsetRange | None = None
    """The offsets that retention removed of it; None of an object that no manifest names."""

    @property
    def is_fragment(self) -> bool:
        """Whether it is a fragment as a whole that no manifest ever named."""
        return self.range is None and self.height == 0 and self.is_of_tree

    @property
    def is_of_tree(self) -> bool:
        """Whether it is a fragment or a group: what roots and groups can name."""
        return self.first_offset is not None

    @property
    def member(self) -> bytes:
        range_ = self.range
        if range_ is None:
            return self.object_key.encode("ascii")
        suffix = f"?from={range_.first_offset}&below={range_.next_offset}"
        return (self.object_key + suffix).encode("ascii")


def parse_delete_target(member: bytes) -> DeleteTarget | None:
    """Read a member of the delete queue; None of bytes that are none."""
    match = _MEMBER.fullmatch(member.decode("ascii", "replace"))
    if match is None:
        return None
    first = match["first"] or match["start"]
    uid = match["fragment"] or match["root"] or match["group"]
    range_ = None
    if match["from"] is not None:
        if first is None:
            return None
        range_ = OffsetRange(int(match["from"]), int(match["below"]))
    return DeleteTarget(
        object_key=match["object_key"],
        stream_id=StreamId(match["stream"]),
        uid=None if uid is None else Uid(uid),
        first_offset=None if first is None else int(first),
        height=int(match["height"] or 0),
        registry_version=None if match["registry"] is None else int(match["registry"]),
        range=range_,
    )


def delete_target(record: StreamRecord, retired: Retired) -> DeleteTarget:
    """Make the member for an entry that an edit made unreachable."""
    entry = retired.entry
    first, uid = int(entry["first_offset"]), uid_from_bytes(entry["uid"].tobytes())
    height = int(entry["height"])
    if entry["kind"] == EntryKind.GROUP:
        object_key = group_key(record.stream_id, first, uid, height, record.tenant)
    else:
        object_key = fragment_key(record.stream_id, first, uid, record.tenant)
    range_ = OffsetRange(retired.first_offset, retired.next_offset)
    return DeleteTarget(object_key, record.stream_id, uid, first, height, range=range_)
