import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Corrupt
from bottomless.formats.chunk import split_chunks, trailer_of
from bottomless.formats.tracking import ENTRY_SIZE_MIN, decode_tracking, seal_tracking
from bottomless.model.chunk import AppendMode, ChunkFlags, ChunkKind, TrackedEntry, TrackedKind
from bottomless.model.limits import OFFSET_MAX, TIMESTAMP_MAX
from unit.formats.examples import TIMESTAMP, TRACKED, a_tracking_chunk

PRODUCER_BYTES = bytes.fromhex(
    "48 00"  # entry_size: 72
    "01"  # kind: PRODUCER
    "02"  # mode: STRICT
    "01"  # present: producer_id
    "00 00 00"  # reserved
    "00 00 00 00 00 00 00 00"  # first_offset
    "00 68 e5 cf 8b 01 00 00"  # timestamp
    "00 00 00 00"  # record_count
    "00 00 00 00"  # body_crc
    "48 00 00 00 00 00 00 00"  # sequence: 72
    "3c 00 00 00 00 00 00 00"  # epoch_sequence: 60
    "04 00 00 00 00 00 00 00"  # producer_epoch: 4
    "08 6c 6f 61 64 65 72 2d 37"  # producer_id: 8 characters, loader-7
    "00 00 00 00 00 00 00"  # padding
)

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
offsets, timestamps = st.integers(0, OFFSET_MAX), st.integers(0, TIMESTAMP_MAX)
names = st.text(st.characters(max_codepoint=127), max_size=255)
digests = st.binary(min_size=16, max_size=16)
numbers = (st.sampled_from(AppendMode), offsets, timestamps, u32, u32, u64, u64, u64)
tracked = st.one_of(
    st.builds(
        TrackedEntry,
        st.sampled_from([TrackedKind.PRODUCER, TrackedKind.FORGOTTEN]),
        *numbers,
        names,
        st.none(),
        st.none(),
        st.none(),
    ),
    st.builds(
        TrackedEntry,
        st.just(TrackedKind.APPEND),
        *numbers,
        st.none(),
        st.none(),
        st.none(),
        st.none(),
    ),
    st.builds(
        TrackedEntry,
        st.just(TrackedKind.KEY),
        *numbers,
        st.none(),
        digests,
        st.none() | digests,
        st.none() | digests,
    ),
)


def entries_of(data: bytes) -> list[TrackedEntry]:
    [(header, chunk)] = split_chunks(data)
    return decode_tracking(trailer_of(header, chunk))


def test_an_entry_has_exactly_these_bytes() -> None:
    [(header, chunk)] = split_chunks(a_tracking_chunk())
    assert bytes(trailer_of(header, chunk)).startswith(PRODUCER_BYTES)
    assert decode_tracking(PRODUCER_BYTES) == TRACKED[:1]


@given(st.lists(tracked, max_size=5), offsets, st.booleans())
def test_a_tracking_chunk_comes_back_and_takes_no_offset(
    wanted: list[TrackedEntry], offset: int, more: bool
) -> None:
    parts = seal_tracking(
        wanted, first_offset=offset, timestamp=TIMESTAMP, epoch=7, flags=ChunkFlags(more)
    )
    [(header, _)] = split_chunks(b"".join(parts))
    assert (header.kind, header.epoch) == (ChunkKind.TRACKING, 7)
    assert header.first_offset == header.next_offset == offset
    assert entries_of(b"".join(parts)) == wanted


@pytest.mark.parametrize(
    ("position", "value", "why"),
    [
        (0, 0, "its size is 0"),
        (0, 80, "its size is 80"),
        (2, 0, "kind 0"),
        (2, 5, "kind 5"),
        (2, TrackedKind.APPEND, "names no producer, or one too many"),
        (2, TrackedKind.KEY, "names no producer, or one too many"),
        (3, 0, "mode 0"),
        (4, 0, "does not describe"),
        (4, 3, "a hash is cut short|cut short"),
        (15, 1, "first_offset"),
        (23, 1, "timestamp"),
        (71, 1, "does not describe"),
    ],
)
def test_an_entry_that_no_writer_made_is_refused(position: int, value: int, why: str) -> None:
    raw = bytearray(PRODUCER_BYTES)
    raw[position] = value
    with pytest.raises(Corrupt, match=why):
        decode_tracking(bytes(raw))


def test_every_truncation_is_refused() -> None:
    for size in range(1, len(PRODUCER_BYTES)):
        with pytest.raises(Corrupt):
            decode_tracking(PRODUCER_BYTES[:size])


def test_a_producer_without_a_name_is_not_written() -> None:
    with pytest.raises(Corrupt):
        seal_tracking([TRACKED[0]._replace(producer_id=None)], first_offset=0, timestamp=0, epoch=1)


def test_a_remembered_append_costs_no_name() -> None:
    parts = seal_tracking(TRACKED[1:2], first_offset=0, timestamp=0, epoch=1)
    assert sum(map(len, parts)) == 64 + ENTRY_SIZE_MIN
