"""The session of a command: the one that this process has, else one of its own, which ends with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from bottomless.spark.session import configure, register

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started this process."""


@contextmanager
def own_session() -> Iterator[SparkSession]:
    """A session that can read and write streams, until the end of the block."""
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        yield active
        return
    # With what spark-submit says, where it has begun this process.
    master = None if _SUBMITTED in os.environ else "local[*]"
    spark = configure(SparkSession.builder.appName("bottomless"), master=master).getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()
