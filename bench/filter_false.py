"""How often filters say "perhaps" of a value that is nowhere, and how large they make a root: counted
with the product's own functions, without a server.
"""

import time
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bottomless.formats.batch import encode_frame, schema_of
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import seal_chunk
from bottomless.formats.filter import asked_hashes
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.fragment_filters import chunks_to_read
from bottomless.formats.manifest import encode_node
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.config import FilterConfig
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.manifest import Node, no_entries
from bottomless.model.names import StreamId, Uid
from bottomless.model.record import Columns
from bottomless_server.core.filter_making import make_filters
from bottomless_server.tree.append import append_fragments
from bottomless_server.tree.filters import entries_to_read
from bottomless_server.tree.rebalance import SealedNode, rebalance

STREAM: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
CHUNKS: Final = 16
RECORDS: Final = 1_000
"""Of a chunk."""
VALUE: Final = b"x" * 100
FANOUT: Final = 1_024
FILTER_SIZE_MAX: Final = 1_024
"""Bytes of the filter of an entry, at most."""


class Found(NamedTuple):
    """What was counted."""

    seconds: float
    extra: dict[str, float]


def an_empty_root() -> Node:
    return Node(STREAM, Uid("0" * 32), 0, 0, 0, 1, 0, 0, 0, no_entries())


def a_fragment(values: int) -> tuple[FragmentInfo, list[int], tuple[object, ...]]:
    """A fragment of so many different values, in no order: what the manifest has of it, the sizes of its
    chunks, and its filters."""
    rng = np.random.default_rng(values)
    columns = Columns.VALUE | Columns.FILTER_VALUE
    chunks = []
    for number in range(CHUNKS):
        taken = [f"v{n}" for n in rng.integers(0, values, RECORDS)]
        arrays = [pa.array([VALUE] * RECORDS, pa.binary()), pa.array(taken, pa.utf8())]
        frame = encode_frame(pa.record_batch(arrays, schema=schema_of(columns)))
        entries = [AppendEntry(AppendMode.PLAIN, 0, RECORDS, 0)]
        parts = seal_chunk(
            [frame],
            entries,
            record_count=RECORDS,
            first_offset=number * RECORDS,
            timestamp=1,
            epoch=1,
        )
        chunks.append(b"".join(parts))
    data_size = sum(map(len, chunks))
    tables = make_filters(chunks, data_size, FilterConfig(index="values"))
    info = pack_fragment(STREAM, Uid("a" * 32), chunks, tables).info
    return info, [len(chunk) for chunk in chunks], tables


def measure(values: int, asked: int) -> Found:
    """Ask for so many values that are nowhere in a fragment of so many different ones."""
    info, sizes, tables = a_fragment(values)
    root = append_fragments(an_empty_root(), [info])
    false_fragments = false_chunks = read_size = 0
    begun = time.perf_counter()
    for number in range(asked):
        question = asked_hashes([b"absent-%d" % number])
        wanted = chunks_to_read(tables, CHUNKS, question)  # type: ignore[arg-type]
        false_chunks += int(wanted.sum())
        if entries_to_read(root, question)[0]:
            false_fragments += 1
            read_size += sum(size for size, is_read in zip(sizes, wanted, strict=True) if is_read)
    seconds = time.perf_counter() - begun
    extra = {
        "false fragments, %": 100 * false_fragments / asked,
        "false chunks, %": 100 * false_chunks / asked / CHUNKS,
        "skipped bytes, %": 100 - 100 * read_size / asked / sum(sizes),
    }
    return Found(seconds, extra)


def root_sizes(large: int, small: int = 1_000) -> dict[int, int]:
    """Bytes of the root of so many fragments, of the smaller and of the larger number, with filters of
    the largest size that hold some bits."""
    uids = iter(range(2 * large))
    rng = np.random.default_rng(7)
    blocks = (rng.integers(0, 256, FILTER_SIZE_MAX) & rng.integers(0, 256, FILTER_SIZE_MAX)).astype(
        np.uint8
    )

    def new_uid() -> Uid:
        return Uid(f"{next(uids):032x}")

    def seal(node: Node) -> SealedNode:
        data = encode_node(node)
        return SealedNode(node, data, crc32c(data))

    sizes: dict[int, int] = {}
    root = an_empty_root()
    count = 0
    while count < large:
        run = min(FANOUT // 2, (small if count < small else large) - count)
        infos = [
            FragmentInfo(
                new_uid(),
                (count + n) * 10,
                (count + n + 1) * 10,
                1,
                1,
                1,
                10,
                1 << 26,
                1_024,
                0,
                filter_presence=Presence.KNOWN | Presence.SOME,
                filter_blocks=blocks.tobytes(),
                filters_size=1 << 12,
            )
            for n in range(run)
        ]
        root = append_fragments(root, infos)
        root, _ = rebalance(root, FANOUT, new_uid, seal)
        count += run
        if count in (small, large):
            sizes[count] = len(encode_node(root))
    return sizes
