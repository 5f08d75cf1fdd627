"""Streaming queries on a machine that has more to do than it can."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from support.waiting import until

GAVE_UP: Final = "Python worker failed to connect back"
"""What Spark says when the Python of a streaming source has not connected within ten seconds.

The number stands in its code (`PythonWorkerFactory.createSimpleWorker`), and no setting changes it.
"""
BEGINNINGS_MAX: Final = 10


def begun(begin: Callable[[], Any], seconds: float) -> Any:
    """Begin a streaming query, and begin it again where Spark gave up waiting for its source.

    Such a query was still initializing: it had planned no batch, so that the next one begins where
    it would have. A query that fails for any other reason is returned as it is, with its error.
    """
    for number in range(1, BEGINNINGS_MAX + 1):
        query = begin()
        until(partial(_is_initialized, query), seconds, "a query that has begun")
        if GAVE_UP not in str(query.exception() or ""):
            break
        print(f"beginning {number} of a query: {GAVE_UP}")
    return query


def _is_initialized(query: Any) -> bool:
    """Whether its sources are there, or it has ended."""
    message: str = query.status["message"]
    return not query.isActive or not message.startswith("Initializing")
