"""Follow the commits of one ingest node by long poll.

The token is ingest's own and lives as long as its process: after a restart it is not
known any more and everything with unpublished data comes again, which the cutter knows
how to take. So nothing has to be remembered here, and nothing can be missed.
"""

from collections.abc import Callable
from typing import Final

from bottomless_server.protocol.tail import Commit, Commits
from bottomless_server.runtime.base.endless import endless
from bottomless_server.uploader.calls import IngestCalls
from bottomless_server.uploader.failures import Failures, Retries

PAUSE_SECONDS: Final = 0.05
"""Between an answer and the next question. Small appends come by the thousand in a second, and a
question for each would cost more than the appends; a fragment is in no such hurry."""


class CommitFeed:
    """What ingest has committed, told to `seen` as it comes."""

    def __init__(
        self,
        ingest: IngestCalls,
        retries: Retries,
        seen: Callable[[Commit, IngestCalls], None],
        wait_ms: int,
        url: str | None = None,
    ) -> None:
        """`url` is where the node is reached, for the log."""
        self.failures = Failures(url=url)
        self._ingest = ingest
        self._retries = retries
        self._seen = seen
        self._wait_ms = wait_ms
        self._token: str | None = None

    async def run(self) -> None:
        """Follow until cancelled; an ingest that does not answer is asked again without end."""
        await endless("uploader-commits", self._poll_once)

    async def _poll_once(self) -> float:
        await self._retries.forever(self.failures, "commits", self._poll)
        return PAUSE_SECONDS

    async def look(self) -> None:
        """Ask once what is new, without waiting for more.

        Raises:
            StoreError: ingest does not answer.
        """
        self._take(await self._ingest.commits(self._token, 0))

    async def _poll(self) -> None:
        self._take(await self._ingest.commits(self._token, self._wait_ms))

    def _take(self, commits: Commits) -> None:
        for commit in commits.streams:
            self._seen(commit, self._ingest)
        # Only now: what failed on the way comes again.
        self._token = commits.token
