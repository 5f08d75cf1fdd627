"""What comes from outside, of any kind: what a parser takes can be read back, the rest it refuses."""

import os
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from fuzz.parsers import PARSERS
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import InvalidRequest
from bottomless.formats.batch import decode_frames
from bottomless.model.limits import MIB
from bottomless_server.ingest.records.arrow_records import read_arrow
from bottomless_server.ingest.records.json_records import read_records
from bottomless_server.runtime.http.bodies import encode_json
from unit.ingest.harness import arrow

COUNT = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "50"))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=COUNT)
@given(edits=EDITS)
def test_damaged_bodies_are_read_or_refused(name: str, edits: list[Edit]) -> None:
    parser = PARSERS[name]
    with suppress(*parser.refusals):
        parser.parse(edited(parser.good, edits))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
member_names = st.sampled_from(
    ["value", "value_base64", "json", "key", "headers", "event_time", "publishing_id", "x"]
)
records = st.dictionaries(member_names, json_values, max_size=4)


@settings(max_examples=COUNT)
@given(st.lists(records | json_values, max_size=3) | json_values)
def test_json_of_any_kind_is_taken_or_refused(given_records: Any) -> None:
    with suppress(InvalidRequest):
        read_records({"records": given_records}, encode_json)


TEXTS = st.lists(st.none() | st.text(max_size=5), min_size=1, max_size=6)
TYPES = st.sampled_from(
    [
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view()),
    ]
)


@st.composite
def columns(draw: st.DrawFn, count: int) -> Any:
    """Text or bytes in any form, with nulls where they show and where they do not."""
    kind, texts = draw(TYPES), draw(TEXTS)
    if not draw(st.booleans()):
        return pa.array((texts * count)[:count], kind)
    values: Any = pa.array(texts, kind)
    places = st.lists(st.none() | st.integers(0, len(texts) - 1), min_size=count, max_size=count)
    return pa.DictionaryArray.from_arrays(pa.array(draw(places), pa.int8()), values)


@settings(max_examples=COUNT)
@given(st.data(), st.integers(1, 8))
def test_what_is_taken_of_arrow_reads_back_as_it_was_sent(data: st.DataObject, count: int) -> None:
    value, key = data.draw(columns(count)), data.draw(columns(count))
    table = pa.table({"value": value, "key": key})
    sent = [
        tuple(
            text if text is None else text.encode() if isinstance(text, str) else text
            for text in row
        )
        for row in zip(value.to_pylist(), key.to_pylist(), strict=True)
    ]
    try:
        frames, _ = read_arrow(arrow(table), MIB)
    except InvalidRequest:
        assert any(value is None for value, _ in sent), "there was no reason to refuse it"
        return
    batches = [batch for frame in frames for batch in decode_frames(memoryview(frame.data))]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["value"], row.get("key")) for row in rows] == sent


def test_the_good_bodies_are_good() -> None:
    for parser in PARSERS.values():
        parser.parse(parser.good)
