"""Run a function over pieces of work in Spark's workers, where records need not enter the JVM.

A piece is pickled on the driver and goes to one task, which answers with a few rows: a verdict, a
file that it has written, a count. What it reads stays in its process.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bottomless.errors import Unavailable
from bottomless.spark.jobs.watching import watched
from bottomless.spark.read import settle_worker

Piece = TypeVar("Piece")


def run_in_workers(
    spark: SparkSession,
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    pieces: Sequence[Piece],
    schema: pa.Schema,
    title: str,
) -> list[dict[str, Any]]:
    """Run `work` on each piece, one task per piece.

    Returns the answers in the order of the pieces.

    Spark repeats a task that fails or is lost, so `work` may run more than once for a piece, even
    at the same time.

    Raises:
        Unavailable: a task failed for good; the message has its last words.
    """
    if not pieces:
        return []
    with watched(spark, title):
        answers = collected(frame_of_work(spark, work, pieces, schema))
    rows: list[dict[str, Any]] = answers.to_pylist()
    return rows


def answer_schema(types: Mapping[str, Any]) -> pa.Schema:
    """Make the Arrow schema of what tasks answer."""
    return pa.schema(types)


def frame_of_work(
    spark: SparkSession,
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    pieces: Sequence[Piece],
    schema: pa.Schema,
) -> DataFrame:
    """Make a frame of the answers of `work`, with one partition for each piece."""
    # Pickled one by one, so that a task opens its own piece only.
    packed = [pickle.dumps(piece) for piece in pieces]
    numbers = spark.range(0, len(packed), 1, len(packed))
    return numbers.mapInArrow(partial(_work, work, packed), from_arrow_schema(schema))


def collected(frame: Any) -> pa.Table:
    """Collect all rows of a frame; an error says what the task said.

    Raises:
        Unavailable: a task failed for good.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    try:
        table: pa.Table = frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        raise Unavailable(f"a task failed: {_said(str(error))}") from error
    return table


def _work(
    work: Callable[[Any], Iterator[pa.RecordBatch]],
    packed: Sequence[bytes],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    settle_worker()
    for batch in batches:
        for number in batch.column(0).to_numpy():
            yield from work(pickle.loads(packed[number]))  # noqa: S301  # by our own driver


def _said(text: str) -> str:
    """The last line of the worker's traceback, which names the error."""
    lines = [line.strip() for line in text.splitlines()]
    of_ours = [line for line in lines if line.startswith("bottomless.") and ": " in line]
    errors = of_ours or [line for line in lines if "Error: " in line] or lines[:1] or [""]
    return errors[0].rpartition("bottomless.errors.")[2]
