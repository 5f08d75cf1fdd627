"""What a run of everything leaves out, since it must not take longer than a quarter of an hour."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

LEFT_OUT: Final = (
    "tests/chaos/test_chaos.py::test_two_uploaders_of_one_stream_leave_no_gap_and_no_overlap",
    "tests/simulation/test_simulation.py::test_each_guard_that_is_taken_away_is_missed",
    "tests/spark/test_spark_canary.py",
    "tests/spark/test_spark_kills.py",
    "tests/spark/test_spark_packaging.py::test_a_command_with_a_master_goes_by_spark_submit",
    "tests/spark/test_spark_packaging.py::test_the_shell_is_a_session_that_reads_streams_on_a_machine_without_java",
    "tests/spark/test_spark_sink.py::test_a_query_writes_each_row_once_over_restarts[leaderless]",
    "tests/spark/test_spark_sink.py::test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise[leaderless-before]",
    "tests/spark/test_spark_sink.py::test_without_the_idempotent_commit_the_same_death_writes_twice[leaderless]",
    "tests/spark/test_spark_sink.py::test_a_checkpoint_that_was_removed_fails_the_query_and_writes_nothing[leaderless]",
    "tests/spark/test_spark_sink.py::test_the_producer_of_a_query_is_its_app_id_and_the_id_in_its_checkpoint[leaderless]",
)
"""The dearest tests that have a cheaper relative in every run. Whoever names a file or a folder gets
them, and `./dev soak left-out` runs all of them."""


def is_left_out(nodeid: str, places: Sequence[str]) -> bool:
    """Whether a test is left out of a run of these places: of everything, and of nothing else."""
    return {Path(one).name for one in places} == {"tests"} and nodeid.startswith(LEFT_OUT)
