"""Follow every ingest node that is alive: manifest knows which, and is asked again and again.

Nothing is remembered of a node that is gone: its feed begins anew when it is back, with all
that is not published. While manifest does not answer those that are known are followed on.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from bottomless.errors import StoreError
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.tail import Commit
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.uploader.calls import IngestCalls, ManifestCalls
from bottomless_server.uploader.failures import Failures, Retries
from bottomless_server.uploader.feed import CommitFeed

log = structlog.get_logger(__name__)


class NodeFeeds:
    """The commit feeds of all nodes, by their address."""

    def __init__(
        self,
        ingest: PeersPort,
        manifest: ManifestCalls,
        retries: Retries,
        seen: Callable[[Commit, IngestCalls], None],
        *,
        wait_ms: int,
        every_ms: int,
    ) -> None:
        self._ingest = ingest
        self._manifest = manifest
        self._retries = retries
        self._seen = seen
        self._wait_ms = wait_ms
        self._every_ms = every_ms
        self._failures = Failures()
        self._feeds: dict[str, tuple[CommitFeed, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await endless("uploader-nodes", self._refresh_once)
        finally:
            await end_tasks(*(task for _, task in self._feeds.values()))

    async def _refresh_once(self) -> float:
        await self._retries.forever(self._failures, "nodes", self._refresh)
        return self._every_ms / 1000

    async def look(self) -> None:
        """Ask every node once what is new, without waiting for more."""
        try:
            await self._refresh()
        except StoreError as error:
            log.warning("could not ask for ingest nodes", code=error.code)
        for url, (feed, _) in list(self._feeds.items()):
            try:
                await feed.look()
            except StoreError as error:
                log.warning("could not ask for the last commits", url=url, code=error.code)

    def report(self) -> Mapping[str, Any]:
        """What fails, by what is being done."""
        failing: dict[str, Any] = dict(self._failures.report())
        for feed, _ in self._feeds.values():
            failing |= feed.failures.report()
        return failing

    @property
    def count(self) -> int:
        return len(self._feeds)

    async def _refresh(self) -> None:
        urls = set(await self._manifest.node_urls())
        gone = []
        for url in self._feeds.keys() - urls:
            gone.append(self._feeds.pop(url)[1])
            log.info("an ingest node is gone", url=url)
        for url in urls - self._feeds.keys():
            feed = CommitFeed(
                IngestCalls(self._ingest.at(url), url),
                self._retries,
                self._seen,
                self._wait_ms,
                url,
            )
            task = asyncio.create_task(feed.run(), name=f"commits of {url}")
            task.add_done_callback(_log_end)
            self._feeds[url] = feed, task
            log.info("an ingest node is followed", url=url)
        await end_tasks(*gone)


def _log_end(following: asyncio.Task[None]) -> None:
    if not following.cancelled() and (error := following.exception()) is not None:
        log.error("a commit feed ended", exc_info=error)
