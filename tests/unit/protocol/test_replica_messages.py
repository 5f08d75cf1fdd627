"""What goes between an owner and those that follow it: bytes, and what is refused."""

from typing import Any

import orjson
import pytest
from golden.regenerate import golden
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.chunk import decode_header
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import NodeId
from bottomless_server.protocol.held import HeldThere, decode_held, encode_held
from bottomless_server.protocol.replica import (
    END_COUNT_MAX,
    HEAD_SIZE,
    ITEM_SIZE,
    Answer,
    EpochEnd,
    Item,
    Opening,
    OpenSaid,
    Place,
    Taken,
    chunks_of,
    decode_answers,
    decode_items,
    decode_open_said,
    decode_opening,
    encode_answers,
    encode_items,
    encode_open_said,
    encode_opening,
)
from unit.formats.examples import damaged
from unit.ingest.harness import STREAM

CHUNK = golden("chunk")
EPOCH = decode_header(CHUNK).epoch
BEGUN = Item(STREAM, EPOCH, Place(70, 64), 8, 7, 6, begins=True, before=4_096, data=CHUNK)
BOUNDS = BEGUN._replace(begins=False, before=0, data=b"")
OPENING = Opening(5, (EpochEnd(2, Place(0, 80), 3), EpochEnd(4, Place(3, 99), 9)), 0, 6, 12)

numbers = st.integers(0, 2**63 - 1)
offsets = st.integers(0, OFFSET_MAX + 1)
items = st.builds(
    Item,
    st.just(STREAM),
    numbers,
    st.builds(Place, offsets, numbers),
    offsets,
    offsets,
    numbers,
    begins=st.just(True),
    before=st.integers(0, 2**32 - 1),
    data=st.binary(max_size=40),
)


def written(*several: Item) -> bytes:
    return b"".join(encode_items(several))


def test_a_body_has_the_bytes_that_its_table_says() -> None:
    body = written(BEGUN)
    assert (HEAD_SIZE, ITEM_SIZE) == (16, 80)
    assert body[:12].hex() == "424c72700100000001000000"
    header = body[HEAD_SIZE : HEAD_SIZE + ITEM_SIZE]
    assert header[:16] == STREAM_BYTES
    fields = [int.from_bytes(header[at : at + 8], "little") for at in range(16, 64, 8)]
    assert fields == [EPOCH, 70, 64, 8, 7, 6]
    assert int.from_bytes(header[64:68], "little") == len(CHUNK)
    assert header[68:76].hex() == "0100000000100000"
    assert body[HEAD_SIZE + ITEM_SIZE :] == CHUNK


STREAM_BYTES = bytes.fromhex(str(STREAM).replace("-", ""))


def test_what_a_node_holds_is_read_as_it_was_said_also_by_an_older_release() -> None:
    said = HeldThere(True, 3, 70, (NodeId("b" * 32),), (NodeId("c" * 32),))
    body = orjson.loads(orjson.dumps(encode_held(said)))
    assert decode_held(body) == said
    del body["stalled"]
    assert decode_held(body) == said._replace(stalled=())


def test_the_opening_and_the_answers_are_json() -> None:
    assert encode_opening(OPENING) == (
        b'{"epoch":5,"ends":[[2,0,80,3],[4,3,99,9]],"local_first":0,"published_next":6,"version":12,'
        b'"shown":true}'
    )
    assert encode_answers([Answer(Taken.OK, Place(3, 99))]) == b'[["ok",3,99]]'


@given(st.lists(items, max_size=4))
def test_items_are_read_as_they_were_written(several: list[Item]) -> None:
    assert decode_items(written(*several)) == several


def test_chunks_of_an_item_are_verified() -> None:
    (item,) = decode_items(written(BEGUN))
    assert [bytes(chunk) for _, chunk in chunks_of(item)] == [CHUNK]
    assert chunks_of(BOUNDS) == []
    with pytest.raises(Corrupt):
        chunks_of(BEGUN._replace(data=CHUNK[:-8]))
    with pytest.raises(Corrupt, match="epoch"):
        chunks_of(BEGUN._replace(epoch=EPOCH - 1))


def is_refused(body: bytes) -> bool:
    try:
        decode_items(body)
    except Corrupt:
        return True
    return False


def test_a_damaged_head_is_refused() -> None:
    body = written(BOUNDS)
    for what, other in damaged(body):
        assert is_refused(other), what


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b'{"epoch":5}',
        encode_opening(OPENING._replace(epoch=4)),
        encode_opening(OPENING._replace(local_first=7)),
        encode_opening(OPENING._replace(epoch=2**63)),
        encode_opening(OPENING._replace(published_next=OFFSET_MAX + 2)),
        encode_opening(OPENING._replace(ends=(EpochEnd(2, Place(0, 80), OFFSET_MAX + 2),))),
        encode_opening(OPENING._replace(ends=OPENING.ends[::-1])),
        encode_opening(OPENING._replace(ends=OPENING.ends[:1] * 2)),
        encode_opening(OPENING).replace(b":5", b":true"),
        encode_opening(OPENING).replace(b"[2,0,80,3]", b"[2,0,80]"),
        encode_opening(OPENING).replace(b"}", b',"more":1}'),
        encode_opening(OPENING._replace(ends=OPENING.ends[:1] * (END_COUNT_MAX + 1))),
    ],
)
def test_an_opening_that_cannot_be_is_refused(said: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_opening(said)


@pytest.mark.parametrize(
    "beyond",
    [
        {"place": Place(OFFSET_MAX + 2, 64)},
        {"committed_next": OFFSET_MAX + 2},
        {"published_next": OFFSET_MAX + 2},
    ],
)
def test_an_item_with_an_offset_that_no_stream_has_is_refused(beyond: dict[str, Any]) -> None:
    """No checkpoint could be written that has it."""
    assert is_refused(written(BOUNDS._replace(**beyond)))


@pytest.mark.parametrize("said", [b"", b"{}", b"[]", b'[["no",0,0]]', b'[["ok",0]]', b"[[[],0,0]]"])
def test_answers_that_cannot_be_are_refused(said: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_answers(said, 1)


def test_what_was_said_is_understood() -> None:
    assert decode_opening(encode_opening(OPENING)) == OPENING
    answers = [Answer(taken, Place(1, 64)) for taken in Taken]
    assert decode_answers(encode_answers(answers), len(answers)) == answers


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_items, decode_opening):
        with pytest.raises(Corrupt):
            decode(data)


@pytest.mark.parametrize(
    "said",
    [OpenSaid(None, None), OpenSaid(None, Place(3, 64)), OpenSaid("fenced", None)],
)
def test_the_answer_to_an_opening_is_understood(said: OpenSaid) -> None:
    assert decode_open_said(encode_open_said(said)) == said


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b'{"refusal":null}',
        b'{"refusal":"no","end":null}',
        b'{"refusal":[],"end":null}',
        b'{"refusal":null,"end":[1]}',
        b'{"refusal":null,"end":[1,-1]}',
    ],
)
def test_an_answer_to_an_opening_that_cannot_be_is_that_of_a_node_that_is_away(said: bytes) -> None:
    with pytest.raises(Unavailable):
        decode_open_said(said)
