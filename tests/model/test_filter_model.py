"""Values beside a plain list: whatever becomes of the tree, no record that is asked for is left out.

Fragments of both versions are appended, gaps are accepted, groups are made and the front is cut. Then
somebody asks for values, and goes only where tree and fragments say that something may be.

BOTTOMLESS_MODEL_STEPS (300 where it is not set) says how many steps at least, and BOTTOMLESS_MODEL_SEED
with which seed they begin; the seeds that were used are printed.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from support.guards import remove
from unit.formats.examples import STREAM_ID, TIMESTAMP, a_chunk

from bottomless.formats.batch import encode_frame, schema_of
from bottomless.formats.checks import crc32c
from bottomless.formats.filter import AskedHashes, asked_hashes
from bottomless.formats.fragment import (
    FOOTER_SIZE,
    decode_footer,
    decode_stored_filters,
    pack_fragment,
)
from bottomless.formats.fragment_filters import chunks_to_read
from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.config import FilterConfig
from bottomless.model.manifest import EntryKind, GapReason, Node, fragment_info, no_entries
from bottomless.model.names import Uid, uid_from_bytes
from bottomless.model.record import Columns
from bottomless_server.core.filter_making import make_filters
from bottomless_server.manifest.tree.core.planning import gap_at_end
from bottomless_server.tree.append import append_entries, append_fragments
from bottomless_server.tree.filters import entries_to_read
from bottomless_server.tree.rebalance import SealedNode, rebalance
from bottomless_server.tree.retention import Below, Cut, cut_front, find_cut

FANOUT = 2
VALUES = Columns.VALUE | Columns.FILTER_VALUE
Chunk = tuple[str | None, ...]
"""The filter value of each record."""


@dataclass(frozen=True)
class Append:
    chunks: tuple[Chunk, ...]
    indexed: bool = True


@dataclass(frozen=True)
class Gap:
    count: int


@dataclass(frozen=True)
class Trim:
    share: int


Step = Append | Gap | Trim


def frame_of(chunk: Chunk) -> bytes:
    rows: list[Any] = [pa.array([b"-"] * len(chunk), pa.binary())]
    if not any(value is not None for value in chunk):
        return encode_frame(pa.record_batch(rows, schema=schema_of(Columns.VALUE)))
    rows.append(pa.array(chunk, pa.utf8()))
    return encode_frame(pa.record_batch(rows, schema=schema_of(VALUES)))


@dataclass
class Stream:
    """A tree over objects in memory, and beside it the value of each record."""

    root: Node
    nodes: dict[Uid, bytes] = field(default_factory=dict)
    objects: dict[Uid, bytes] = field(default_factory=dict)
    chunks: dict[Uid, list[tuple[int, Chunk]]] = field(default_factory=dict)
    values: dict[int, str | None] = field(default_factory=dict)
    uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_uid(self) -> Uid:
        return Uid(f"{next(self.uids):032x}")

    def take(self, step: Step) -> None:
        match step:
            case Append(chunks, indexed):
                self.append(chunks, indexed=indexed)
            case Gap(count):
                end = self.root.next_offset + count
                gap = gap_at_end(self.root, end, 3, GapReason.DAMAGED)
                self.root = append_entries(self.root, gap)
            case Trim(share):
                self.trim(share)
        self.root, groups = rebalance(self.root, FANOUT, self.new_uid, self.seal)
        self.nodes |= {one.node.uid: one.data for one in groups}
        self.root = decode_node(encode_node(self.root))

    def append(self, chunks: Sequence[Chunk], *, indexed: bool) -> None:
        uid, offset = self.new_uid(), self.root.next_offset
        data, self.chunks[uid] = [], []
        for chunk in chunks:
            data.append(a_chunk(offset, frames=[frame_of(chunk)], record_count=len(chunk)))
            self.chunks[uid].append((offset, chunk))
            self.values |= dict(enumerate(chunk, offset))
            offset += len(chunk)
        # A size with room for filters of such small chunks.
        config = FilterConfig(index="values" if indexed else None, max_bytes=32)
        packed = pack_fragment(STREAM_ID, uid, data, make_filters(data, 2**20, config))
        assert packed.info.version == (2 if indexed else 1)
        self.objects[uid] = b"".join(packed.parts)
        self.root = append_fragments(self.root, [packed.info])

    def trim(self, share: int) -> None:
        start, end = self.root.first_offset, self.root.next_offset
        descent = find_cut(self.root, Below(start + (end - start) * share // 10))
        try:
            entry = next(descent)
            while True:
                entry = descent.send(
                    decode_node(self.nodes[uid_from_bytes(entry["uid"].tobytes())])
                )
        except StopIteration as done:
            cut: Cut = done.value
        self.root = cut_front(self.root, cut).root

    def seal(self, node: Node) -> SealedNode:
        data = encode_node(node)
        return SealedNode(node, data, crc32c(data))

    def read(self, node: Node, asked: AskedHashes) -> Iterator[int]:
        """Offsets of all records that a reader looks at."""
        for entry in node.entries[entries_to_read(node, asked)]:
            uid = uid_from_bytes(entry["uid"].tobytes())
            if entry["kind"] == EntryKind.GROUP:
                yield from self.read(decode_node(self.nodes[uid]), asked)
                continue
            assert fragment_info(entry).uid == uid
            data = self.objects[uid]
            footer = decode_footer(data[-FOOTER_SIZE:])
            tables = decode_stored_filters(
                data[footer.filters_position : footer.index_position], footer
            )
            wanted = chunks_to_read(tables, footer.chunk_count, asked)
            for (first, chunk), is_wanted in zip(self.chunks[uid], wanted, strict=True):
                if is_wanted:
                    yield from range(first, first + len(chunk))

    def missing(self, asked: Sequence[str], *, unfiltered: bool) -> set[int]:
        """Live records that are asked for and that nobody looks at."""
        question = asked_hashes((text.encode() for text in asked), match_unfiltered=unfiltered)
        wanted = {
            offset
            for offset, value in self.values.items()
            if offset >= self.root.first_offset
            and (unfiltered if value is None else value in asked)
        }
        return wanted - set(self.read(self.root, question))


def a_stream() -> Stream:
    root = Node(STREAM_ID, Uid("0" * 32), 0, 0, 0, 3, 1, 0, TIMESTAMP, no_entries())
    return Stream(root)


def after(steps: Sequence[Step]) -> Stream:
    stream = a_stream()
    for step in steps:
        stream.take(step)
    return stream


TEXT = st.sampled_from(["", "apac", "emea", "é", *(f"v{n}" for n in range(50))])
CHUNKS = st.lists(
    st.lists(st.none() | TEXT, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3
).map(tuple)
CROWDED = st.just((tuple(f"w{n}" for n in range(60)),))
"""More values than a filter of a chunk may have, which is 32 bytes here."""
STEPS = st.lists(
    st.builds(Append, CHUNKS | CROWDED, st.booleans() | st.just(True))
    | st.builds(Gap, st.integers(1, 3))
    | st.builds(Trim, st.integers(0, 10)),
    min_size=1,
    max_size=16,
)
MIXED = [Append((("emea",),), indexed=False), *(Append(((f"v{n}",),)) for n in range(5))]
"""The index is turned on in the middle of the stream."""


def run_seed(number: int) -> int:
    """Look at the examples of a seed; returns how many steps they had."""
    taken = 0

    @seed(number)
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(STEPS, st.lists(TEXT, min_size=1, max_size=4), st.booleans())
    @example(MIXED, ["emea"], False)
    def no_record_is_left_out(steps: list[Step], asked: list[str], unfiltered: bool) -> None:
        nonlocal taken
        taken += len(steps)
        assert after(steps).missing(asked, unfiltered=unfiltered) == set()

    no_record_is_left_out()
    return taken


# A failure is shrunk before it is reported, which takes longer than a run.
@pytest.mark.timeout(24 * 3600)
def test_no_record_that_is_asked_for_is_ever_left_out() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "300"))
    number = first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", "0"))
    taken = 0
    while taken < wanted:
        taken += run_seed(number)
        number += 1
    print(f"seeds {first} to {number - 1}: {taken} steps")


def test_what_has_nothing_of_it_is_left_out() -> None:
    """In groups too: it is no proof that nothing is missing if all is read."""
    stream = after([Append(((f"v{n}",), (None,))) for n in range(40)])
    looked_at = list(stream.read(stream.root, asked_hashes([b"v7"])))
    assert 14 in looked_at
    assert len(looked_at) <= 4


def test_without_known_of_an_entry_records_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = after(MIXED)
    assert stream.missing(["emea"], unfiltered=False) == set()
    remove(monkeypatch, "known of an entry", lambda presence: presence > 255)
    assert stream.missing(["emea"], unfiltered=False) == {0}


def test_a_group_of_which_one_child_is_not_known_is_not_known() -> None:
    stream = after(MIXED)
    presences = stream.root.entries["filter_presence"].tolist()
    assert presences[0] == 0
    assert presences[-1] != 0
    assert stream.root.filters.shape == (
        int(stream.root.entries["filter_blocks"].sum()),
        8,
    )
