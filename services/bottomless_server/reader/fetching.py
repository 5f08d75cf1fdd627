"""Read several partitions for one answer, and wait until all together have enough.

First every partition is asked for what it has. Where that is less than was asked for, and nothing
failed, the end of every stream is waited at until there is enough or the time is over. The pages are
those of `page_reader.py`, so tiers, bounds and damage are as in any other read.

On the record's path: after page_reader.py, before broker_routes.py answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from bottomless.errors import Outcome, StoreError
from bottomless.model.names import FullName
from bottomless.model.offset_spec import At
from bottomless_server.core.broker.asked import Fetched
from bottomless_server.reader.core.fetch_budget import TOGETHER_COUNT, FetchBudget, Share
from bottomless_server.reader.pages import Page, PageQuery
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.http.connection import Places
from bottomless_server.runtime.http.problems import unexpected

log = structlog.get_logger(__name__)

Pages = Callable[[FullName, PageQuery], Awaitable[Page]]


@dataclass(slots=True, eq=False)
class Partition:
    """One partition of an answer in the making."""

    asked: Fetched
    name: FullName | None = None
    """The stream, where it may be read."""
    pages: list[Page] = field(default_factory=list)
    """What is in the answer, one after the other; those without records may tell of gaps."""
    newest: Page | None = None
    """The page that was read last, which knows the bounds best."""
    error: StoreError | None = None
    over: bool = False
    """Nothing more of it goes into this answer."""

    @property
    def position(self) -> int:
        """Where its reader continues."""
        return self.pages[-1].next_offset if self.pages else self.asked.offset

    @property
    def size_left(self) -> int:
        return self.asked.size_max - sum(page.size for page in self.pages)

    @property
    def goes_on(self) -> bool:
        """Whether more of it may go into the answer, now or later."""
        return self.error is None and not self.over and self.size_left > 0

    @property
    def has_more(self) -> bool:
        """Whether more of it is there now."""
        newest = self.newest
        return self.goes_on and newest is not None and self.position < newest.committed_next

    def fail(self, error: StoreError) -> None:
        """Have it answered with an error, unless it has records: then the next request meets it."""
        self.over = True
        if not any(page.count for page in self.pages):
            self.error = error

    def take(self, budget: FetchBudget, page: Page) -> None:
        """Take a page into the answer, if there is room for it."""
        self.newest = page
        before = self.position
        if not budget.take(page.count, page.size):
            self.over = True
            return
        self.pages.append(page)
        if page.next_offset == before and page.next_offset < page.committed_next:
            # It has more and gave none, so the answer is full.
            self.over = True


class Fetching:
    """One answer in the making."""

    def __init__(
        self, pages: Pages, waiters: Places, budget: FetchBudget, partitions: Sequence[Partition]
    ) -> None:
        """`partitions` in the order of their turn; those without a name are not read."""
        self._pages = pages
        self._waiters = waiters
        self._budget = budget
        self._partitions = partitions

    async def fill(self, ends: float) -> None:
        """Return when there is enough, or at the moment `ends` of the loop's clock.

        Raises:
            Overloaded: too many wait already.
        """
        await self._look([one for one in self._partitions if one.name is not None])
        while not self._budget.full and (more := [o for o in self._partitions if o.has_more]):
            await self._look(more[:TOGETHER_COUNT])
        # Who has an error hears of it now, and need not wait for the others.
        if not self._budget.enough and not any(one.error for one in self._partitions):
            await self._wait(ends)

    async def _look(self, partitions: Sequence[Partition]) -> None:
        """Read what partitions have now, or their bounds alone where there is no room for more."""
        for first in range(0, len(partitions), TOGETHER_COUNT):
            group = partitions[first : first + TOGETHER_COUNT]
            shares = [self._budget.share(one.size_left, len(group)) for one in group]
            found = await asyncio.gather(*map(self._read, group, shares))
            for one, page in zip(group, found, strict=True):
                if page is not None:
                    one.take(self._budget, page)

    async def _read(self, one: Partition, share: Share, wait_ms: int = 0) -> Page | None:
        """The next page of a partition; None where it failed, which is noted."""
        assert one.name is not None
        at = At(one.position)
        query = PageQuery(at, share.record_count, share.size, strict=True, wait_ms=wait_ms)
        try:
            return await self._pages(one.name, query)
        except StoreError as error:
            one.fail(error)
        except Exception as error:
            log.exception("a fetch met a bug")
            one.fail(unexpected(error, Outcome.NONE))
        return None

    async def _wait(self, ends: float) -> None:
        """Wait at the ends of the streams, each time for what comes first."""
        waiting = [one for one in self._partitions if one.goes_on]
        with ExitStack() as places:
            for _ in waiting:
                places.enter_context(self._waiters.one())
            tasks: dict[asyncio.Task[Page | None], Partition] = {}
            try:
                while not self._budget.enough and (left := ends - loop_time()) > 0:
                    asked = {*tasks.values()}
                    for one in waiting:
                        if one.goes_on and one not in asked:
                            share = self._budget.share(one.size_left, len(waiting))
                            reading = self._read(one, share, max(int(left * 1000), 1))
                            tasks[asyncio.create_task(reading)] = one
                    if not tasks:
                        return
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    # In their turn, not in the order in which they happen to be told.
                    for task in [task for task in tasks if task in done]:
                        one, page = tasks.pop(task), task.result()
                        if page is not None:
                            one.take(self._budget, page)
                    if any(one.error for one in waiting):
                        return
            finally:
                await end_tasks(*tasks)
