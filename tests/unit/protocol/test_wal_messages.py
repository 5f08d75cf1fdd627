"""What is asked of a node about the bytes of its WAL objects, on both sides of the wire."""

import pytest

from bottomless.errors import InvalidRequest
from bottomless.model.limits import WAL_SEQUENCE_MAX, WAL_SIZE_MAX
from bottomless.model.names import Uid
from bottomless_server.protocol.wal import (
    WAL_BYTES,
    WAL_BYTES_QUERY,
    WalBytesAsked,
    decode_wal_bytes_asked,
    instance_in,
    sequence_in,
    wal_bytes,
)

INSTANCE = Uid("00112233445566778899aabbccddeeff")


def received(asked: WalBytesAsked) -> WalBytesAsked:
    """What the other side makes of the parameters as they are sent."""
    sent = {name: str(value) for name, value in asked.params().items()}
    return decode_wal_bytes_asked(
        {name: WAL_BYTES_QUERY[name](text) for name, text in sent.items()}
    )


@pytest.mark.parametrize("sequence", [0, 7, WAL_SEQUENCE_MAX])
def test_the_path_of_an_object_says_which_one_it_is(sequence: int) -> None:
    path = wal_bytes(INSTANCE, sequence)
    names, parts = WAL_BYTES.split("/"), path.split("/")
    found = {
        name.strip("{}"): part for name, part in zip(names, parts, strict=True) if name != part
    }
    assert (instance_in(found), sequence_in(found)) == (INSTANCE, sequence)


@pytest.mark.parametrize(
    "asked", [WalBytesAsked(0, 1), WalBytesAsked(WAL_SIZE_MAX - 1, WAL_SIZE_MAX)]
)
def test_a_range_arrives_as_it_was_asked_for(asked: WalBytesAsked) -> None:
    assert received(asked) == asked


@pytest.mark.parametrize(
    "asked",
    [WalBytesAsked(-1, 1), WalBytesAsked(0, 0), WalBytesAsked(WAL_SIZE_MAX, 1)],
)
def test_a_range_that_no_object_has_is_refused(asked: WalBytesAsked) -> None:
    with pytest.raises(InvalidRequest):
        received(asked)


@pytest.mark.parametrize("name", ["start", "size"])
def test_both_ends_of_a_range_are_asked_for(name: str) -> None:
    values = {each: 1 for each in WAL_BYTES_QUERY if each != name}
    with pytest.raises(InvalidRequest):
        decode_wal_bytes_asked(values)


@pytest.mark.parametrize("text", ["-1", str(WAL_SEQUENCE_MAX + 1), "007", "first"])
def test_what_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        sequence_in({"instance": INSTANCE, "sequence": text})
