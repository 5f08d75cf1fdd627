"""Progress of a query as Spark reports it, as records read and records left."""

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


def test_the_first_batch_has_no_start_and_may_know_no_end() -> None:
    made = progress_of("id", None, 0, None, position(40), None, 0)
    assert made is not None
    assert (made.start_offset, made.lag, made.absent) == (40, None, 0)


def test_other_sources_are_left_to_others() -> None:
    for end in (None, "null", "7", "{}", '{"orders": {"0": 7}}', '{"v":1,"s":{}}', "[]"):
        assert progress_of("id", None, 0, None, end, None, 7) is None
