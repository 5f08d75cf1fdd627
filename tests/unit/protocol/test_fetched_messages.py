"""What readers say of fragments that they fetched, back to the same values, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bottomless.errors import InvalidRequest
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.protocol.fetched import (
    FETCHED_COUNT_MAX,
    FetchedTold,
    FragmentFetched,
    encode_fetched,
)
from unit.protocol.wire import STREAM_ID

fetched = st.builds(
    FragmentFetched,
    st.just(STREAM_ID),
    st.integers(0, OFFSET_MAX),
    st.integers(0, 254),
    st.integers(1, OFFSET_MAX),
)


@given(st.lists(fetched, max_size=3))
def test_what_was_fetched_is_told_whole(fragments: list[FragmentFetched]) -> None:
    told = FetchedTold.model_validate(encode_fetched(fragments))

    assert told.by_stream() == ({STREAM_ID: fragments} if fragments else {})


@pytest.mark.parametrize(
    "change", [{"bytes": 0}, {"drive": 255}, {"first_offset": -1}, {"more": 1}, {"bytes": "1"}]
)
def test_what_cannot_be_is_refused(change: dict[str, Any]) -> None:
    (said,) = encode_fetched([FragmentFetched(STREAM_ID, 0, 0, 1)])["fragments"]

    with pytest.raises(ValidationError):
        FetchedTold.model_validate({"fragments": [{**said, **change}]})


def test_more_than_one_request_tells_of_is_refused() -> None:
    said = encode_fetched([FragmentFetched(STREAM_ID, 0, 0, 1)] * (FETCHED_COUNT_MAX + 1))

    with pytest.raises(ValidationError):
        FetchedTold.model_validate(said)


def test_what_is_no_stream_is_refused() -> None:
    (said,) = encode_fetched([FragmentFetched(STREAM_ID, 0, 0, 1)])["fragments"]

    with pytest.raises(InvalidRequest):
        FetchedTold.model_validate({"fragments": [{**said, "stream_id": "x"}]}).by_stream()
