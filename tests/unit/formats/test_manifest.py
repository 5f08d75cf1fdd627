from dataclasses import replace

import numpy as np
import pytest
from golden.regenerate import a_filtered_group, a_filtered_root, a_group, a_root, golden
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import ENTRY_SIZE, HEADER_SIZE, decode_node, encode_node
from bottomless.model.drive import MIXED
from bottomless.model.limits import NODE_ENTRY_COUNT_MAX, OFFSET_MAX
from bottomless.model.manifest import (
    ENTRY_DTYPE,
    EntryKind,
    Node,
    fragment_entry,
    fragment_info,
    no_entries,
)
from unit.formats.examples import (
    STREAM_ID,
    UID,
    a_fragment,
    assert_refuses_damage,
    filtered_fragment,
    seal,
)


def empty_root(offset: int = 7) -> Node:
    return replace(a_root(), first_offset=offset, next_offset=offset, entries=no_entries())


ARRAYS = ("entries", "filters")


def same(left: Node, right: Node) -> bool:
    return replace(left, entries=right.entries) is not None and (
        [getattr(left, name) for name in Node.__slots__ if name not in ARRAYS]
        == [getattr(right, name) for name in Node.__slots__ if name not in ARRAYS]
        and left.filters.tobytes() == right.filters.tobytes()
        and left.entries.tobytes() == right.entries.tobytes()
    )


def changed(number: int, **values: int) -> Node:
    """The root with an entry that lies."""
    node = a_root()
    for name, value in values.items():
        node.entries[number][name] = value
    return node


@pytest.mark.parametrize(
    "node", [a_root(), a_group(), empty_root(), a_filtered_root(), a_filtered_group()]
)
def test_nodes_come_back(node: Node) -> None:
    assert same(decode_node(encode_node(node)), node)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(0, 2**40))
def test_roots_of_any_run_come_back(counts: list[int], first: int) -> None:
    entries = np.zeros(len(counts), ENTRY_DTYPE)
    ends = first + np.cumsum([0, *counts]).astype(np.uint64)
    entries["first_offset"], entries["next_offset"] = ends[:-1], ends[1:]
    entries["record_count"], entries["kind"] = counts, EntryKind.FRAGMENT
    node = replace(
        empty_root(), first_offset=int(ends[0]), next_offset=int(ends[-1]), entries=entries
    )
    assert same(decode_node(encode_node(node)), node)


def test_a_fragments_entry_says_all_of_it() -> None:
    info = a_fragment().info
    assert fragment_info(decode_node(encode_node(a_group())).entries[0]) == info
    with pytest.raises(AssertionError):
        fragment_info(a_root().entries[1])


def test_entries_are_viewed_in_place() -> None:
    entries = decode_node(encode_node(a_group())).entries
    assert not entries.flags.owndata
    assert not entries.flags.writeable


@pytest.mark.parametrize("node", [a_root(), empty_root()])
def test_every_damage_is_refused(node: Node) -> None:
    raw = encode_node(node)
    assert_refuses_damage(decode_node, raw)
    with pytest.raises(Corrupt, match="bytes of entries"):
        decode_node(raw + bytes(ENTRY_SIZE))


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_node(data)


def test_an_unknown_version_is_named() -> None:
    raw = bytearray(encode_node(empty_root()))
    raw[4] = 3
    with pytest.raises(Corrupt, match="version 3 is not known, only 1 and 2"):
        decode_node(seal(bytes(raw)))


def test_reserved_bytes_are_ignored() -> None:
    raw = bytearray(encode_node(empty_root()))
    raw[6:8], raw[104:120] = b"\xff\xff", b"\xff" * 16
    assert same(decode_node(seal(bytes(raw))), empty_root())


