"""Fetched chunks, divided into what may stand in one fragment."""

import pytest
from support.chunks import a_chunk

from bottomless.errors import Corrupt
from bottomless.formats.chunk import encode_header
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind
from bottomless_server.uploader.core import epochs
from bottomless_server.uploader.core.epochs import Piece, divide


def joined(piece: Piece) -> bytes:
    return b"".join(data for data in piece.data if isinstance(data, memoryview))


def a_tracking_chunk(first_offset: int, epoch: int) -> bytes:
    return encode_header(
        ChunkHeader(
            ChunkKind.TRACKING, ChunkFlags.NONE, 64, 0, first_offset, 1_000, epoch, 0, 0, 0, 0, 0
        )
    )


def test_chunks_of_one_epoch_stay_together_over_answers() -> None:
    chunks = [a_chunk(0), a_chunk(10), a_chunk(20)]

    (piece,) = divide([chunks[0] + chunks[1], chunks[2]], 0)

    assert (piece.epoch, piece.first_offset, piece.next_offset) == (1, 0, 30)
    assert joined(piece) == b"".join(chunks)
    assert piece.size == len(b"".join(chunks))


def test_an_epoch_ends_a_piece_wherever_it_changes() -> None:
    old, new = [a_chunk(0), a_chunk(10)], [a_chunk(20, epoch=2), a_chunk(30, epoch=2)]

    for data in ([b"".join(old + new)], [*old, *new], [old[0], old[1] + new[0], new[1]]):
        pieces = divide(data, 0)
        assert [(p.epoch, p.first_offset, p.next_offset) for p in pieces] == [
            (1, 0, 20),
            (2, 20, 40),
        ]
        assert [joined(piece) for piece in pieces] == [b"".join(old), b"".join(new)]


def test_a_piece_without_a_record_is_left_out() -> None:
    data = a_tracking_chunk(0, epoch=1) + a_chunk(0, epoch=2)

    (piece,) = divide([data], 0)

    assert (piece.epoch, piece.first_offset, piece.next_offset) == (2, 0, 10)


def test_too_many_chunks_end_a_piece_but_not_inside_an_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epochs, "CHUNK_COUNT_MAX", 2)
    chunks = [a_chunk(0), a_chunk(10, flags=ChunkFlags.MORE_FOLLOWS), a_chunk(20), a_chunk(30)]

    pieces = divide([b"".join(chunks)], 0)

    assert [(p.first_offset, p.next_offset) for p in pieces] == [(0, 30), (30, 40)]


@pytest.mark.parametrize(
    "data",
    [
        [a_chunk(10)],
        [a_chunk(0), a_chunk(20)],
        [a_chunk(0)[:-8]],
        [b"\xff" + a_chunk(0)[1:]],
    ],
    ids=["late", "gap", "cut", "damaged"],
)
def test_what_is_not_a_dense_run_of_chunks_is_corrupt(data: list[bytes]) -> None:
    with pytest.raises(Corrupt):
        divide(data, 0)
