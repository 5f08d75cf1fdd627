"""Request bodies of any kind: what a parser takes can be read back, the rest it refuses."""

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import InvalidRequest
from bottomless.formats.batch import decode_frames
from bottomless.model.limits import MIB
from bottomless_server.ingest.core.arrow_records import read_arrow
from bottomless_server.ingest.core.frames import read_frames
from bottomless_server.ingest.core.json_records import read_records
from bottomless_server.runtime.bodies import encode_json, parse_json
from bottomless_server.runtime.encodings import decode_body
from unit.formats.examples import a_frame
from unit.ingest.house import arrow

COUNT = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "100"))
FRAME_SIZE_MAX = 100_000
TABLE = pa.table(
    {
        "value": pa.array([b"one", b"", b"three" * 20], pa.binary()),
        "key": pa.array(["a", None, "c"], pa.string()),
        "headers": pa.array([[("h", b"1")], None, []], pa.map_(pa.string(), pa.binary())),
    }
)


def as_arrow(body: bytes) -> None:
    frames, _ = read_arrow(body, FRAME_SIZE_MAX)
    for frame in frames:
        [batch] = decode_frames(memoryview(frame.data))
        batch.validate(full=True)
        batch.to_pylist()


def as_frames(body: bytes) -> None:
    for frame in read_frames(body, FRAME_SIZE_MAX):
        [batch] = decode_frames(memoryview(frame.data))
        batch.validate(full=True)
        assert batch.num_rows == frame.record_count


def as_json(body: bytes) -> None:
    rows, _ = read_records(parse_json(body), encode_json)
    assert rows.size >= 0


JSON_BODY = orjson.dumps(
    {
        "records": [
            {"value": "a", "key": "k", "headers": {"h": "v"}},
            {"value_base64": "AAEC"},
            {"json": {"n": [1, 2.5, None]}, "event_time": "2026-11-21T08:00:00Z"},
        ]
    }
)
PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "arrow": (as_arrow, arrow(TABLE)),
    "arrow of text": (as_arrow, arrow(pa.table({"value": ["a", "b"]}))),
    "frames": (as_frames, a_frame([b"one", b"two"]) * 2),
    "json": (as_json, JSON_BODY),
    "gzip": (lambda body: decode_body(body, "gzip", MIB), gzip.compress(JSON_BODY)),
    "zstd": (
        lambda body: decode_body(body, "zstd", MIB),
        pa.compress(JSON_BODY, codec="zstd", asbytes=True),
    ),
}


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=COUNT)
@given(edits=EDITS)
def test_damaged_bodies_are_read_or_refused(name: str, edits: list[Edit]) -> None:
    parse, good = PARSERS[name]
    with suppress(InvalidRequest):
        parse(edited(good, edits))


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
    for parse, good in PARSERS.values():
        parse(good)
