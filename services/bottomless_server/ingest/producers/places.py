"""Places in a full table for what one round brings: no name loses its place within its time.

A stream remembers so many producers and so many keys; the name that was silent for longest makes
room for a new one, if that was long enough. A round stores many appends at once, and all of them
are decided before any is stored. So the places that its earlier appends took are counted here:
each new name takes a free place, or that of one more silent name, and a silent name that
writes in the same round keeps its own if it comes before the place is given away.

On the record's path: asked by producers.py, told by local/waiting.py what was chosen.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from bottomless.errors import Code, Overloaded
from bottomless.guards import guard
from bottomless_server.core.tracking.known_producers import KEY_SIZE, KeyUse, Producer
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.records.conditions import FromProducer, WithKey


class _Timed(Protocol):
    @property
    def taken_at(self) -> int: ...


_Name = TypeVar("_Name", str, bytes)
_Entry = TypeVar("_Entry", bound=_Timed)


class _Table(Generic[_Name, _Entry]):
    """A table, oldest first, as it will be when what is chosen so far is stored."""

    def __init__(
        self,
        entries: OrderedDict[_Name, _Entry],
        count_max: int,
        over_before: int,
        is_needed: Callable[[_Name], bool] = lambda _: False,
    ) -> None:
        self._is_needed: Callable[[_Name], bool] = is_needed
        """Whether a name keeps its place however long it is silent."""
        self._entries: OrderedDict[_Name, _Entry] = entries
        self._free = count_max - len(entries)
        self._over_before = over_before
        """Names that were not heard later than this, by the time of the node, may be forgotten."""
        self._oldest: Iterator[tuple[_Name, _Entry]] = iter(entries.items())
        self._next: _Name | None = None
        """The silent name whose place is given away next."""
        self._given: set[_Name] = set()
        self._chosen: set[_Name] = set()

    def fits(self, name: _Name) -> bool:
        return self._has_place(name) or self._free > 0 or self._find_silent()

    def take(self, name: _Name) -> None:
        """Count a name that fits, and will be stored."""
        if not self._has_place(name):
            if self._free > 0:
                self._free -= 1
            elif self._find_silent() and self._next is not None:
                self._given.add(self._next)
                self._next = None
        self._chosen.add(name)

    def _has_place(self, name: _Name) -> bool:
        return name in self._chosen or (name in self._entries and name not in self._given)

    def _find_silent(self) -> bool:
        """Each name is looked at once in a round: those that are passed over keep their place."""
        while self._next is None or self._next in self._chosen or self._is_needed(self._next):
            found = next(self._oldest, None)
            if found is None or found[1].taken_at > self._over_before:
                # The others spoke later still.
                self._oldest, self._next = iter(()), None
                return False
            self._next = found[0]
        return True


class Places:
    """The places that one round of a stream may take, at the time of the round."""

    def __init__(self, tracking: Tracking) -> None:
        bounds, over_before = tracking.bounds, tracking.over_before
        self.producers: _Table[str, Producer] = _Table(
            tracking.producers, bounds.producer_count_max, over_before, tracking.open_commits.needs
        )
        self.keys: _Table[bytes, KeyUse] = _Table(tracking.keys, bounds.key_count_max, over_before)

    @guard("the places that a round has given away")
    def take(self, identity: FromProducer | WithKey) -> None:
        if isinstance(identity, WithKey):
            self.keys.take(identity.key_hash)
        else:
            self.producers.take(identity.producer_id)


def check_place(tracking: Tracking, identity: FromProducer | WithKey, places: Places) -> None:
    """Keep room for what may become known.

    Raises:
        Overloaded: `quota-exceeded`.
    """
    bounds = tracking.bounds
    if isinstance(identity, WithKey):
        if not places.keys.fits(identity.key_hash):
            raise quota_exceeded("idempotency keys", bounds.key_count_max)
        known, size = identity.key_hash in tracking.keys, KEY_SIZE
    else:
        if not places.producers.fits(identity.producer_id):
            raise quota_exceeded("producers", bounds.producer_count_max)
        known, size = identity.producer_id in tracking.producers, bounds.producer_size
    if not tracking.keep_room(0 if known else size):
        raise Overloaded(
            "this node can remember no more producers and idempotency keys now; use fewer, or try again later",
            code=Code.QUOTA_EXCEEDED,
            retry_after_seconds=60,
        )


def quota_exceeded(what: str, limit: int) -> Overloaded:
    """A stream remembers as many of these as it may."""
    return Overloaded(
        f"the stream can remember no more {what} now; use fewer, or try again later",
        code=Code.QUOTA_EXCEEDED,
        retry_after_seconds=60,
        facts={"limit_count": limit},
    )
