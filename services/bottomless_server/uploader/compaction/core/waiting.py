"""The WAL objects that wait for compaction: when a round begins, which of them it takes, and in which
order.

A round begins for a stream whose records have waited long enough, and looks into objects that hold many
other streams too. What it leaves of them is remembered, with the time when those others want it: a
stream of ten seconds must not cut its neighbours of half an hour every ten seconds, nor have their
objects fetched each time. All of this is memory alone; after a start each object is looked at anew.

Times are those of one clock that never goes back. What is in no fragment yet, and whose, says
runs.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId, Uid
from bottomless_server.leaderless.tail import HeldMember

SIZE_EXPECTED: Final = 8 * 1024 * 1024
"""Bytes of an object as long as nobody knows the size of any: what a flush holds at most, as a rule."""
RELEASE_WAIT_MS: Final = 1_000
RELEASE_WAIT_MS_MAX: Final = 60_000
"""Waits before a release is tried again, which double: the manifest has to prune first."""


class Place(NamedTuple):
    """A WAL object: its writer, and its number among the writer's."""

    instance: Uid
    sequence: int


class Why(Enum):
    """Why a round begins."""

    AGE = auto()
    """Some stream wants its records to be in a fragment by now."""
    FULL = auto()
    """So much waits that all of it is cut, however young."""
    ASKED = auto()
    """Somebody wants it now."""

    @property
    def cuts_all(self) -> bool:
        """Whether each stream is cut, whatever the age of its records."""
        return self is not Why.AGE


class Limits(NamedTuple):
    """How much may wait before a round begins."""

    cache_bytes: int
    """Bytes of the objects of one round; with half of it waiting a round begins."""
    entry_count: int


class Left(NamedTuple):
    """What a round leaves of one object."""

    look_at: int
    """Before this time no stream that needs it would be cut."""
    wanted_at: int
    """The time at which some stream that needs it wants a round."""
    entry_count: int
    """Entries of streams that are not set aside."""

    def with_(self, other: "Left") -> "Left":
        """What two streams leave of one object."""
        return Left(
            min(self.look_at, other.look_at),
            min(self.wanted_at, other.wanted_at),
            self.entry_count + other.entry_count,
        )


@dataclass(slots=True)
class Waiting:
    """An object that entries may need."""

    committed_at: int
    """The earliest of its commits, by their own clocks."""
    wanted_at: int
    entry_count: int
    seen_at: int
    """When this process heard of it first."""
    look_at: int | None = None
    """None of an object at which no round has looked."""
    size: int | None = None
    idle_count: int = 0
    """Rounds in a row that took it and advanced no stream by it."""
    is_lost: bool = False
    """Whether the store had no such object when it was asked for last."""


@dataclass(slots=True)
class Done:
    """An object that no stream needs any more, as far as is known; it is to be released."""

    stream_ids: Collection[StreamId]
    """All streams of the shards held here that its directory names."""
    retry_at: int
    refused_count: int = 0
    """How often something needed it still."""


