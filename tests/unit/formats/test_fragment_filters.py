"""Filter tables of a fragment: they come back, and leave out no chunk that has what is asked for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.filter import asked_hashes, build, hash_values
from bottomless.formats.fragment_filters import (
    LINE_DTYPE,
    FilterTable,
    chunks_to_read,
    decode_filters,
    encode_filters,
)
from bottomless.model.fragment import Presence
from bottomless.model.record import Columns
from unit.formats.examples import a_filter_table

BOTH = Presence.SOME | Presence.NONE


def same(left: FilterTable, right: FilterTable) -> bool:
    return all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in FilterTable.__slots__
    )


def keys_table() -> FilterTable:
    return FilterTable(
        Columns.KEY, Presence.SOME, build(hash_values([b"cust-9"]), 1), distinct_count=1
    )


def test_tables_come_back() -> None:
    tables = (a_filter_table(), keys_table())
    data = encode_filters(tables, 3)
    assert len(data) == sum(table.size for table in tables)
    assert all(map(same, decode_filters(data, 3), tables))


def test_a_table_without_values_comes_back() -> None:
    table = FilterTable(Columns.FILTER_VALUE, Presence.NONE, a_filter_table().blocks[:0])
    [found] = decode_filters(encode_filters([table], 5), 5)
    assert same(found, table)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(a_filter_table(), presence=Presence.NONE),
        replace(a_filter_table(), presence=Presence.KNOWN | Presence.SOME),
        replace(a_filter_table(), presence=Presence(0)),
        replace(a_filter_table(), column=Columns.VALUE),
        replace(a_filter_table(), blocks=np.zeros((3, 8), np.uint32)),
        replace(a_filter_table(), blocks=np.zeros((1_024, 8), np.uint32)),
        replace(a_filter_table(), distinct_count=0),
        replace(a_filter_table(), lines=a_filter_table().lines[:2]),
        replace(a_filter_table(), chunk_blocks=a_filter_table().chunk_blocks[:1]),
        replace(a_filter_table(), lines=a_filter_table().lines[::-1]),
    ],
)
def test_what_contradicts_itself_is_not_written(wrong: FilterTable) -> None:
    with pytest.raises(Corrupt, match="fragment filters"):
        encode_filters([wrong], 3)


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, 1), (2, 2), (3, 1), (3, 8), (4, 3), (8, 2), (12, 9), (16, 0)],
)
def test_a_damaged_head_is_refused(position: int, value: int) -> None:
    data = bytearray(encode_filters([a_filter_table()], 3))
    data[position] = value
    with pytest.raises(Corrupt, match="fragment filters"):
        decode_filters(bytes(data), 3)


@pytest.mark.parametrize("size", [1, 31, 33, 70])
def test_tables_that_are_cut_short_are_refused(size: int) -> None:
    with pytest.raises(Corrupt, match="cut short"):
        decode_filters(encode_filters([a_filter_table()], 3)[:size], 3)


def test_tables_are_in_one_order_and_each_is_there_once() -> None:
    for tables in ([], [keys_table(), a_filter_table()], [keys_table(), keys_table()]):
        with pytest.raises(Corrupt, match="fragment filters"):
            encode_filters(tables, 3)


def test_a_chunk_is_left_out_only_where_its_table_says_so() -> None:
    """Chunks: emea and apac, nothing but records without a value, and amer beside those."""
    table = a_filter_table()

    def asked(*values: bytes, unfiltered: bool = False) -> list[bool]:
        question = asked_hashes(values, match_unfiltered=unfiltered)
        return [bool(one) for one in chunks_to_read([table], 3, question)]

    assert asked(b"emea") == [True, False, False]
    assert asked(b"amer", b"apac") == [True, False, True]
    assert asked(b"amer", unfiltered=True) == [False, True, True]
    assert asked(b"nowhere") == [False, False, False]


def test_without_a_table_every_chunk_is_read() -> None:
    assert chunks_to_read([], 2, asked_hashes([b"emea"])).all()
    assert chunks_to_read([a_filter_table()], 3, asked_hashes(None, keys=[b"k"])).all()


def test_without_lines_the_fragment_speaks_for_its_chunks() -> None:
    table = replace(
        a_filter_table(), lines=np.empty(0, LINE_DTYPE), chunk_blocks=a_filter_table().blocks[:0]
    )
    assert chunks_to_read([table], 3, asked_hashes([b"emea"])).all()
    assert not chunks_to_read([table], 3, asked_hashes([b"nowhere"])).any()


def test_both_kinds_together_mean_both() -> None:
    tables = (a_filter_table(), keys_table())
    assert chunks_to_read(tables, 3, asked_hashes([b"emea"], keys=[b"cust-9"])).tolist() == [
        True,
        False,
        False,
    ]
    assert not chunks_to_read(tables, 3, asked_hashes([b"emea"], keys=[b"cust-8"])).any()


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    try:
        tables = decode_filters(data, 3)
    except Corrupt:
        return
    assert encode_filters(tables, 3)
