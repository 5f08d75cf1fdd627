"""An export as an Iceberg table: a round is there once, whatever happens to its commit; and twice, or
broken, where what sees to that is taken out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.iceberg import CATALOG, NAMESPACE, iceberg_catalog

from bottomless.errors import WrongOffset
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.jobs import iceberg_output
from bottomless.spark.jobs.file_writer import Written
from bottomless.spark.jobs.iceberg_output import IcebergOutput
from bottomless.spark.jobs.outputs import Round, Subject

TYPES: Any = {"offset": pa.int64(), "value": pa.binary()}
SCHEMA = pa.schema(TYPES)
ROUND = Round(0, 10, ((0, 10),))
TABLE = f"{NAMESPACE}.orders"

Commit = Callable[..., Any]


class Dead(BaseException):
    """What is left of an export that was killed."""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    with iceberg_catalog(tmp_path) as made:
        yield made


def an_export() -> IcebergOutput:
    subject = Subject(StreamName("orders"), StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"))
    return IcebergOutput(CATALOG, TABLE, subject, SCHEMA)


def a_file(output: IcebergOutput) -> list[Written]:
    """That of the round, as a task of this export has written it."""
    name = output.file_name(ROUND.cuts[0])
    path = Path(output.place.text, name)
    path.parent.mkdir(exist_ok=True)
    rows = pa.table({"offset": range(10), "value": [b"x"] * 10}, schema=SCHEMA)
    pq.write_table(rows, path)
    return [Written(name, 0, 10, 10, path.stat().st_size)]


def rows_in(catalog: Any) -> int:
    found: int = catalog.load_table(TABLE).scan().to_arrow().num_rows
    return found


def on_commit(patch: pytest.MonkeyPatch, happens: Callable[[Commit, tuple[Any, ...]], Any]) -> None:
    """Let something happen to the next commit of any catalog."""
    # Not at the top of the file, where each worker would load it to collect tests.
    from pyiceberg.catalog.sql import SqlCatalog

    inner = SqlCatalog.commit_table

    def commit(*given: Any) -> Any:
        patch.setattr(SqlCatalog, "commit_table", inner)
        return happens(inner, given)

    patch.setattr(SqlCatalog, "commit_table", commit)


def commit_beside_another() -> None:
    """Two exports have written their files; the second commits just before the first."""
    first, second = an_export(), an_export()
    files = a_file(first)

    def overtaken(inner: Commit, given: tuple[Any, ...]) -> Any:
        second.commit(ROUND, a_file(second))
        return inner(*given)

    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, overtaken)
        first.commit(ROUND, files)


def test_of_two_exports_at_once_one_adds_a_round(catalog: Any) -> None:
    with pytest.raises(WrongOffset, match="another export"):
        commit_beside_another()
    assert rows_in(catalog) == 10


@pytest.mark.parametrize("guard", ["tries once", "looks at the position"])
def test_without_a_guard_both_add_it(
    catalog: Any, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if guard == "tries once":
        monkeypatch.setattr(iceberg_output, "try_once", lambda _: None)
    else:
        monkeypatch.setattr(IcebergOutput, "position", lambda *_: None)
    commit_beside_another()
    assert rows_in(catalog) == 20


def refused_although_done(inner: Commit, given: tuple[Any, ...]) -> Any:
    """The answer is lost, and something on the way asks again."""
    from pyiceberg.exceptions import CommitFailedException

    inner(*given)
    raise CommitFailedException


def test_a_commit_whose_answer_is_lost_is_there_once(catalog: Any) -> None:
    output = an_export()
    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, refused_although_done)
        output.commit(ROUND, a_file(output))
    assert rows_in(catalog) == 10
    assert an_export().begun() == Round(10, 10, ())


def test_without_looking_for_it_the_table_is_broken(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = an_export()
    files = a_file(output)
    monkeypatch.setattr(iceberg_output, "Looking", lambda catalog: catalog)
    on_commit(monkeypatch, refused_although_done)
    with pytest.raises(WrongOffset):
        output.commit(ROUND, files)
    with pytest.raises(FileNotFoundError):
        rows_in(catalog)


def dies_after(inner: Commit, given: tuple[Any, ...]) -> Any:
    inner(*given)
    raise Dead


def dies_before(inner: Commit, given: tuple[Any, ...]) -> Any:
    raise Dead


@pytest.mark.parametrize("dies", [dies_before, dies_after])
def test_an_export_that_dies_around_its_commit_has_the_round_once(
    catalog: Any, dies: Callable[[Commit, tuple[Any, ...]], Any]
) -> None:
    export_and_die(dies)
    again = an_export()
    if again.begun() is None:
        again.commit(ROUND, a_file(again))
    assert again.begun() == Round(10, 10, ())
    assert rows_in(catalog) == 10


def test_with_the_position_in_a_commit_of_its_own_the_round_is_there_twice(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_alone(self: IcebergOutput, table: Any, planned: Round, files: list[Written]) -> None:
        table.add_files([self.uri(file) for file in files], check_duplicate_files=False)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergOutput, "add", add_alone)
        export_and_die(dies_after)
    again = an_export()
    assert again.begun() is None
    again.commit(ROUND, a_file(again))
    assert rows_in(catalog) == 20


def export_and_die(dies: Callable[[Commit, tuple[Any, ...]], Any]) -> None:
    output = an_export()
    files = a_file(output)
    with pytest.MonkeyPatch.context() as patch:
        on_commit(patch, dies)
        with pytest.raises(Dead):
            output.commit(ROUND, files)
