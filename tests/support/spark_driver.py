"""A driver of Spark that is killed by a test: `python -m support.spark_driver PLAN.json`.

It takes the steps of its plan one after the other. At some points of them it stops and says
so in a file, so that a test can kill an executor or the driver right there and not some time
after; it goes on when the test answers with another file. A point that was reached once is
passed without a stop, by whatever runs again.
"""

import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyarrow import feather

from support.spark_queries import begun

STOP_SECONDS: Final = 900
"""A test that does not answer any more has failed."""
VALUES: Final = "value binary"
ROWS: Final = "offset long, timestamp timestamp, value binary"
WRITTEN_COUNT: Final = 20_000
DOUBLED_COUNT: Final = 15_000
"""Rows that are copied without a number, in three batches."""
COMMITS: Final = ("commit-copied", "commit-doubled")
"""Points in the middle of a commit, when the append is done and Spark does not know."""
AT_ONCE: Final = ("read", "written", "copy")
"""What `at_once` does side by side, each with a point in a task."""


class Plan(NamedTuple):
    url: str
    directory: str
    """Where reached points, answers, results and the checkpoint are."""
    master: str
    steps: Sequence[str]
    settings: Mapping[str, str]
    """Of the session."""


def stop_at(directory: str, point: str) -> None:
    """Wait for the test's answer, the first time that anybody comes here."""
    reached = Path(directory, f"{point}.reached")
    try:
        claim = os.open(Path(directory, f"{point}.claim"), os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.close(claim)
    draft = reached.with_suffix(".draft")
    draft.write_text(str(jvm_of_this_worker()))
    draft.rename(reached)
    never, deadline = threading.Event(), time.monotonic() + STOP_SECONDS
    while not Path(directory, f"{point}.go").exists() and time.monotonic() < deadline:
        never.wait(0.02)


def jvm_of_this_worker() -> int:
    """Workers are forked by a daemon, which the executor has started."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def stopping(directory: str, point: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """For mapInArrow: all batches as they are, with a stop behind the first one of a task."""

    def through(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            stop_at(directory, point)

    return through


def steps_of(spark: Any, plan: Plan) -> dict[str, Callable[[], None]]:
    source = {"url": plan.url, "stream": "source"}

    def read() -> None:
        frame = spark.read.format("bottomless").options(**source, targetPartitionBytes=3_000_000)
        rows = frame.load().mapInArrow(stopping(plan.directory, "read"), ROWS).toArrow()
        feather.write_feather(rows.sort_by("offset"), str(Path(plan.directory, "read.rows")))

    def write(name: str) -> Callable[[], None]:
        def run() -> None:
            numbers = spark.range(0, WRITTEN_COUNT, 1, 2).selectExpr(
                "cast(cast(id as string) as binary) as value"
            )
            rows = numbers.mapInArrow(stopping(plan.directory, name), VALUES)
            rows.write.format("writing").mode("append").options(
                url=plan.url, stream=name, txnAppId="kills", txnId="one"
            ).save()

        return run

    def start_copy(sink: str, stream: str, begin: str, count: int) -> Any:
        frame = spark.readStream.format("copying").options(
            **source, startingOffsets=begin, maxOffsetsPerTrigger=count
        )
        values = frame.load().select("value")
        writer = (
            values.mapInArrow(stopping(plan.directory, "copy"), VALUES)
            .writeStream.format(sink)
            .options(url=plan.url, stream=stream, txnAppId="copy")
            .option("checkpointLocation", str(Path(plan.directory, f"checkpoint-{stream}")))
            .trigger(availableNow=True)
        )
        return begun(writer.start, STOP_SECONDS)

    def copies() -> Iterator[Any]:
        """One with the sink as it is, and one without its number.

        Begun one after the other: Spark changes a map of its functions in Python for the one
        while it sends the same map with a task of the other, which then cannot be read.
        """
        yield start_copy("stopping", "copied", "earliest", 40_000)
        yield start_copy("doubling", "doubled", f"-{DOUBLED_COUNT}", DOUBLED_COUNT // 3)

    def copy() -> None:
        for query in copies():
            query.awaitTermination()
            if query.exception() is not None:
                raise query.exception()

    def copy_until_commit() -> None:
        """Leaves the queries running: each stops in a commit, until it is killed there."""
        never = threading.Event()
        for query, point in zip(copies(), COMMITS, strict=True):
            while not Path(plan.directory, f"{point}.reached").exists():
                if not query.isActive:
                    raise query.exception() or RuntimeError("a query did not come to its commit")
                never.wait(0.02)

    def activate() -> None:
        # Spark looks for sources in Python only in the session that its thread knows.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)

    def at_once() -> None:
        """A read, a write and the queries, all under way at the same time.

        Each begins when the one before stands in a task: until then Spark sends its tasks.
        """
        pool = ThreadPoolExecutor(initializer=activate)
        reading = pool.submit(read)
        wait_for(plan.directory, "read", reading)
        writing = pool.submit(write("written"))
        wait_for(plan.directory, "written", writing)
        stop_at(plan.directory, "before-copy")
        copy_until_commit()
        reading.result()
        writing.result()

    steps = {"read": read, "copy": copy, "copy_until_commit": copy_until_commit}
    return {**steps, "written": write("written"), "killed": write("killed"), "at_once": at_once}


def wait_for(directory: str, point: str, step: Future[None]) -> None:
    never = threading.Event()
    while not Path(directory, f"{point}.reached").exists():
        if step.done():
            step.result()
            raise RuntimeError(f"a step did not come to the point {point}")
        never.wait(0.02)


def register_stopping(spark: Any, plan: Plan) -> None:
    """Sinks that stop in the commit of batch 1, when the append is done and Spark does not know."""
    from bottomless.spark.sink import BottomlessStreamWriter
    from bottomless.spark.sink_options import parse_sink_options
    from bottomless.spark.source import BottomlessSource

    class Stopping(BottomlessStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == 1:
                stop_at(plan.directory, f"commit-{self._target.stream}")

    class Doubling(Stopping):
        """Under another producer each time: what the sink would be without its number."""

        def producer_of(self, query_id: str) -> str:
            return f"{super().producer_of(query_id)}-{uuid.uuid4().hex}"

    class StoppingSource(BottomlessSource):
        @classmethod
        def name(cls) -> str:
            return "stopping"

        def streamWriter(self, schema: Any, overwrite: bool) -> Stopping:  # noqa: N802
            options = parse_sink_options(self.options, streaming=True)
            return Stopping(options, schema, overwrite=overwrite)

    class WritingSource(BottomlessSource):
        """As it is: but Spark changes what it keeps of a source while another task is sent."""

        @classmethod
        def name(cls) -> str:
            return "writing"

    class CopyingSource(BottomlessSource):
        @classmethod
        def name(cls) -> str:
            return "copying"

    class DoublingSource(BottomlessSource):
        @classmethod
        def name(cls) -> str:
            return "doubling"

        def streamWriter(self, schema: Any, overwrite: bool) -> Doubling:  # noqa: N802
            options = parse_sink_options(self.options, streaming=True)
            return Doubling(options, schema, overwrite=overwrite)

    for source in (WritingSource, CopyingSource, StoppingSource, DoublingSource):
        spark.dataSource.register(source)


def main() -> None:
    from pyspark.sql import SparkSession

    from bottomless.spark import configure, register

    given = json.loads(Path(sys.argv[1]).read_text())
    plan = Plan(**given)
    builder = configure(SparkSession.builder, master=plan.master)
    for name, value in plan.settings.items():
        builder = builder.config(name, value)
    # Small batches, so that a task stops with most of its rows before it.
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    spark = builder.getOrCreate()
    register(spark)
    register_stopping(spark, plan)
    steps = steps_of(spark, plan)
    for step in plan.steps:
        try:
            steps[step]()
        except BaseException:  # noqa: BLE001  # said, and the program ends
            traceback.print_exc()
            # Others stand in their tasks and wait.
            os._exit(1)
        Path(plan.directory, f"{step}.done").touch()
    spark.stop()


if __name__ == "__main__":
    main()
