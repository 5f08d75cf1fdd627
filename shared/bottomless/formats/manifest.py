"""Manifest nodes: root and groups in one layout, an array of entries after a header.

    | header 128 | entry 128 | entry 128 | ... | filters of the entries? |

Why fixed-size entries? numpy searches a node of a thousand entries where it lies in some
microseconds, and decoding it costs one checksum. A node that says what version 1 has no place for,
filters or drives, is of version 2.

On the record's path: after services/bottomless_server/manifest/tree/core/publish_decision.py, put by
services/bottomless_server/manifest/tree/committer.py. Byte tables: docs/formats.md, "Manifest
node".
"""

import struct
from typing import Final

import numpy as np

from bottomless.formats.checks import (
    VERSION,
    VERSION_2,
    check,
    check_magic,
    check_served,
    crc32c,
    magic,
)
from bottomless.formats.filter import BLOCK_SIZE
from bottomless.model.drive import DEFAULT_NUMBER, MIXED
from bottomless.model.fragment import Presence
from bottomless.model.limits import FILTER_BLOCK_COUNT_MAX, NODE_ENTRY_COUNT_MAX, OFFSET_MAX
from bottomless.model.manifest import (
    ENTRY_DTYPE,
    Entries,
    EntryKind,
    Filters,
    Node,
    NodeFeatures,
    no_filters,
)
from bottomless.model.names import (
    stream_id_bytes,
    stream_id_from_bytes,
    uid_bytes,
    uid_from_bytes,
)

MAGIC: Final = magic("BLmn")
ENTRY_SIZE: Final = ENTRY_DTYPE.itemsize
TOTAL_SIZE_MAX: Final = 2**63
"""The bytes of data under one node stay below it, so that no sum of them overflows."""

_MEMBERS: Final = {
    NodeFeatures.FILTERS: ("filter_position", "filter_blocks", "filter_presence"),
    NodeFeatures.DRIVES: ("drive", "copy"),
    NodeFeatures.FILTER_SIZES: ("filters_size",),
}
"""Members of an entry that have a meaning by a feature, and else are reserved."""
_FILTERED: Final = (*_MEMBERS[NodeFeatures.FILTERS], *_MEMBERS[NodeFeatures.FILTER_SIZES])
_FEATURES: Final = NodeFeatures.FILTERS | NodeFeatures.DRIVES | NodeFeatures.FILTER_SIZES
_ALONE: Final = NodeFeatures.FILTERS | NodeFeatures.DRIVES
"""Features that a node may have without any other; each node of version 2 has one of them."""

_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "B"  # height
    "2x"  # reserved
    "16s"  # stream_id
    "16s"  # uid
    "Q"  # first_offset
    "Q"  # next_offset
    "Q"  # total_size, bytes of live fragments below
    "Q"  # record_count, live records below
    "Q"  # epoch
    "Q"  # manifest_version
    "q"  # last_timestamp
    "I"  # generation
    "I"  # entry_count
    "I"  # features
    "I"  # filters_size
    "I"  # filters_crc
    "4x"  # reserved
    "I"  # entries_crc
    "I"  # header_crc, of the 124 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 128  # docs/formats.md, "Manifest node"


def encode_node(node: Node) -> bytes:
    """Encode a root or a group: its header, its entries, and their filters if it has any.

    It is of version 2 if anything is known of values below an entry that is no gap, or anything lies
    on another drive than the first or is a copy, else of 1; and it has the features that its entries
    need.

    Raises:
        Corrupt: no reader would accept the node.
    """
    _check_node(node)
    features, rows = _as_written(node.entries)
    version = VERSION_2 if features else VERSION
    # Bytes as they lie in memory: a root is copied once, into the object.
    entries = np.ascontiguousarray(rows).view(np.uint8).data
    filters = np.ascontiguousarray(node.filters, dtype="<u4").tobytes()
    raw = _HEADER.pack(
        MAGIC,
        version,
        node.height,
        stream_id_bytes(node.stream_id),
        uid_bytes(node.uid),
        node.first_offset,
        node.next_offset,
        int(node.entries["byte_size"].sum()),
        int(node.entries["record_count"].sum()),
        node.epoch,
        node.version,
        node.last_timestamp,
        node.generation,
        len(node.entries),
        features,
        len(filters),
        crc32c(filters),
        crc32c(entries),
        0,
    )[:-4]
    return b"".join((raw, crc32c(raw).to_bytes(4, "little"), entries, filters))


