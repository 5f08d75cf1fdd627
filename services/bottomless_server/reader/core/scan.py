"""Scan: what a page with a filter has looked at, and how much it may look at.

Pure. A filter may ask for what is nowhere, so such a page has an end of its own: it ends at a bound
with no record, and says where the next page goes on.
"""

from typing import Final, NamedTuple

from bottomless.formats.filter import AskedHashes, asked_by
from bottomless.model.filter import Filter
from bottomless.model.limits import PAGE_SIZE_MAX

_STEP_SIZE_MAX: Final = PAGE_SIZE_MAX
"""Bytes that are asked for at once: as many as for the largest page without a filter."""


class PassedOver(NamedTuple):
    """Offsets in which certainly nothing is that is asked for: what lies there is not read."""

    first_offset: int
    next_offset: int
    size: int
    """Bytes that are not read."""
    fragment_count: int
    """Fragments of which nothing is read."""
    timestamp: int | None = None
    """When the record at the first offset was committed, where that is known."""


class ScanBounds(NamedTuple):
    """What an operator may set of pages with a filter; see ../settings.py."""

    size_max: int
    group_count_max: int
    seconds_max: float


class Scan:
    """What one page looks at under its filter."""

    def __init__(self, wanted: Filter, bounds: ScanBounds) -> None:
        self.wanted = wanted
        self.asked: AskedHashes = asked_by(wanted)
        """What is asked for, as filters of fragments and nodes know it: they say where it is not."""
        self.scanned_size = 0
        """Bytes of chunks that were looked at."""
        self.skipped_size = 0
        """Bytes of fragments that were left unread, since nothing in them can be asked for."""
        self.skipped_count = 0
        """Fragments that were left unread as a whole."""
        self.false_chunk_count = 0
        """Chunks that filters let pass, and that held nothing that is asked for."""
        self.false_fragment_count = 0
        """Fragments of which filters let chunks pass, and all of those held nothing."""
        self.ends: float | None = None
        """When no more time is left, by the clock of whoever calls `check_time`."""
        self._bounds = bounds
        self._groups: set[bytes] = set()
        self._no_more_groups = False
        self._seconds = 0.0
        self._stopped = False
        self._entered: tuple[str, int] | None = None

    @property
    def spent(self) -> bool:
        """The page ends here, whatever it has."""
        return self._stopped or self.scanned_size >= self._bounds.size_max

    def step(self, size: int) -> int:
        """Bytes to ask for next where a page still has room for `size` bytes of records.

        As many as were looked at, so that a page that finds nothing asks for more and more at once,
        and one that finds all it wants has asked for little too much.
        """
        left = max(self._bounds.size_max - self.scanned_size, 1)
        return min(max(size, self.scanned_size), left, _STEP_SIZE_MAX)

    def look_at(self, size: int) -> None:
        """Note bytes of a chunk that is looked at."""
        self.scanned_size += size

    def leave_out(self, size: int, fragment_count: int) -> None:
        """Note what is left unread: bytes, and whole fragments."""
        self.skipped_size += size
        self.skipped_count += fragment_count

    def enter_fragment(self, uid: str, count: int) -> None:
        """Note how many records the page has where it comes to the first one of a fragment."""
        self._entered = uid, count

    def leave_fragment(self, uid: str, count: int) -> None:
        """Note how many it has after the last one: where it has no more, and looked at all of the
        fragment, in however many steps, that was read for nothing.
        """
        self.false_fragment_count += self._entered == (uid, count)

    def enter(self, uid: bytes, *, on_the_way: bool) -> bool:
        """Note a group of the manifest; returns whether the page may look into it.

        It may in any case where it is `on_the_way` to the place at which the page has come: a page
        that looks at nothing would be asked for again and again.
        """
        known = uid in self._groups
        if not known and not on_the_way and len(self._groups) >= self._bounds.group_count_max:
            self._no_more_groups = True
            return False
        self._groups.add(uid)
        return True

    def end_plan(self) -> None:
        """All was looked at that was planned; the page ends if it may look into no further group."""
        self._stopped = self._stopped or self._no_more_groups

    def begin(self, now: float) -> None:
        """The time for looking runs from now on, until `pause`."""
        self.ends = now + self._bounds.seconds_max - self._seconds

    def pause(self, now: float) -> None:
        """Waiting at the end of a stream costs nothing, and is not counted."""
        assert self.ends is not None
        self._seconds = max(self._bounds.seconds_max - (self.ends - now), 0)

    def check_time(self, now: float) -> None:
        """End the page if its time is over; something has been looked at by then."""
        if self.ends is not None and now >= self.ends:
            self._stopped = True


class ScanTotals:
    """What all pages with a filter have looked at and left out, for the metrics."""

    def __init__(self) -> None:
        self.page_count = 0
        self.scanned_size = 0
        self.skipped_size = 0
        self.skipped_count = 0
        self.false_chunk_count = 0
        self.false_fragment_count = 0

    def add(self, scan: Scan | None) -> None:
        """Count a page that is about to be answered; one without a filter is not counted."""
        if scan is None:
            return
        self.page_count += 1
        self.scanned_size += scan.scanned_size
        self.skipped_size += scan.skipped_size
        self.skipped_count += scan.skipped_count
        self.false_chunk_count += scan.false_chunk_count
        self.false_fragment_count += scan.false_fragment_count
