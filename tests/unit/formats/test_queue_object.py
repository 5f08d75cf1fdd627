"""The registry object of a queue: what a rebuild has to know of it."""

from typing import Any

import orjson
import pytest

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.queue_object import (
    READERS,
    decode_queue_object,
    encode_queue_object,
)
from bottomless.formats.sealed_json import seal
from unit.formats.examples import QUEUE_OBJECT, assert_refuses_damage


def changed(**members: Any) -> bytes:
    """A sealed object with other members."""
    there = orjson.loads(encode_queue_object(QUEUE_OBJECT))
    del there["format"], there["crc32c"]
    return seal({**there, **members})


def test_a_queue_comes_back() -> None:
    assert decode_queue_object(encode_queue_object(QUEUE_OBJECT)) == QUEUE_OBJECT


def test_every_damage_is_refused() -> None:
    assert_refuses_damage(decode_queue_object, encode_queue_object(QUEUE_OBJECT))


def test_one_of_a_later_version_is_left_to_who_can_read_it() -> None:
    members = orjson.loads(encode_queue_object(QUEUE_OBJECT)) | {"format": 2}
    with pytest.raises(NotServed):
        decode_queue_object(orjson.dumps(members))


@pytest.mark.parametrize("name", READERS)
def test_a_member_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(Corrupt):
        decode_queue_object(changed(**{name: ["no"]}))


@pytest.mark.parametrize(
    "members",
    [
        {"queue_id": "zz" * 16},
        {"queue_id": "00" * 15},
        {"name": "../up"},
        {"tenant": "_system"},
        {"version": 0},
        {"purged_below": -1},
        {"reserved_below": 2**63},
        {"config": {"unknown": 1}},
        {"config": {"max_deliveries": 3}},
    ],
)
def test_what_no_writer_writes_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        decode_queue_object(changed(**members))
