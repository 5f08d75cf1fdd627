"""Know which fragments could not be moved since their bytes are damaged or gone, and leave them alone for a
while.

An uploader tells of them when it tells that a move is done (front/internal_move_routes.py): all else of
the move is named on its new drive, and these stay where they are. Until their time has come no move is
entered that has them; then one is, and the next one that fails is waited for twice as long.

What is not tried for long after its time has come is forgotten: its stream was deleted, it was cut or became a
gap, nobody wants it moved any more, or another process has moved it. If it is still damaged, the next try
finds that out.

Nothing of this is stored. After a restart, or in another process, they are tried at once, which costs
one read of each; and a process that was not told of them cannot show them.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid

FIRST_MS: Final = 60_000
LONGEST_MS: Final = 16 * 60_000
"""Somebody may have mended it: a fragment is read this often in vain."""
LATEST_MS: Final = 60 * 60_000
"""How long after its time has come a fragment is remembered. What a policy wants moved is tried within a minute
where its stream has room for a move."""
COUNT_MAX: Final = 4_096
"""Fragments that are remembered, of all streams; the one that is forgotten is tried sooner."""
SHOWN_COUNT_MAX: Final = 64
"""Fragments of a stream that are told of."""


class DamagedSource(NamedTuple):
    """A fragment that could not be moved."""

    first_offset: int
    next_offset: int
    """Exclusive."""
    drive: int
    """The number of the drive on which it lies."""
    tries: int
    """How often it was tried."""
    again_at: int
    """The moment from which on it is tried again, in ms of a clock that nobody can set."""


class DamagedSources:
    """What one process was told; it knows the time by `elapsed`, in ms that nobody can set."""

    def __init__(self, elapsed: Callable[[], int]) -> None:
        self._elapsed = elapsed
        self._known: OrderedDict[tuple[StreamId, Uid], DamagedSource] = OrderedDict()
        self._uids: dict[StreamId, set[Uid]] = {}

    def __len__(self) -> int:
        """How many there are."""
        now = self._elapsed()
        for key in [key for key, one in self._known.items() if is_over(one, now)]:
            self._drop(*key)
        return len(self._known)

    def note(self, stream_id: StreamId, damaged: Iterable[FragmentInfo]) -> None:
        """Remember that fragments could not be moved just now."""
        for info in damaged:
            before = self._drop(stream_id, info.uid)
            tries = 0 if before is None else before.tries
            self._known[stream_id, info.uid] = DamagedSource(
                info.first_offset,
                info.next_offset,
                info.drive,
                tries + 1,
                self._elapsed() + int(backoff(tries, FIRST_MS, LONGEST_MS)),
            )
            self._uids.setdefault(stream_id, set()).add(info.uid)
        while len(self._known) > COUNT_MAX:
            self._drop(*next(iter(self._known)))

    def forget(self, stream_id: StreamId, moved: Collection[Uid]) -> None:
        """Take notice that fragments were moved after all."""
        for uid in moved:
            self._drop(stream_id, uid)

    def forget_drive(self, stream_id: StreamId, number: int) -> None:
        """Take notice that a stream has nothing on a drive any more."""
        for uid in [*self._uids.get(stream_id, ())]:
            if self._known[stream_id, uid].drive == number:
                self._drop(stream_id, uid)

    def forget_stream(self, stream_id: StreamId) -> None:
        """Take notice that a stream is deleted."""
        self.forget(stream_id, [*self._uids.get(stream_id, ())])

    def of(self, stream_id: StreamId, floor: int) -> list[DamagedSource]:
        """The fragments of a stream that could not be moved, by their offsets; those that lie below the
        floor are forgotten."""
        now = self._elapsed()
        for uid in [*self._uids.get(stream_id, ())]:
            one = self._known[stream_id, uid]
            if one.next_offset <= floor or is_over(one, now):
                self._drop(stream_id, uid)
        return sorted(self._known[stream_id, uid] for uid in self._uids.get(stream_id, ()))

    def _drop(self, stream_id: StreamId, uid: Uid) -> DamagedSource | None:
        found = self._known.pop((stream_id, uid), None)
        if found is not None:
            self._uids[stream_id].discard(uid)
            if not self._uids[stream_id]:
                del self._uids[stream_id]
        return found

    def wait_ms(self, one: DamagedSource) -> int:
        """How long it is until a fragment is tried again; 0 if that may be at once."""
        return max(one.again_at - self._elapsed(), 0)

    def waiting(self, stream_id: StreamId, floor: int) -> list[DamagedSource]:
        """List the fragments of a stream that are not to be tried yet."""
        return [one for one in self.of(stream_id, floor) if is_early(self.wait_ms(one))]


@guard("the pause of what cannot be moved")
def is_early(wait_ms: int) -> bool:
    """Whether a damaged fragment is left alone: else a move of it would stand in the place of others, and
    read it, each minute."""
    return wait_ms > 0


@guard("what is damaged, forgotten when nobody tries it")
def is_over(one: DamagedSource, now: int) -> bool:
    """Whether a damaged fragment was not tried for so long that it need not be there any more: else it is
    counted, and an alarm goes on, for as long as the process lives."""
    return now - one.again_at >= LATEST_MS
