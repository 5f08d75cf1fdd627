"""What comes from outside, of any kind: what a parser takes can be read back, the rest it refuses."""

import os
from contextlib import suppress
from typing import Any

import pytest
from fuzz.parsers import PARSERS
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import InvalidRequest
from bottomless_server.ingest.core.json_records import read_records
from bottomless_server.runtime.bodies import encode_json

COUNT = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "100"))


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


def test_the_good_bodies_are_good() -> None:
    for parser in PARSERS.values():
        parser.parse(parser.good)
