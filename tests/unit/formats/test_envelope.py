"""The envelope of a message: what is written is read again, and what is damaged is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.envelope import FIXED_SIZE, decode_envelope, encode_envelope
from bottomless.model.limits import TIMESTAMP_MAX, TIMESTAMP_MIN
from bottomless.model.queue import QueueMessage, QueuePlace
from bottomless.model.record import Content
from unit.formats.examples import QUEUE_ID, QUEUE_MESSAGE

timestamps = st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
queue_messages = st.builds(
    QueueMessage,
    content=st.sampled_from(Content),
    priority=st.integers(0, 9),
    published_at=timestamps,
    expires_at=st.none() | timestamps.filter(bool),
    queues=st.lists(
        st.builds(QueuePlace, st.binary(min_size=16, max_size=16), st.integers(0, 2**63 - 1)),
        min_size=1,
        max_size=4,
    ).map(tuple),
    headers=st.lists(st.tuples(names, st.binary(max_size=9)), max_size=4).map(tuple),
    value=st.binary(max_size=50),
    due_at=st.none() | timestamps.filter(bool),
)


def written(message: QueueMessage) -> bytes:
    return b"".join(encode_envelope(message))


@given(message=queue_messages)
def test_what_is_written_is_read_again(message: QueueMessage) -> None:
    found = decode_envelope(written(message))
    assert found._replace(value=bytes(found.value)) == message


def test_a_value_is_not_copied() -> None:
    assert encode_envelope(QUEUE_MESSAGE)[1] is QUEUE_MESSAGE.value


def test_an_envelope_that_is_cut_before_its_value_is_refused() -> None:
    data = written(QUEUE_MESSAGE)
    for end in range(len(data) - len(QUEUE_MESSAGE.value)):
        with pytest.raises(Corrupt):
            decode_envelope(data[:end])


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (0, b"\2", "version 2 is not known, only 1"),
        (1, b"\3", "content 3 is not known"),
        (2, b"\x0a", "priority 10 is above 9"),
        (4, b"\x7f", "published_at=.* is no timestamp"),
        (12, b"\x7f", "expires_at=.* is no timestamp"),
        (20, b"\x7f", "due_at=.* is no timestamp"),
        (28, b"\0\0", "names 0 queues|fill their size|cut off|longer"),
        (28, b"\xff\xff", "shorter than its parts"),
        (30, b"\0\3", "a header is cut off"),
        (30, b"\0\1", "do not fill their size"),
        (32, b"\0\0\0\x19", "longer than all headers|cut off"),
        (FIXED_SIZE + 16, b"\xff", "sequence .* is above"),
        (FIXED_SIZE + 48, b"\0\0", "a header"),
        (FIXED_SIZE + 50, b"\xff", "not UTF-8"),
    ],
)
def test_what_no_writer_writes_is_refused(place: int, value: bytes, why: str) -> None:
    data = bytearray(written(QUEUE_MESSAGE))
    data[place : place + len(value)] = value
    with pytest.raises(Corrupt, match=why):
        decode_envelope(bytes(data))


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"queues": ()},
        {"queues": (QueuePlace(QUEUE_ID, 0),) * 65_536},
        {"queues": (QueuePlace(QUEUE_ID, 2**63),)},
        {"headers": (("", b""),)},
        {"headers": (("n" * 65_536, b""),)},
        {"headers": (("n", b""),) * 65_536},
        {"published_at": TIMESTAMP_MAX + 1},
    ],
)
def test_what_no_reader_takes_is_not_written(wrong: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        encode_envelope(QUEUE_MESSAGE._replace(**wrong))  # type: ignore[arg-type]


def test_the_reserved_byte_means_nothing() -> None:
    data = bytearray(written(QUEUE_MESSAGE))
    data[3] = 7
    assert bytes(decode_envelope(bytes(data)).value) == QUEUE_MESSAGE.value
