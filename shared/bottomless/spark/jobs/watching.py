"""Show on a terminal how far a job has come; without a terminal nothing is written."""

import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, title: str) -> Iterator[None]:
    """Show how many tasks of the block's jobs are done, while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    context = spark.sparkContext
    group = uuid.uuid4().hex
    # What this thread starts from here on is of this group.
    context.setJobGroup(group, title)
    ended = threading.Event()
    watcher = threading.Thread(target=_show, args=(spark, group, title, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # as it is unset


def _show(spark: SparkSession, group: str, title: str, ended: threading.Event) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as shown:
        line = shown.add_task(title, total=None)
        while not ended.wait(_LOOK_SECONDS):
            done, total = _task_counts(spark, group)
            shown.update(line, completed=done, total=total or None)


def _task_counts(spark: SparkSession, group: str) -> tuple[int, int]:
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in () if job is None else job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total
