from bottomless.model.chunk import ChunkPlace
from bottomless.model.record import Columns, Content, Record
from unit.formats.examples import TIMESTAMP


def test_a_place_ends_where_the_next_chunk_starts() -> None:
    assert ChunkPlace(1040, TIMESTAMP, 64, 3, 312, 2).next_offset == 1042


def test_a_record_is_bytes_unless_it_says_otherwise() -> None:
    record = Record(7, TIMESTAMP, b"x")
    assert (record.content, record.key, record.headers) == (Content.BYTES, None, None)


def test_all_columns_are_all_there_are() -> None:
    assert sum(column for column in Columns) == Columns.ALL