def _as_written(entries: Entries) -> tuple[NodeFeatures, Entries]:
    """The fewest features that can say all of some entries, and how they stand in the node; without
    any it is of version 1.
    """
    gaps = entries["kind"] == EntryKind.GAP
    said = bool(np.any(entries["filter_presence"][~gaps]))
    # Of a gap everybody knows that nothing is there; version 1 has no place to say it.
    presence = Presence.KNOWN if said else Presence(0)
    if bool(np.any(entries["filter_presence"][gaps] != presence)):
        entries = entries.copy()
        entries["filter_presence"][gaps] = presence
    placed = bool(np.any(entries["drive"])) or bool(np.any(entries["copy"]))
    features = NodeFeatures.DRIVES if placed else NodeFeatures(0)
    if said:
        features |= NodeFeatures.FILTERS
        if bool(np.any(entries["filters_size"])):
            features |= NodeFeatures.FILTER_SIZES
    return features, entries


def decode_node(data: bytes | memoryview) -> Node:
    """Read a root or a group; its entries view `data` in place.

    Raises:
        Corrupt: a checksum, a size or the order of its entries is wrong.
    """
    what = "manifest node"
    check(what, len(data) >= HEADER_SIZE, f"{len(data)} bytes are too few")
    header = memoryview(data)[:HEADER_SIZE]
    found, version, height, stream_id, uid, first, next_, size, records, *rest = _HEADER.unpack(
        header
    )
    epoch, number, last_timestamp, generation, count, features, *filters_at, entries_crc, crc = rest
    check_magic(what, found, MAGIC, version, (VERSION, VERSION_2))
    check(what, crc == crc32c(header[:-4]), "the checksum of its header does not match")
    check(what, count <= NODE_ENTRY_COUNT_MAX, f"entries={count}")
    if version == VERSION_2:
        check_served(what, features & ~_FEATURES == 0, f"features {features:#x}")
        # Without it there is nothing that version 1 could not say.
        check(what, bool(features & _ALONE), "its features are without filters and drives")
    else:
        # Reserved there: whatever stands in them is passed over.
        features, filters_at = 0, [0, 0]
    filters_size, filters_crc = filters_at
    end = HEADER_SIZE + count * ENTRY_SIZE
    check(
        what,
        len(data) == end + filters_size,
        f"{len(data) - HEADER_SIZE} bytes of entries, not {count * ENTRY_SIZE + filters_size}",
    )
    raw = memoryview(data)[HEADER_SIZE:end]
    check(what, entries_crc == crc32c(raw), "the checksum of its entries does not match")
    entries = np.frombuffer(raw, dtype=ENTRY_DTYPE)
    filters = no_filters()
    if version == VERSION_2:
        blocks = memoryview(data)[end:]
        check(what, filters_crc == crc32c(blocks), "the checksum of its filters does not match")
        check(what, filters_size % BLOCK_SIZE == 0, f"filters_size={filters_size}")
        filters = np.frombuffer(blocks, dtype="<u4").reshape(-1, 8)
    entries = _of_features(entries, NodeFeatures(features))
    node = Node(
        stream_id=stream_id_from_bytes(stream_id),
        uid=uid_from_bytes(uid),
        height=height,
        first_offset=first,
        next_offset=next_,
        epoch=epoch,
        version=number,
        generation=generation,
        last_timestamp=last_timestamp,
        entries=entries,
        filters=filters,
    )
    _check_node(node)
    check(what, _as_written(entries)[0] == features, "its features are not those of its entries")
    check(what, int(entries["byte_size"].sum()) == size, "its sizes do not add up")
    check(what, int(entries["record_count"].sum()) == records, "its records do not add up")
    return node


def _of_features(entries: Entries, features: NodeFeatures) -> Entries:
    """Entries in which the bytes are passed over that only features have which the node has not."""
    names = [name for one, named in _MEMBERS.items() if one not in features for name in named]
    if any(bool(np.any(entries[name])) for name in names):
        entries = entries.copy()
        for name in names:
            entries[name] = 0
    return entries


