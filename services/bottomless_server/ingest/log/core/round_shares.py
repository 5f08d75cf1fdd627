"""Decide how rounds that wait are dealt out among threads, and how each share of them is synced.

Each file by itself: as long as threads are free each round goes at once. What comes while all are
busy is dealt out evenly, so that one hop into a thread serves many rounds. A large round is the
last of its share, so that no other one waits for its sync.

All at once, where one sync of the whole file system may stand for those of its files: few shares
are under way, so that what comes meanwhile gathers and shares the next sync. But one that takes
longer than usual does not count among these few: the next share goes beside it. A sync of
everything also writes what others left in memory, and the system does one after the other. As long
as one is slow, files are synced by themselves; where one was slow, or failed, for a while after it
too, and for twice as long each time that happens again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.limits import KIB

LARGE: Final = 256 * KIB
"""Bytes of rounds that end a share: the sync of as many takes longer than that of a small file."""
ALL_FROM: Final = 3
"""So many files are synced together: one sync of everything costs as much as that of two."""
GATHERED_MAX: Final = 128
"""So many files at most are synced together: one thread writes them, and begins segments for them
where theirs are full, which takes two syncs each. Streams that began together fill up together."""
GATHERING_COUNT: Final = 2
"""Shares that are under way while more rounds gather: one is written while one is synced."""
SLOW_SECONDS: Final = 0.1
"""A sync of everything that takes longer has more to write than the rounds."""
PAUSE_SECONDS_MAX: Final = 64.0
PAUSE_SECONDS: Final = 1.0
_PATIENCE_SECONDS_MIN: Final = 0.005


@dataclass(slots=True, eq=False)
class Share:
    """Rounds that one thread writes and syncs."""

    count: int
    syncs_all: bool
    """Whether the whole file system is synced, and not each file."""
    began: float
    """In seconds of the clock that the shares are dealt out by."""


class RoundShares:
    """The shares that are under way; at most `thread_count` at once."""

    def __init__(self, thread_count: int) -> None:
        self.may_sync_all = False
        """Whether a sync of the file system may stand for those of its files."""
        self._thread_count = thread_count
        self._under_way: set[Share] = set()
        self._usual = 0.0
        """Seconds that a share takes, as of late."""
        self._slow_ones = 0
        """Syncs of everything that were slow or failed, without another one in between."""
        self._paused_until = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether every thread has a share."""
        return len(self._under_way) >= self._thread_count

    def syncs_all(self, now: float) -> bool:
        """Whether many files are synced by one sync of everything."""
        if not self.may_sync_all or now < self._paused_until:
            return False
        # Another one would wait until the slow one has ended.
        return not any(one.syncs_all and now - one.began > SLOW_SECONDS for one in self._under_way)

    def deal(self, sizes: Sequence[int], now: float) -> list[Share]:
        """Begin shares of rounds with so many bytes, the oldest first. Those that are in none of
        them wait on.
        """
        if self.syncs_all(now):
            return self._gather(len(sizes), now)
        # By all threads, not by the free ones: the one that is free just now must not take it all.
        count_max = -(-len(sizes) // self._thread_count)
        shares: list[Share] = []
        taken = 0
        while taken < len(sizes) and not self.is_full:
            share = self._begin(_count(sizes[taken : taken + count_max]), now, syncs_all=False)
            shares.append(share)
            taken += share.count
        return shares

    def end(self, share: Share, now: float, *, failed: bool = False) -> None:
        """Note that a share is done; `failed`: its sync of everything was refused."""
        self._under_way.remove(share)
        seconds = max(now - share.began, 0.0)
        self._usual += (seconds - self._usual) / 8
        if not share.syncs_all:
            return
        if failed or seconds > SLOW_SECONDS:
            self._paused_until = now + backoff(self._slow_ones, PAUSE_SECONDS, PAUSE_SECONDS_MAX)
            self._slow_ones += 1
        else:
            self._slow_ones = 0

    def deal_again_at(self, now: float) -> float | None:
        """When rounds that wait may go though nothing ends before; None if only an end helps."""
        if self.is_full:
            return None
        waited_for = [share.began for share in self._under_way if self._is_waited_for(share, now)]
        return min(waited_for) + self._patience if waited_for else None

    def _gather(self, waiting: int, now: float) -> list[Share]:
        shares: list[Share] = []
        count = sum(self._is_waited_for(share, now) for share in self._under_way)
        while waiting and not self.is_full and count < GATHERING_COUNT:
            together = waiting >= ALL_FROM
            taken = min(waiting, GATHERED_MAX) if together else 1
            shares.append(self._begin(taken, now, syncs_all=together))
            waiting -= shares[-1].count
            count += 1
        return shares

    def _begin(self, count: int, now: float, *, syncs_all: bool) -> Share:
        share = Share(count, syncs_all, now)
        self._under_way.add(share)
        return share

    def _is_waited_for(self, share: Share, now: float) -> bool:
        # As it is asked for in `deal_again_at`: of times, differences are rounded otherwise than sums.
        return now < share.began + self._patience

    @property
    def _patience(self) -> float:
        # A share that took long once must not have others wait for as long.
        return min(max(2 * self._usual, _PATIENCE_SECONDS_MIN), SLOW_SECONDS)


@guard("the sync of each file after one of all that failed")
def holds_for_all(error: OSError | None) -> bool:
    """Whether every file is durable after a sync of its whole file system.

    An error tells that something was lost, and not in which file.
    """
    return error is None


def _count(sizes: Sequence[int]) -> int:
    """How many of these go together."""
    size = 0
    for number, one in enumerate(sizes, 1):
        size += one
        if size >= LARGE:
            return number
    return len(sizes)
