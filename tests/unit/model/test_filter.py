"""Which records a filter asks for."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import InvalidRequest
from bottomless.model.filter import (
    FILTER_COUNT_MAX,
    Filter,
    filter_of,
    parse_filter_value,
    parse_key,
    parse_key_base64,
)
from bottomless.model.record import Columns

values = st.none() | st.sampled_from(["", "a", "b", "é"])
keys = st.none() | st.sampled_from([b"", b"k", b"\xff"])
filters = st.builds(
    filter_of,
    st.lists(st.sampled_from(["", "a", "é"]), min_size=1, max_size=3),
    st.booleans(),
    st.none() | st.lists(st.sampled_from([b"", b"k"]), min_size=1, max_size=2),
) | st.builds(filter_of, st.none(), st.just(False), st.just([b"\xff"]))


def is_asked_for(wanted: Filter, value: str | None, key: bytes | None) -> bool:
    """The rule in one sentence."""
    by_value = (
        wanted.values is None
        or value in wanted.values
        or (value is None and wanted.match_unfiltered)
    )
    return by_value and (wanted.keys is None or key in wanted.keys)


@given(
    filters, st.lists(st.tuples(values, keys), min_size=1, max_size=12), st.booleans(), st.data()
)
def test_a_filter_asks_for_what_its_rule_says(
    wanted: Filter,
    records: list[tuple[str | None, bytes | None]],
    of_spark: bool,
    data: st.DataObject,
) -> None:
    text = pa.large_string() if of_spark else pa.string()
    batch = pa.record_batch(
        {
            "filter_value": pa.array([value for value, _ in records], text),
            "key": pa.array([key for _, key in records], pa.binary()),
        }
    )
    start = data.draw(st.integers(0, len(records) - 1))

    kept = wanted.mask(batch.slice(start)).to_pylist()

    assert kept == [is_asked_for(wanted, *record) for record in records[start:]]


@given(filters, st.sampled_from(["filter_value", "key"]))
def test_a_column_that_is_not_stored_has_no_value(wanted: Filter, stored: str) -> None:
    texts = ["a", None]
    ids = [b"k", None]
    of_values = stored == "filter_value"
    column: Any = pa.array(texts) if of_values else pa.array(ids)
    columns = Columns.VALUE | Columns[stored.upper()]

    kept = wanted.mask(pa.record_batch({stored: column})).to_pylist()

    if of_values:
        assert kept == [is_asked_for(wanted, text, None) for text in texts]
    else:
        assert kept == [is_asked_for(wanted, None, key) for key in ids]
    assert wanted.may_match(columns) or not any(kept)


def test_nothing_that_is_asked_for_is_no_filter() -> None:
    assert filter_of(None, False, None) is None
    assert filter_of((), False, ()) is None


def test_who_asks_for_the_same_has_the_same_filter() -> None:
    assert filter_of(["b", "a", "b"], True, None) == filter_of(["a", "b"], True, [])


def test_records_without_a_value_are_not_asked_for_alone() -> None:
    with pytest.raises(InvalidRequest, match="beside a value"):
        filter_of(None, True, [b"k"])


@pytest.mark.parametrize(
    ("given_values", "count_max"), [(True, FILTER_COUNT_MAX), (False, 2 * FILTER_COUNT_MAX)]
)
def test_so_many_can_be_asked_for_and_no_more(given_values: bool, count_max: int) -> None:
    def made(count: int) -> Filter | None:
        texts = [str(number) for number in range(count)]
        if given_values:
            return filter_of(texts, False, None)
        return filter_of(None, False, [text.encode() for text in texts])

    assert made(count_max) is not None
    with pytest.raises(InvalidRequest, match=f"at most {count_max}"):
        made(count_max + 1)


def test_values_and_keys_are_as_long_as_those_of_records() -> None:
    assert parse_filter_value("") == ""
    assert parse_filter_value("é" * 127) == "é" * 127
    assert parse_key("k" * 1024) == b"k" * 1024
    for parse, text in (
        (parse_filter_value, "é" * 128),
        (parse_filter_value, "\ud800"),
        (parse_key, "k" * 1025),
        (parse_key, "\ud800"),
        (parse_key_base64, "AAAA" * 342),
    ):
        with pytest.raises(InvalidRequest):
            parse(text)


@pytest.mark.parametrize("text", ["//8=", "//8", "__8", "__8="])
def test_base64_comes_in_either_alphabet_with_padding_or_without(text: str) -> None:
    assert parse_key_base64(text) == b"\xff\xff"


@pytest.mark.parametrize("text", ["A", "a b=", "é", "//8\n"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        parse_key_base64(text)
