"""Which programs' Arrow bodies are taken in place: those that these programs really write.

The bodies of JavaScript's library were made with `tests/golden/arrow_js/make.mjs`, since no node is
there where the tests run; all others are written here.
"""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from golden.regenerate import FOLDER, golden
from support.arrow_ways import is_taken_in_place

from unit.ingest.harness import arrow

COUNT: Final = 50
BYTES: Final = [b"%03d" % row + b"x" * row for row in range(COUNT)]
TEXTS: Final = [f"é{row}" for row in range(COUNT)]
SOME: Final = [f"k{row % 7}" if row % 3 else None for row in range(COUNT)]
NOW: Final = datetime(2026, 11, 22, 12, tzinfo=UTC)
MAP: Final = pa.map_(pa.string(), pa.string())

ALL_COLUMNS: Final = pa.table(
    {
        "value": pa.array(BYTES),
        "key": pa.array(SOME, pa.binary()),
        "headers": pa.array([[("n", key)] if key else None for key in SOME], MAP),
        "event_time": pa.array([NOW if key else None for key in SOME], pa.timestamp("ms", "UTC")),
        "content": pa.array([0] * COUNT, pa.uint8()),
        "filter_value": pa.array(SOME),
    }
)


def of_pyarrow(kind: Any) -> Callable[[], bytes]:
    sources: list[Any] = [f"{row:05}" for row in range(COUNT)]
    return lambda: arrow(pa.table({"value": pa.array(sources, pa.string()).cast(kind)}))


def in_batches(count: int) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, ALL_COLUMNS.schema) as writer:
        writer.write_table(ALL_COLUMNS, max_chunksize=count)
    return stream.getvalue()


def of_slice() -> bytes:
    return arrow(ALL_COLUMNS.slice(13, 21))


def of_dictionaries() -> bytes:
    columns: dict[str, list[Any]] = {"value": TEXTS, "key": SOME, "filter_value": SOME}
    return arrow(pa.table({k: pa.array(v).dictionary_encode() for k, v in columns.items()}))


def of_a_few_columns() -> bytes:
    return arrow(ALL_COLUMNS.select(["filter_value", "value"]))


def of_other_types() -> bytes:
    return arrow(
        pa.table(
            {
                "value": pa.array(["v"] * COUNT, pa.large_string()),
                "key": pa.nulls(COUNT),
                "event_time": pa.array([NOW] * COUNT, pa.timestamp("us", "Europe/Berlin")),
                "filter_value": pa.array([None] * COUNT, pa.string()),
            }
        )
    )


def of_pandas() -> bytes:
    frame = pa.table({"value": TEXTS, "filter_value": SOME}).to_pandas()
    return arrow(pa.Table.from_pandas(frame))


def of_numpy() -> bytes:
    return arrow(pa.table({"value": np.array(TEXTS), "content": np.ones(COUNT, np.int64)}))


def of_polars(frame: pl.DataFrame, **options: Any) -> bytes:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream, **options)
    return stream.getvalue()


def polars_frame() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "value": BYTES,
            "key": SOME,
            "event_time": [NOW] * COUNT,
            "filter_value": pl.Series(SOME, dtype=pl.Categorical),
        }
    )


def polars_chunks() -> bytes:
    frame = pl.DataFrame({"value": TEXTS})
    return of_polars(pl.concat([frame, frame], rechunk=False))


def of_duckdb(query: str) -> Callable[[], bytes]:
    def make() -> bytes:
        with duckdb.connect() as connection:
            return arrow(connection.sql(query).to_arrow_table())

    return make


def duckdb_batches() -> bytes:
    stream = io.BytesIO()
    with duckdb.connect() as connection:
        reader = connection.sql("SELECT 'v' || i AS value FROM range(5000) t(i)").to_arrow_reader(
            2048
        )
        with pa.ipc.new_stream(stream, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return stream.getvalue()


WRITERS: Final[dict[str, Callable[[], bytes]]] = {
    "pyarrow, all columns": lambda: arrow(ALL_COLUMNS),
    "pyarrow, a few columns in another order": of_a_few_columns,
    "pyarrow, several batches": lambda: in_batches(20),
    "pyarrow, a slice": of_slice,
    "pyarrow, without an end mark": lambda: arrow(ALL_COLUMNS)[:-8],
    "pyarrow, dictionaries": of_dictionaries,
    "pyarrow, other types": of_other_types,
    **{
        f"pyarrow, {kind}": of_pyarrow(kind)
        for kind in (
            *(pa.string(), pa.large_string(), pa.string_view()),
            *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5)),
        )
    },
    "pandas": of_pandas,
    "numpy": of_numpy,
    "Polars": lambda: of_polars(polars_frame()),
    "Polars, without views": lambda: of_polars(
        polars_frame(), compat_level=pl.CompatLevel.oldest()
    ),
    "Polars, two chunks": polars_chunks,
    "DuckDB": of_duckdb(
        "SELECT 'v' || i AS value, encode('k' || i) AS key, MAP {'n': 'h'} AS headers,"
        " TIMESTAMPTZ '2026-11-22 12:00:00+00' AS event_time, 1::UTINYINT AS content,"
        " CASE WHEN i % 3 = 0 THEN NULL ELSE 'f' END AS filter_value FROM range(50) t(i)"
    ),
    "DuckDB, an enumeration": of_duckdb(
        "SELECT 'v' AS value, 'b'::ENUM('a', 'b') AS filter_value FROM range(50)"
    ),
    "DuckDB, record batches": duckdb_batches,
}
OF_JAVASCRIPT: Final = sorted(path.stem for path in (FOLDER / "arrow_js").glob("*.hex"))


@pytest.mark.parametrize("name", WRITERS)
def test_bodies_of_usual_writers_are_taken_in_place(name: str) -> None:
    assert is_taken_in_place(WRITERS[name]())


@pytest.mark.parametrize("name", OF_JAVASCRIPT)
def test_bodies_of_javascript_are_taken_in_place(name: str) -> None:
    assert is_taken_in_place(golden(f"arrow_js/{name}"), numbered=name == "numbered")


def test_bodies_of_javascript_are_there() -> None:
    assert {"all_columns", "arrays", "bytes", "numbered", "two_batches"} <= set(OF_JAVASCRIPT)


def test_bodies_of_numbered_records_are_taken_in_place() -> None:
    table = pa.table({"publishing_id": [3, 5, 9], "value": [b"a", b"b", b"c"]})
    assert is_taken_in_place(arrow(table), numbered=True)