class WaitingObjects:
    """The objects that hold something of the shards of one uploader."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[Place, Waiting] = {}
        self._done: dict[Place, Done] = {}
        self._known_count = 0
        self._known_size = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._done)

    @property
    def entry_count(self) -> int:
        """Entries that wait, as far as is known."""
        return sum(one.entry_count for one in self._waiting.values())

    @property
    def done(self) -> Mapping[Place, Done]:
        return self._done

    def oldest_age_ms(self, clock_ms: int) -> int:
        """Age of the oldest commit that waits, by a clock of ms since 1970; 0 if none does."""
        oldest = min((one.committed_at for one in self._waiting.values()), default=clock_ms)
        return max(0, clock_ms - oldest)

    def seen(self, instance: Uid, held: Iterable[HeldMember], now: int, clock_ms: int) -> None:
        """Take word of what holds objects, each member once. `clock_ms` is in ms since 1970."""
        for member in held:
            place = Place(instance, member.sequence)
            # A commit of the future, by a clock that is ahead, is one of now.
            age = max(0, clock_ms - member.committed_at)
            wanted_at = now + member.max_age_ms - age
            before = self._waiting.get(place)
            if before is None:
                self._done.pop(place, None)
                before = Waiting(member.committed_at, wanted_at, 0, now)
                self._waiting[place] = before
            before.committed_at = min(before.committed_at, member.committed_at)
            before.wanted_at = min(before.wanted_at, wanted_at)
            before.entry_count += member.entry_count
            before.look_at = None

    def forget(self, places: Iterable[Place] | None = None) -> None:
        """Forget objects that hold nothing any more; all of them where other shards are held now."""
        for place in list({**self._waiting, **self._done} if places is None else places):
            self._waiting.pop(place, None)
            self._done.pop(place, None)

    def places(self) -> set[Place]:
        return {*self._waiting, *self._done}

    def seen_at(self) -> dict[Place, int]:
        """Objects that wait, each with the time at which this process heard of it first."""
        return {place: one.seen_at for place, one in self._waiting.items()}

    def lost(self) -> set[Place]:
        """Objects that are not there, as far as is known."""
        return {place for place, one in self._waiting.items() if one.is_lost}

    def begins(self, now: int) -> Why | None:
        """Why a round is to begin now; None if none is."""
        size = entry_count = 0
        aged = False
        for one in self._waiting.values():
            aged = aged or one.wanted_at <= now
            # What only streams need that are set aside never counts as much.
            if one.entry_count:
                size += self._size(one)
                entry_count += one.entry_count
        if 2 * size >= self._limits.cache_bytes or entry_count >= self._limits.entry_count:
            return Why.FULL
        return Why.AGE if aged else None

    def candidates(self, why: Why, now: int) -> list[Place]:
        """The objects that a round would take if all fitted, in the order in which it takes them.

        The oldest comes first; but what advanced no stream comes after what did. Clocks of writers
        differ, so an older entry of the same stream may lie in an object that looks younger.
        """
        found = [
            (one.idle_count, one.committed_at, place)
            for place, one in self._waiting.items()
            if not _is_left_alone(one, now)
            and (why.cuts_all or one.look_at is None or one.look_at <= now)
        ]
        return [place for _, _, place in sorted(found)]

    def unsized(self, places: Iterable[Place]) -> list[Place]:
        """Objects whose size is not known."""
        return [place for place in places if self._waiting[place].size is None]

    def sized(self, place: Place, size: int) -> None:
        """Note the bytes of an object; others are taken to be as large as those known so far."""
        one = self._waiting.get(place)
        if one is not None and one.size is None:
            one.size = size
            self._known_count += 1
            self._known_size += size

    def take(self, candidates: Sequence[Place]) -> list[Place]:
        """The first candidates that fit into the cache together; one always fits."""
        taken: list[Place] = []
        size = 0
        for place in candidates:
            size += self._size(self._waiting[place])
            if taken and size > self._limits.cache_bytes:
                break
            taken.append(place)
        return taken

    def asked_for(self, place: Place, *, is_lost: bool) -> None:
        """Note whether an object was there."""
        self._waiting[place].is_lost = is_lost

    def looked_at(self, place: Place, left: Left, *, advanced: bool) -> None:
        """Note what a round that took an object has left of it, and whether it advanced a stream."""
        one = self._waiting[place]
        one.look_at, one.wanted_at, one.entry_count = left
        one.idle_count = 0 if advanced else one.idle_count + 1

    def wanted(self, place: Place, left: Left) -> None:
        """Note that streams want an object which the round has not taken, perhaps sooner than was
        known."""
        one = self._waiting.get(place)
        if one is not None and one.look_at is not None:
            one.look_at = min(one.look_at, left.look_at)
            one.wanted_at = min(one.wanted_at, left.wanted_at)
            one.entry_count = max(one.entry_count, left.entry_count)

    def finished(self, place: Place, stream_ids: Collection[StreamId], now: int) -> None:
        """Note that no stream needs an object any more; its release may be tried at once."""
        self._waiting.pop(place, None)
        self._done[place] = Done(stream_ids, now)

    def to_release(self, now: int) -> dict[Place, Done]:
        """Objects whose release is to be tried now."""
        return {place: one for place, one in self._done.items() if one.retry_at <= now}

    def not_released(self, place: Place, now: int) -> None:
        """Note that something needs an object still; it is tried again after a while."""
        one = self._done[place]
        one.retry_at = now + int(backoff(one.refused_count, RELEASE_WAIT_MS, RELEASE_WAIT_MS_MAX))
        one.refused_count += 1

    def _size(self, one: Waiting) -> int:
        if one.size is not None:
            return one.size
        return self._known_size // self._known_count if self._known_count else SIZE_EXPECTED


def _is_left_alone(one: Waiting, now: int) -> bool:
    """Whether nothing but streams that are set aside needs an object: then nobody looks at it before
    its time, not even where much waits. What is stuck never fills the cache."""
    return one.entry_count == 0 and one.look_at is not None and one.look_at > now