def test_a_count_beyond_the_limit_is_refused_before_it_is_believed() -> None:
    raw = bytearray(encode_node(empty_root()))
    raw[100:104] = (NODE_ENTRY_COUNT_MAX + 1).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="entries=1000001"):
        decode_node(seal(bytes(raw)))


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (replace(a_root(), first_offset=1051), "range is reversed"),
        (replace(empty_root(), first_offset=2**60, next_offset=2**60), "range is reversed"),
        (replace(empty_root(), next_offset=9), "range is not empty"),
        (replace(empty_root(), height=1), "a group is empty"),
        (changed(1, first_offset=1045), "not one run"),
        (changed(1, first_offset=1043), "not one run"),
        (changed(1, next_offset=1044), "an entry is empty"),
        (changed(1, next_offset=1049), "end is not that of its entries"),
        (replace(a_root(), first_offset=1039), "floor is outside"),
        (replace(a_root(), first_offset=1044), "floor is outside"),
        (changed(0, kind=0), "no known kind"),
        (changed(0, kind=4), "no known kind"),
        (changed(0, height=1), "height is impossible"),
        (changed(0, kind=EntryKind.GROUP), "height is impossible"),
        (changed(0, record_count=5), "overfull"),
        (changed(0, byte_size=2**63), "sizes are impossible"),
        (changed(0, byte_size=2**64 - 1), "sizes are impossible"),
        (replace(changed(0, kind=EntryKind.GROUP, height=2), height=2), "its own height"),
        (replace(changed(0, kind=EntryKind.GROUP, height=3), height=2), "its own height"),
    ],
)
def test_an_impossible_node_is_not_written(node: Node, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        encode_node(node)


def lying(number: int, **values: int) -> Node:
    """The root with filters with an entry that lies."""
    node = a_filtered_root()
    for name, value in values.items():
        node.entries[number][name] = value
    return node


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (lying(0, filter_blocks=3), "an impossible filter"),
        (lying(0, filter_blocks=64), "an impossible filter"),
        (lying(0, filter_presence=8), "presence is not known"),
        (lying(0, filter_presence=6), "something unknown is said"),
        (lying(0, filter_presence=5), "blocks of no value"),
        (lying(3, filter_presence=7), "a gap has values"),
        (lying(2, filter_blocks=1, filter_presence=7), "blocks of filters are missing"),
        (lying(0, filters_size=32), "said of what has none"),
        (lying(2, filters_size=32), "said of what has none"),
        (lying(1, filters_size=33), "are odd"),
        (lying(1, filters_size=1 << 20), "larger than their object"),
        (lying(1, filter_position=0), "overlap or miss"),
        (lying(2, filter_position=1), "overlap or miss"),
        (replace(a_filtered_root(), filters=a_filtered_root().filters[:1]), "are missing"),
        (replace(a_root(), filters=a_filtered_root().filters), "are missing"),
    ],
)
def test_impossible_filters_are_not_written(node: Node, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        encode_node(node)


def resealed(raw: bytearray) -> bytes:
    raw[120:124] = crc32c(raw[128 : 128 + 4 * 128]).to_bytes(4, "little")
    raw[112:116] = crc32c(raw[128 + 4 * 128 :]).to_bytes(4, "little")
    raw[124:128] = crc32c(raw[:124]).to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("position", "value", "why"),
    [
        (104, 0, "features are without filters"),
        (104, 3, "features are not those of its entries"),
        (104, 5, "cannot be read by this release: features 0x5"),
        (104, 8, "features are without filters"),
        (104, 9, "features are not those of its entries"),
        (108, 32, "bytes of entries"),
    ],
)
def test_a_header_of_version_2_that_lies_is_refused(position: int, value: int, why: str) -> None:
    raw = bytearray(encode_node(a_filtered_root()))
    raw[position] = value
    with pytest.raises(Corrupt, match=why):
        decode_node(resealed(raw))


def test_damaged_filters_of_a_node_are_refused() -> None:
    raw = bytearray(encode_node(a_filtered_root()))
    raw[-1] ^= 1
    with pytest.raises(Corrupt, match="checksum of its filters"):
        decode_node(bytes(raw))


def test_a_node_that_needs_version_1_only_is_refused_in_version_2() -> None:
    raw = bytearray(encode_node(a_filtered_root()))
    for number in range(4):
        raw[128 + 128 * number + 108 : 128 + 128 * number + 115] = bytes(7)
    raw[108:112] = bytes(4)
    del raw[128 + 4 * 128 :]
    with pytest.raises(Corrupt, match="features are not those"):
        decode_node(resealed(raw))


def test_what_version_1_reserves_in_entries_is_passed_over() -> None:
    raw = bytearray(golden("manifest_root"))
    raw[128 + 108 : 128 + 115] = b"\xff" * 7
    raw[120:124] = crc32c(raw[128:]).to_bytes(4, "little")
    raw[124:128] = crc32c(raw[:124]).to_bytes(4, "little")
    assert encode_node(decode_node(bytes(raw))) == golden("manifest_root")


def test_only_what_is_known_of_other_entries_than_gaps_makes_version_2() -> None:
    node = a_root()
    node.entries["filter_presence"][1] = 1
    assert encode_node(node) == golden("manifest_root")


def test_a_fragments_entry_says_its_filter() -> None:
    node = decode_node(encode_node(a_filtered_group(sized=True)))
    assert fragment_info(node.entries[0], node.filters) == filtered_fragment().info


