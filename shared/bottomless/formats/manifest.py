"""Manifest nodes: root and groups in one layout, an array of entries after a header.

    | header 128 | entry 128 | entry 128 | ...

Why fixed-size entries? numpy searches a node of a thousand entries where it lies in some
microseconds, and decoding it costs one checksum.

On the record's path: after services/bottomless_server/manifest/tree/core/publish_decision.py, put by
services/bottomless_server/manifest/tree/committer.py. Byte tables: docs/formats.md, "Manifest
node".
"""

import struct
from typing import Final

import numpy as np

from bottomless.formats.checks import VERSION, check, check_magic, crc32c, magic
from bottomless.model.limits import NODE_ENTRY_COUNT_MAX, OFFSET_MAX
from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, Node
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
    "16x"  # reserved
    "I"  # entries_crc
    "I"  # header_crc, of the 124 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 128  # docs/formats.md, "Manifest node"


def encode_node(node: Node) -> bytes:
    """Encode a root or a group: its header, then its entries.

    Raises:
        Corrupt: no reader would accept the node.
    """
    _check_node(node)
    # Bytes as they lie in memory: a root is copied once, into the object.
    entries = np.ascontiguousarray(node.entries).view(np.uint8).data
    raw = _HEADER.pack(
        MAGIC,
        VERSION,
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
        crc32c(entries),
        0,
    )[:-4]
    return b"".join((raw, crc32c(raw).to_bytes(4, "little"), entries))


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
    epoch, number, last_timestamp, generation, count, entries_crc, crc = rest
    check_magic(what, found, MAGIC, version)
    check(what, crc == crc32c(header[:-4]), "the checksum of its header does not match")
    check(what, count <= NODE_ENTRY_COUNT_MAX, f"entries={count}")
    raw = memoryview(data)[HEADER_SIZE:]
    check(
        what,
        len(raw) == count * ENTRY_SIZE,
        f"{len(raw)} bytes of entries, not {count * ENTRY_SIZE}",
    )
    check(what, entries_crc == crc32c(raw), "the checksum of its entries does not match")
    entries = np.frombuffer(raw, dtype=ENTRY_DTYPE)
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
    )
    _check_node(node)
    check(what, int(entries["byte_size"].sum()) == size, "its sizes do not add up")
    check(what, int(entries["record_count"].sum()) == records, "its records do not add up")
    return node


def _check_node(node: Node) -> None:
    what = "manifest node"
    entries = node.entries
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
