"""What fails and is being retried: kept in view, told apart, never given up silently.

`Retries.forever` goes round whole steps of the uploader, of which only the put of an object has
retries of its own (`stores/put_retries.py`), up to `uploader_upload_deadline_seconds`. Both wait
as the settings `uploader_retry_…` say. While the store is away it is therefore the put that is
tried again and again; what `forever` sees, keeps in view and counts is the end of its deadline,
and everything that no retry of a put can mend.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import Code, Corrupt, StoreError
from bottomless.model.names import StreamId
from bottomless_server.stores.put_retries import PutWaits
from bottomless_server.uploader.settings import UploaderSettings

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
OF_SESSION: Final = "session"
"""What was being done, where a whole session failed."""


class Failure(NamedTuple):
    code: Code
    permanent: bool
    """Whether time alone cannot mend it: somebody has to act. It is retried all the same."""
    attempt_count: int


class Failures:
    """The present failures of one stream, or of the feed, by what was being done."""

    def __init__(self, stream_id: StreamId | None = None) -> None:
        self._stream_id = stream_id
        self._failures: dict[str, Failure] = {}

    def __bool__(self) -> bool:
        return bool(self._failures)

    def note(self, what: str, error: Exception) -> Failure:
        code = error.code if isinstance(error, StoreError) else Code.INTERNAL
        permanent = not (isinstance(error, StoreError) and error.retryable)
        attempt_count = self._failures[what].attempt_count + 1 if what in self._failures else 1
        failure = self._failures[what] = Failure(code, permanent, attempt_count)
        write = log.error if permanent else log.warning
        bug = None if isinstance(error, StoreError) else error
        write(
            "uploading failed",
            what=what,
            stream_id=self._stream_id,
            code=code,
            permanent=permanent,
            attempt_count=attempt_count,
            error=str(error),
            exc_info=bug,
        )
        return failure

    def clear(self, what: str) -> None:
        self._failures.pop(what, None)

    def report(self) -> Mapping[str, Any]:
        return {
            what: {
                "code": failure.code,
                "permanent": failure.permanent,
                "attempt_count": failure.attempt_count,
            }
            for what, failure in self._failures.items()
        }


def put_waits(settings: UploaderSettings) -> PutWaits:
    """The waits between two attempts of one put: those that the settings give for all retries."""
    return PutWaits(
        settings.uploader_retry_initial_seconds,
        settings.uploader_retry_max_seconds,
        settings.uploader_retry_jitter_seconds,
    )


class Retries:
    """Retry without end: exponential, jittered and capped; at the cap where time cannot help."""

    def __init__(self, settings: UploaderSettings) -> None:
        self._damage_seconds = settings.uploader_damage_retry_seconds
        self._waits = put_waits(settings)
        self.count = 0
        """Attempts that failed so far."""

    async def forever(
        self,
        failures: Failures,
        what: str,
        call: Callable[[], Awaitable[_T]],
        stops: frozenset[Code] = frozenset(),
    ) -> _T:
        """Call until it succeeds.

        Raises:
            StoreError: one whose code is among `stops`.
        """
        failed = 0
        # Not by the library for retries: of a stream with something to upload one of these calls is
        # always under way, and each would keep forty objects of the library in memory.
        try:
            while True:
                try:
                    return await call()
                except Exception as error:
                    if isinstance(error, StoreError) and error.code in stops:
                        raise
                    failure = failures.note(what, error)
                    damaged = isinstance(error, Corrupt)
                self.count += 1
                if damaged:
                    seconds = self._damage_seconds
                elif failure.permanent:
                    seconds = self._waits.longest
                else:
                    seconds = self._waits.after(failed)
                    failed += 1
                await asyncio.sleep(seconds)
        finally:
            failures.clear(what)