def test_sizes_of_filters_are_passed_over_where_the_node_does_not_have_them() -> None:
    raw = bytearray(encode_node(a_filtered_root()))
    raw[128 + 128 + 116 : 128 + 128 + 120] = b"\xff" * 4
    assert encode_node(decode_node(resealed(raw))) == encode_node(a_filtered_root())
    sized = encode_node(a_filtered_root(sized=True))
    assert decode_node(sized).entries["filters_size"].tolist() == [
        0,
        filtered_fragment().info.filters_size,
        0,
        0,
    ]


def placed(node: Node, number: int, **values: int) -> Node:
    """The node with an entry that says more of where its object lies."""
    entries = node.entries.copy()
    for name, value in values.items():
        entries[name][number] = value
    return replace(node, entries=entries)


@pytest.mark.parametrize(
    ("node", "features"),
    [
        (placed(a_root(), 0, drive=7), 2),
        (placed(a_root(), 0, copy=2**64 - 1), 2),
        (placed(a_group(), 0, drive=254, copy=1), 2),
        (placed(a_filtered_root(), 0, drive=MIXED), 3),
        (placed(a_filtered_root(sized=True), 1, drive=7, copy=9), 11),
    ],
)
def test_a_node_that_says_drives_has_the_feature_for_it(node: Node, features: int) -> None:
    raw = encode_node(node)
    assert (raw[4], raw[104]) == (2, features)
    assert same(decode_node(raw), node)


def test_a_fragments_entry_says_where_it_lies() -> None:
    info = a_fragment().info._replace(drive=3, copy=0xFEED)
    entry = fragment_entry(info)
    assert (entry["drive"][0], entry["copy"][0]) == (3, 0xFEED)
    assert fragment_info(entry[0]) == info


@pytest.mark.parametrize("name", ["manifest_root", "manifest_root_2_sizes"])
def test_drives_are_passed_over_where_the_node_does_not_have_them(name: str) -> None:
    raw = bytearray(golden(name))
    count = int.from_bytes(raw[100:104], "little")
    for number in range(count):
        start = 128 + 128 * number
        raw[start + 106] = 7
        raw[start + 120 : start + 128] = b"\xff" * 8
    raw[120:124] = crc32c(raw[128 : 128 + 128 * count]).to_bytes(4, "little")
    raw[124:128] = crc32c(raw[:124]).to_bytes(4, "little")
    found = decode_node(bytes(raw))
    assert not found.entries["drive"].any()
    assert not found.entries["copy"].any()
    assert encode_node(found) == golden(name)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (placed(a_group(), 0, drive=MIXED), "no group is on several drives"),
        (placed(a_filtered_root(), 3, drive=1), "a gap is on a drive"),
        (placed(a_filtered_root(), 3, copy=1), "no fragment is a copy"),
        (placed(a_filtered_root(), 0, copy=1), "no fragment is a copy"),
    ],
)
def test_an_impossible_place_is_not_written(node: Node, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        encode_node(node)


def test_a_group_of_groups_is_written() -> None:
    node = replace(changed(0, kind=EntryKind.GROUP, height=1), height=2)
    assert decode_node(encode_node(node)).height == 2


@pytest.mark.parametrize(
    ("position", "why"), [(56, "sizes do not add up"), (64, "records do not add up")]
)
def test_sums_that_are_not_those_of_the_entries_are_refused(position: int, why: str) -> None:
    raw = bytearray(encode_node(a_root()))
    raw[position] ^= 1
    header = seal(bytes(raw[:HEADER_SIZE]))
    with pytest.raises(Corrupt, match=why):
        decode_node(header + bytes(raw[HEADER_SIZE:]))


def test_sums_that_would_overflow_are_refused_on_the_way_in() -> None:
    raw = bytearray(encode_node(a_root()))
    entries = np.frombuffer(raw[HEADER_SIZE:], ENTRY_DTYPE).copy()
    entries["byte_size"] = 2**63
    raw[56:64] = bytes(8)
    raw[120:124] = crc32c(entries.tobytes()).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="sizes are impossible"):
        decode_node(seal(bytes(raw[:HEADER_SIZE])) + entries.tobytes())


def test_a_root_may_end_at_the_last_offset() -> None:
    node = empty_root(OFFSET_MAX + 1)
    assert decode_node(encode_node(node)).next_offset == OFFSET_MAX + 1
    assert (node.stream_id, a_group().uid) == (STREAM_ID, UID)
