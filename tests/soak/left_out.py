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
)
"""The dearest tests that have a cheaper relative in every run. Whoever names a file or a folder gets
them, and `./dev soak left-out` runs all of them."""


def is_left_out(nodeid: str, places: Sequence[str]) -> bool:
    """Whether a test is left out of a run of these places: of everything, and of nothing else."""
    return {Path(one).name for one in places} == {"tests"} and nodeid.startswith(LEFT_OUT)