def _check_filters(entries: Entries, filters: Filters) -> None:
    what = "manifest node"
    if not any(entries[name].any() for name in _FILTERED):
        # Most nodes: what is checked below cannot be wrong where nothing is said.
        check(what, len(filters) == 0, "blocks of filters are missing")
        return
    counts, presence = entries["filter_blocks"].astype(np.int64), entries["filter_presence"]
    powers = (counts & (counts - 1)) == 0
    fits = bool(np.all(powers & (counts <= FILTER_BLOCK_COUNT_MAX)))
    check(what, fits, "an entry has an impossible filter")
    whole = Presence.KNOWN | Presence.SOME | Presence.NONE
    check(what, bool(np.all(presence <= whole)), "a presence is not known")
    known = presence & Presence.KNOWN != 0
    check(what, bool(np.all(known | (presence == 0))), "of an entry something unknown is said")
    some = presence & Presence.SOME != 0
    check(what, bool(np.all(some | (counts == 0))), "there are blocks of no value")
    gaps = entries["kind"] == EntryKind.GAP
    check(what, bool(np.all(presence[gaps] <= Presence.KNOWN)), "a gap has values")
    sizes = entries["filters_size"]
    check(what, bool(np.all(sizes % BLOCK_SIZE == 0)), "filters of a fragment are odd")
    filtered = known & (entries["kind"] == EntryKind.FRAGMENT)
    check(what, bool(np.all(filtered | (sizes == 0))), "filters are said of what has none")
    check(
        what, bool(np.all(sizes <= entries["object_size"])), "filters are larger than their object"
    )
    ends = np.cumsum(counts)
    check(what, int(counts.sum()) == len(filters), "blocks of filters are missing")
    firsts = np.where(counts > 0, ends - counts, 0)
    check(what, bool(np.all(entries["filter_position"] == firsts)), "filters overlap or miss")


def _check_drives(entries: Entries) -> None:
    what = "manifest node"
    kinds, drives, copies = entries["kind"], entries["drive"], entries["copy"]
    groups = kinds == EntryKind.GROUP
    check(what, bool(np.all(groups | (drives != MIXED))), "what is no group is on several drives")
    placed = drives[kinds == EntryKind.GAP] != DEFAULT_NUMBER
    check(what, not bool(np.any(placed)), "a gap is on a drive")
    fragments = kinds == EntryKind.FRAGMENT
    check(what, bool(np.all(fragments | (copies == 0))), "what is no fragment is a copy")


def _check_node(node: Node) -> None:
    what = "manifest node"
    entries = node.entries
    _check_filters(entries, node.filters)
    _check_drives(entries)
    check(what, node.first_offset <= node.next_offset <= OFFSET_MAX + 1, "its range is reversed")
    if len(entries) == 0:
        check(what, node.height == 0, "a group is empty")
        check(
            what, node.first_offset == node.next_offset, "its range is not empty, its entries are"
        )
        return
    firsts, nexts = entries["first_offset"], entries["next_offset"]
    check(what, bool(np.all(firsts[1:] == nexts[:-1])), "its entries are not one run")
    check(what, bool(np.all(firsts < nexts)), "an entry is empty")
    # The floor of a root may lie inside its first entry, never outside.
    check(what, int(firsts[0]) <= node.first_offset < int(nexts[0]), "its floor is outside")
    check(what, int(nexts[-1]) == node.next_offset, "its end is not that of its entries")
    kinds, heights = entries["kind"], entries["height"]
    known = (kinds >= EntryKind.FRAGMENT) & (kinds <= EntryKind.GAP)
    check(what, bool(np.all(known)), "an entry is of no known kind")
    check(what, bool(np.all((heights > 0) == (kinds == EntryKind.GROUP))), "a height is impossible")
    # Sums over entries are 64 bits wide: what could pass them is refused, not wrapped.
    total = float(entries["byte_size"].sum(dtype=np.float64))
    check(what, total < TOTAL_SIZE_MAX, "its sizes are impossible")
    check(what, bool(np.all(entries["record_count"] <= nexts - firsts)), "an entry is overfull")
    if node.height:
        check(what, bool(np.all(heights < node.height)), "a group points at its own height")
