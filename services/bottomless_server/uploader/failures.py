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

    def __init__(self, stream_id: StreamId | None = None, url: str | None = None) -> None:
        """They are told in the log with the stream, or with the address of the node, that they are of."""
        self._of = {} if url is None else {"url": url}
        self._stream_id = stream_id
        self._failures: dict[str, Failure] = {}

    def __bool__(self) -> bool:
        return bool(self._failures)

    def note(self, what: str, error: Exception) -> Failure:
        """Keep a failure in view. What only has to be waited for is told once, and once when it is over:
        of a node that is dead nothing new is known until its lease has run out."""
        before = self._failures.get(what)
        code = error.code if isinstance(error, StoreError) else Code.INTERNAL
        permanent = not (isinstance(error, StoreError) and error.retryable)
        attempt_count = 1 if before is None else before.attempt_count + 1
        failure = self._failures[what] = Failure(code, permanent, attempt_count)
        if permanent:
            bug = None if isinstance(error, StoreError) else error
            self._tell(log.error, "uploading failed", what, failure, error=str(error), exc_info=bug)
        elif before is None or before.code != code:
            self._tell(log.warning, "uploading waits", what, failure, error=str(error))
        return failure

    def clear(self, what: str) -> None:
        """Note that it was done, and say so if it had failed."""
        failure = self._failures.pop(what, None)
        if failure is not None:
            self._tell(log.info, "uploading goes on", what, failure)

    def drop(self, what: str) -> None:
        """Forget what is not tried any more."""
        self._failures.pop(what, None)

    def _tell(
        self, write: Callable[..., Any], event: str, what: str, failure: Failure, **more: Any
    ) -> None:
        write(
            event,
            what=what,
            stream_id=self._stream_id,
            **self._of,
            code=failure.code,
            permanent=failure.permanent,
            attempt_count=failure.attempt_count,
            **more,
        )

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
                    done = await call()
                except Exception as error:
                    if isinstance(error, StoreError) and error.code in stops:
                        raise
                    failure = failures.note(what, error)
                    damaged = isinstance(error, Corrupt)
                else:
                    failures.clear(what)
                    return done
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
            failures.drop(what)
