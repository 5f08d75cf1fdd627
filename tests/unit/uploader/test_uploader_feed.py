"""How often the uploader asks an ingest node what is new."""

import asyncio
from typing import cast

from bottomless_server.protocol.tail import Commits
from bottomless_server.uploader.calls import IngestCalls
from bottomless_server.uploader.failures import Retries
from bottomless_server.uploader.feed import PAUSE_SECONDS, CommitFeed
from bottomless_server.uploader.settings import UploaderSettings

QUESTION_COUNT = 6


class AlwaysNews:
    """An ingest node that has news whenever it is asked."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self.enough = asyncio.Event()

    async def commits(self, _after: str | None, _wait_ms: int) -> Commits:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) == QUESTION_COUNT:
            self.enough.set()
        return Commits("token", ())


async def test_a_node_that_always_has_news_is_asked_at_a_bounded_rate() -> None:
    node = AlwaysNews()
    feed = CommitFeed(
        cast("IngestCalls", node), Retries(UploaderSettings()), lambda *_: None, 20_000
    )
    following = asyncio.create_task(feed.run())
    async with asyncio.timeout(240):
        await node.enough.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    # Timers may be a hair early, and never late enough to matter here.
    least = (QUESTION_COUNT - 1) * PAUSE_SECONDS * 0.9
    assert node.asked_at[-1] - node.asked_at[0] >= least
