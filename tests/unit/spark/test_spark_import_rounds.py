"""Rounds of an import: the same for the same files, since what is done is known by their numbers."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bottomless.spark.jobs import load
from bottomless.spark.jobs.places import Place


def rounds_of(directory: Path, round_size: int) -> list[list[str]]:
    """Each round as the row groups that it has."""
    files = load.files_of(Place.named(str(directory)))
    return [
        [f"{Path(piece.path).stem}/{n}" for piece in pieces for n in range(piece.first, piece.end)]
        for pieces in load.rounds_of(files, round_size)
    ]


@pytest.mark.parametrize("round_size", [1, 2_000, 5_000, 10**9])
def test_rounds_are_the_same_whatever_a_task_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_size: int
) -> None:
    for number in range(3):
        table = pa.table({"value": [f"{n:04}" for n in range(40 + 70 * number)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=30)
    wanted = rounds_of(tmp_path, round_size)
    groups = [*((0, n) for n in range(2)), *((1, n) for n in range(4)), *((2, n) for n in range(6))]
    assert [one for each in wanted for one in each] == [f"{file}/{n}" for file, n in groups]
    for piece_size in (1, 700, 3_000):
        monkeypatch.setattr(load, "PIECE_SIZE", piece_size)
        assert rounds_of(tmp_path, round_size) == wanted
