"""That a streaming query of a test begins again after one failure alone: see the module."""

from collections.abc import Iterator

import pytest
from support.spark_queries import BEGINNINGS_MAX, GAVE_UP, begun

SLOW = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {GAVE_UP}."
OTHER = "[STREAM_FAILED] Query [id = 1] terminated with exception: killed in a batch"


class Ended:
    """A query that has ended, as Spark shows one."""

    isActive = False  # noqa: N815  # Spark's name
    status = {"message": "Terminated with exception"}  # noqa: RUF012  # as Spark's is

    def __init__(self, error: str | None) -> None:
        self._error = error

    def exception(self) -> Exception | None:
        return RuntimeError(self._error) if self._error else None


class Beginning(Ended):
    """A query that says once that it initializes, and then that it works."""

    isActive = True  # noqa: N815  # Spark's name

    def __init__(self) -> None:
        super().__init__(None)
        self._messages = iter(["Initializing sources", "Processing new data"])

    @property
    def status(self) -> dict[str, str]:  # type: ignore[override]
        return {"message": next(self._messages)}


def test_a_query_whose_python_came_too_late_begins_again_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    queries: Iterator[Ended] = iter([Ended(SLOW), Ended(SLOW), ends := Ended(None)])

    assert begun(lambda: next(queries), 60) is ends
    assert capsys.readouterr().out.count(GAVE_UP) == 2


def test_any_other_failure_is_the_query_s_own() -> None:
    queries = iter([fails := Ended(OTHER)])

    assert begun(lambda: next(queries), 60) is fails


def test_a_query_that_never_gets_its_python_fails() -> None:
    made: list[Ended] = []

    def begin() -> Ended:
        made.append(Ended(SLOW))
        return made[-1]

    assert begun(begin, 60) is made[-1]
    assert len(made) == BEGINNINGS_MAX


def test_a_query_is_looked_at_when_its_sources_are_there() -> None:
    query = Beginning()

    assert begun(lambda: query, 60) is query
    with pytest.raises(StopIteration):
        _ = query.status
