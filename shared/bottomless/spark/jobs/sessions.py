"""The session of a command: the one that this process has, else its own, which ends with it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import SparkSession

from bottomless.spark.jobs.python_workers import end_workers_of
from bottomless.spark.session import configure, register

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started this process."""
_QUIET_SECONDS: Final = 1.0


@contextmanager
def own_session() -> Iterator[SparkSession]:
    """Give a session that can read and write streams, until the end of the block.

    It starts when it is used for the first time: before that, a job checks everything that it can
    check without Spark, so that a mistake is answered without waiting for a JVM.
    """
    late = _LateSession()
    try:
        yield cast("SparkSession", late)
        late.end_workers()
    finally:
        late.end()


class _LateSession:
    """Stands for a session, and makes it when an attribute of it is wanted."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._is_own = False

    def __getattr__(self, name: str) -> Any:
        # Asked only for what this class itself does not have.
        if self._session is None:
            self._session = self._started()
            register(self._session)
        return getattr(self._session, name)

    def end_workers(self) -> None:
        """After a job that went well: of another one some tasks may still run, and say why."""
        if self._session is not None and self._is_own:
            end_workers_of(self._session)

    def end(self) -> None:
        if self._session is not None and self._is_own:
            self._session.stop()

    def _started(self) -> SparkSession:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        self._is_own = True
        # With what spark-submit says, where it has begun this process.
        master = None if _SUBMITTED in os.environ else "local[*]"
        told = threading.Timer(_QUIET_SECONDS, _tell)
        told.daemon = True
        told.start()
        try:
            return configure(
                SparkSession.builder.appName("bottomless"), master=master
            ).getOrCreate()
        finally:
            told.cancel()


def _tell() -> None:
    sys.stderr.write("starting Spark…\n")
    sys.stderr.flush()
