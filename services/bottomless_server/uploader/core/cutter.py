"""Decide when one stream is cut, and what of it goes into the next fragment.

Why a state machine? Three things end a fragment (its size, its age, a drain) while
commits arrive, owners change and fetches are under way. Here they are events, and
`decide` answers what to do now; the waiting and fetching is in `../uploader.py`.

Sizes are measured on the log's own scale: the feed says where the committed log ends
in bytes, each fetch says where the fetched part ends, and the difference is uncut.
The scale is the owner's, so a new epoch makes it unknown until something is fetched.

On the record's path: after services/bottomless_server/ingest/local/appender.py, before
services/bottomless_server/uploader/uploader.py.
"""

from typing import Final, NamedTuple

SEEN_COUNT_MAX: Final = 64
"""Marks of when commits were first seen; beyond, new commits count as old as the last mark."""
_LONG_AGO: Final = -(2**62)


class CommitSeen(NamedTuple):
    """The commit feed's latest word on a stream."""

    epoch: int
    committed_next: int
    log_end: int
    """Bytes of committed log, on the owner's scale."""
    target_bytes: int
    max_age_ms: int


class ChunksFetched(NamedTuple):
    """What one answer of the chunk feed brought, as its headers say."""

    first_offset: int
    next_offset: int
    """Equal to `first_offset` where nothing came."""
    size: int
    log_end: int
    """Where its last chunk ends, on the owner's scale."""


class Fetch(NamedTuple):
    """Fetch whole chunks from `first_offset`, up to `max_bytes` and at least one."""

    first_offset: int
    max_bytes: int


class Measure(NamedTuple):
    """Fetch one chunk from `first_offset` to learn where it lies in the log; keep nothing."""

    first_offset: int


class Cut(NamedTuple):
    """What was fetched since the last cut is a fragment; at an epoch's end, more than one."""

    first_offset: int
    next_offset: int


class Wait(NamedTuple):
    """Nothing to do before `until`, on the caller's clock; None: before the next event."""

    until: int | None


class Seen(NamedTuple):
    """Commits below `next_offset` that no earlier mark covers were first seen at `at`."""

    next_offset: int
    at: int


class Cutter:
    """The cuts of one stream. Offsets only grow, and what is cut once is not cut again."""

    def __init__(self) -> None:
        self._cut_next = 0
        self._position: int | None = None
        """Where `_cut_next` lies on the owner's scale."""
        self._gathered_next = 0
        self._gathered_size = 0
        self._dry = False
        """Whether the last fetch brought nothing."""
        self._commit = CommitSeen(0, 0, 0, 1, 0)
        self._seen: list[Seen] = []
        self._draining = False

    @property
    def uncut(self) -> bool:
        """Whether there is committed data that no cut has taken."""
        return self._commit.committed_next > self._cut_next

    @property
    def hurried(self) -> bool:
        """Whether all is to be uploaded at once: this process drains, or the owner does."""
        return self._draining or self._commit.max_age_ms == 0

    def restart(self, published_next: int) -> None:
        """Begin again where the manifest ends; what was fetched, or cut but not applied, is
        forgotten.
        """
        if published_next < self._cut_next and not self._is_overdue():
            # It was due once, so it is due at once.
            self._seen.insert(0, Seen(self._cut_next, _LONG_AGO))
        self._cut_next = self._gathered_next = published_next
        self._gathered_size = 0
        self._position = None
        self._dry = False
        self._forget_marks()
        self.check()

    def _is_overdue(self) -> bool:
        """Whether an earlier restart left a mark. It reaches further than what is cut, or it were gone."""
        return bool(self._seen) and self._seen[0].at == _LONG_AGO

    def commit_seen(self, commit: CommitSeen, now: int) -> None:
        known = max(self._commit.committed_next, self._cut_next)
        if commit.epoch != self._commit.epoch or commit.log_end < self._commit.log_end:
            self._position = None
        self._commit = commit
        if commit.committed_next > known:
            self._mark(Seen(commit.committed_next, now))
        self.check()

    def chunks_fetched(self, fetched: ChunksFetched) -> None:
        """Add to what is gathered; the caller has checked that it starts where that ends.

        Where the feed ends early, what is gathered is cut as it is.
        """
        assert fetched.first_offset == self._gathered_next
        assert fetched.next_offset >= fetched.first_offset
        self._dry = fetched.next_offset == fetched.first_offset
        self._gathered_next = fetched.next_offset
        self._gathered_size += fetched.size
        if not self._dry:
            self._position = fetched.log_end - self._gathered_size
        self.check()

    def gathered_dropped(self) -> None:
        """The caller has nothing any more of what it gathered since the last cut."""
        self._gathered_next = self._cut_next
        self._gathered_size = 0
        self._dry = False
        self.check()

    def measured(self, fetched: ChunksFetched) -> None:
        """Take the place of the cut from an answer that is thrown away."""
        if fetched.first_offset == self._cut_next:
            self._position = fetched.log_end - fetched.size

    def cut_taken(self) -> None:
        """The caller holds what was gathered as fragments now."""
        assert self._gathered_next > self._cut_next
        if self._position is not None:
            self._position += self._gathered_size
        self._cut_next = self._gathered_next
        self._gathered_size = 0
        self._dry = False
        self._forget_marks()
        self.check()

    def drain(self) -> None:
        """Cut everything committed at once from now on."""
        self._draining = True

    def decide(self, now: int) -> Fetch | Measure | Cut | Wait:
        """What to do now; the same until an event or the time changes it."""
        if self._gathered_next > self._cut_next:
            return self._go_on()
        if not self.uncut:
            return Wait(None)
        due_at = self._due_at()
        if self._draining or now >= due_at or self._full():
            return Fetch(self._cut_next, self._wanted())
        if self._position is None and self._commit.log_end >= self._commit.target_bytes:
            # Less than a target in the whole log needs no measuring.
            return Measure(self._cut_next)
        return Wait(due_at)

    def check(self) -> None:
        """Assert what must hold after every event."""
        assert self._cut_next <= self._gathered_next
        assert self._gathered_size >= 0
        assert self._gathered_next > self._cut_next or self._gathered_size == 0
        assert len(self._seen) <= SEEN_COUNT_MAX + 1
        assert all(mark.next_offset > self._cut_next for mark in self._seen)

    def _go_on(self) -> Fetch | Cut:
        short = self._gathered_size < self._commit.target_bytes
        if short and not self._dry and self._gathered_next < self._commit.committed_next:
            return Fetch(self._gathered_next, self._wanted())
        return Cut(self._cut_next, self._gathered_next)

    def _wanted(self) -> int:
        rest = self._commit.target_bytes - self._gathered_size
        if self._position is None:
            return rest
        uncut = self._commit.log_end - self._position - self._gathered_size
        return max(1, min(rest, uncut))

    def _full(self) -> bool:
        if self._position is None:
            return False
        return self._commit.log_end - self._position >= self._commit.target_bytes

    def _due_at(self) -> int:
        return self._seen[0].at + self._commit.max_age_ms if self._seen else _LONG_AGO

    def _mark(self, mark: Seen) -> None:
        last = self._seen[-1] if self._seen else None
        grain = self._commit.max_age_ms // SEEN_COUNT_MAX
        if last and (mark.at - last.at <= grain or len(self._seen) >= SEEN_COUNT_MAX):
            # One mark for what came close together: its time is the earlier one.
            self._seen[-1] = Seen(mark.next_offset, last.at)
        else:
            self._seen.append(mark)

    def _forget_marks(self) -> None:
        self._seen = [mark for mark in self._seen if mark.next_offset > self._cut_next]
