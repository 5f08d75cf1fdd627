"""Consumer offsets as JSON: the value in coordination, and the snapshot in the bucket."""

from dataclasses import replace

import orjson
import pytest

from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c
from bottomless.formats.consumers import (
    decode_offset,
    decode_snapshot,
    encode_offset,
    encode_snapshot,
)
from unit.formats.examples import CONSUMERS, assert_refuses_damage


def sealed(**changes: object) -> bytes:
    """The snapshot with other members, under a checksum that is right."""
    members = {**orjson.loads(encode_snapshot(CONSUMERS)), **changes}
    del members["crc32c"]
    return orjson.dumps({**members, "crc32c": f"{crc32c(orjson.dumps(members)):08x}"})


def test_offsets_and_snapshots_come_back() -> None:
    assert decode_snapshot(encode_snapshot(CONSUMERS)) == CONSUMERS
    assert decode_snapshot(encode_snapshot(CONSUMERS._replace(consumers=()))).consumers == ()
    for stored in CONSUMERS.consumers:
        assert decode_offset(encode_offset(stored)) == stored


def test_every_damage_to_a_snapshot_is_refused() -> None:
    assert_refuses_damage(decode_snapshot, encode_snapshot(CONSUMERS))


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ["billing", 1, 1],
        ["billing", 1, 1, 1, 1],
        ["billing", -1, 1, 1],
        ["billing", 2**53 + 1, 1, 1],
        ["billing", True, 1, 1],
        ["billing", 1.0, 1, 1],
        ["a b", 1, 1, 1],
        [7, 1, 1, 1],
    ],
)
def test_a_consumer_that_cannot_be_is_refused(row: object) -> None:
    with pytest.raises(Corrupt):
        decode_offset(orjson.dumps(row))
    with pytest.raises(Corrupt):
        decode_snapshot(sealed(consumers=[row]))


@pytest.mark.parametrize(
    "changes",
    [
        {"stream_id": "x"},
        {"stream_id": 7},
        {"tenant": 7},
        {"version": -1},
        {"version": "1"},
        {"consumers": {}},
        {"more": 1},
    ],
)
def test_a_snapshot_with_members_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode_snapshot(sealed(**changes))


def test_consumers_stand_in_the_order_of_their_names_and_once() -> None:
    first, second = CONSUMERS.consumers
    for consumers in ((second, first), (first, replace(second, consumer=first.consumer))):
        with pytest.raises(Corrupt, match="order"):
            decode_snapshot(encode_snapshot(CONSUMERS._replace(consumers=consumers)))


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(Corrupt, match="not JSON"):
        decode_offset(b"{")
