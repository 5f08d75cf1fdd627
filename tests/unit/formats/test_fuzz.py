"""Whatever bytes a decoder is given, it reads them or says Corrupt: nothing else, and cheaply.

The golden files are damaged by edits of any kind, and half of them then sealed anew.
"""

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from fuzz.decoders import DECODERS
from golden.regenerate import EXAMPLES, golden
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import Corrupt

COUNT = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "30"))
"""Of each decoder; a long run by hand takes thousands."""
MEMORY_MAX = 4 * 1024 * 1024
"""What a decoder may take for some hundred bytes, whatever sizes they name."""


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def test_every_golden_file_has_its_decoder_here() -> None:
    for name, decoder in DECODERS.items():
        decoder.decode(decoder.good)
        assert decoder.decode(decoder.sealed(decoder.good)) is not NotImplemented, name
    covered = {decoder.good for decoder in DECODERS.values()}
    parts = {"segment", "segment_index", "fragment", "fragment_2", "frame_plain"}
    assert {name for name in EXAMPLES if golden(name) not in covered} <= parts


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=COUNT)
@given(edits=EDITS, sealed=st.booleans())
@example(edits=[("cut", 0, 0)], sealed=False)
@example(edits=[("double", 0, 255)], sealed=True)
def test_damaged_bytes_are_read_or_refused(name: str, edits: list[Edit], sealed: bool) -> None:
    decoder = DECODERS[name]
    data = edited(decoder.good, edits)
    with suppress(Corrupt):
        decoder.decode(decoder.sealed(data) if sealed else data)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=COUNT // 2)
@given(data=st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_or_refused(name: str, data: bytes) -> None:
    decoder = DECODERS[name]
    for one in (data, decoder.sealed(data), decoder.good[:8] + data):
        with suppress(Corrupt):
            decoder.decode(one)


@pytest.mark.parametrize(
    "name",
    [
        "registry",
        "registry 2",
        "record",
        "record 2",
        "consumers",
        "offset",
        "key",
        "key record",
        "operation",
        "plan",
        "WAL instance",
    ],
)
@settings(max_examples=COUNT)
@given(value=json_values, number=st.integers(0, 30))
def test_any_value_in_the_place_of_any_other_is_read_or_refused(
    name: str, value: Any, number: int
) -> None:
    decoder = DECODERS[name]
    whole = orjson.loads(decoder.good)
    places = list(_places(whole))
    holder, key = places[number % len(places)]
    holder[key] = value
    with suppress(Corrupt):
        decoder.decode(decoder.sealed(orjson.dumps(whole)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that holds another."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@pytest.mark.parametrize("name", DECODERS)
def test_no_size_in_any_place_costs_memory(name: str) -> None:
    """M32: before a size is used it is bounded, also under a right checksum.

    Under a wrong one a decoder does nothing that it would not do under a right one, and less of it.
    """
    decoder = DECODERS[name]
    tracemalloc.start()
    try:
        for start in range(0, len(decoder.good) - 3, 4):
            for top in (0x7F, 0xFF, 0x01):
                raw = bytearray(decoder.good)
                raw[start : start + 4] = bytes([0xF8, 0xFF, 0xFF, top])
                with suppress(Corrupt):
                    decoder.decode(decoder.sealed(bytes(raw)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MAX
