"""Progress of a query as Spark reports it, as records read and records left."""

import json

from bottomless.model.names import StreamId, StreamName
from bottomless.spark.positions import began_at, position_of
from bottomless.spark.progress import progress_of

STREAM_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"


def position(offset: int) -> str:
    return f'{{"v": 1, "s": {{"orders": {{"o": {offset}, "u": "{STREAM_ID}"}}}}}}'


def test_rows_lag_and_absent_records_are_told() -> None:
    made = progress_of("id", "etl", 3, position(10), position(40), position(100), 25)
    assert made is not None
    assert (made.stream, made.stream_id) == ("orders", STREAM_ID)
    assert (made.start_offset, made.end_offset, made.rows) == (10, 40, 25)
    assert (made.lag, made.absent) == (60, 5)


def test_the_first_batch_starts_where_the_query_began() -> None:
    """Spark reports no start of it, and the end was taken for one: 2,000,000 to 2,000,000."""
    stream = StreamName("orders")
    latest = json.dumps(began_at(position_of(100, stream, StreamId(STREAM_ID)), 10))
    for rows, absent in ((30, 0), (25, 5), (0, 30)):
        made = progress_of("id", None, 0, None, position(40), latest, rows)
        assert made is not None
        assert (made.start_offset, made.end_offset, made.rows) == (10, 40, rows)
        assert (made.lag, made.absent) == (60, absent)
    later = progress_of("id", None, 1, position(40), position(60), latest, 20)
    assert later is not None
    assert (later.start_offset, later.absent) == (40, 0)


def test_the_first_batch_of_a_worker_that_does_not_say_has_its_rows_at_least() -> None:
    for latest in (None, position(100)):
        made = progress_of("id", None, 0, None, position(40), latest, 30)
        assert made is not None
        assert (made.start_offset, made.absent) == (10, 0)


def test_other_sources_are_left_to_others() -> None:
    for end in (None, "null", "7", "{}", '{"orders": {"0": 7}}', '{"v":1,"s":{}}', "[]"):
        assert progress_of("id", None, 0, None, end, None, 7) is None
