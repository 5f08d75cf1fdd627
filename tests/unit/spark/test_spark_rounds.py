"""A round whose staged batches are lost on their way is staged again; one that may be stored is not."""

from collections.abc import Callable

import pytest

from bottomless.errors import Code, NotFound, Outcome, StoreError
from bottomless.model.names import StreamName
from bottomless.spark.jobs import rounds
from bottomless.spark.staging import Target

TARGET = Target("http://127.0.0.1:9", StreamName("orders"))
Rows = list[dict[str, object]]


def lost(outcome: Outcome) -> StoreError:
    return NotFound("it is not there", code=Code.STAGED_NOT_FOUND, outcome=outcome)


def run(monkeypatch: pytest.MonkeyPatch, failures: list[StoreError]) -> tuple[int, int]:
    """Rows that are told to be written, and how often they were staged."""
    staged = 0

    def commit(*_: object) -> int:
        if failures:
            raise failures.pop(0)
        return 5

    def stage() -> Rows:
        nonlocal staged
        staged += 1
        return []

    monkeypatch.setattr(rounds, "commit_round", commit)
    work: Callable[[], Rows] = stage
    return rounds.committed(TARGET, "job", 1, work), staged


def test_a_round_is_staged_again_where_its_batches_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(monkeypatch, [lost(Outcome.NONE)]) == (5, 2)


@pytest.mark.parametrize(
    "failures",
    [
        [lost(Outcome.UNKNOWN)],
        [lost(Outcome.NONE)] * 3,
        [NotFound("no such stream", code=Code.STREAM_NOT_FOUND, outcome=Outcome.NONE)],
    ],
)
def test_a_round_is_not_staged_again_for_ever_nor_where_parts_of_it_are_stored(
    monkeypatch: pytest.MonkeyPatch, failures: list[StoreError]
) -> None:
    with pytest.raises(NotFound):
        run(monkeypatch, list(failures))
