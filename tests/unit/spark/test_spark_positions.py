"""Positions in a checkpoint: the same text for the same place, and of the right stream."""

import json

import pytest

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.positions import Pinned, position_of, read_position

NAME = StreamName("orders")
STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")


def test_a_position_has_exactly_this_text() -> None:
    text = json.dumps(position_of(123, NAME, STREAM_ID), separators=(",", ":"))
    assert text == f'{{"v":1,"s":{{"orders":{{"o":123,"u":"{STREAM_ID}"}}}}}}'


def test_what_was_written_is_read() -> None:
    assert read_position(position_of(0, NAME, STREAM_ID), NAME) == Pinned(0, STREAM_ID)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"v": 2, "s": {"orders": {"o": 1, "u": STREAM_ID}}},
        {"v": 1, "s": {"bills": {"o": 1, "u": STREAM_ID}}},
        {"v": 1, "s": {"orders": {"o": -1, "u": STREAM_ID}}},
        {"v": 1, "s": {"orders": {"o": 1, "u": "orders"}}},
        {"v": 1, "s": {"orders": 7}},
    ],
)
def test_a_position_of_something_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        read_position(value, NAME)
