"""What clients were told of one stream, and what may therefore never be seen.

Every value is sent for one place only, so that where it is seen says whether it is there twice.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_FAR_COUNT: Final = 1_000_000


class Broken(AssertionError):
    """A promise of architecture.md, section 7, does not hold."""


class Answered(NamedTuple):
    """Who acknowledged a record of a leaderless stream, and when."""

    node: str
    life: int
    at: float
    noted: bool
    """Whether its note was durable before the answer, as the node is set."""


@dataclass
class Expected:
    name: str
    stream_id: str = ""
    leaderless: bool = False
    sent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Of which an answer said that nothing was stored."""
    acknowledged: dict[int, str] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    """What any read ever showed."""
    floor: int = 0
    """The highest that anybody was told of."""
    trimmed_below: int | None = None
    """The highest that anybody asked to trim below; None where the limit in bytes may take more."""
    deleted: bool = False
    of_super: bool = False
    """Whether it is a partition of a super stream."""
    takeovers: int = 0
    """How often an operator accepted a loss; without, no gap is right."""
    begun_at: set[int] = field(default_factory=set)
    """Where a new owner of it began, as far as its record was seen."""
    losses: int = 0
    """How often all of coordination was lost."""
    removed_below: int = 0
    """Of a leaderless stream, its floor when coordination was lost last."""
    acknowledged_by: dict[int, Answered] = field(default_factory=dict)
    """Of a leaderless stream, whose answers may depend on a node's memory."""
    lost_of: set[str] = field(default_factory=set)
    """Writers who lost what was acknowledged to them."""
    gaps: set[tuple[int, int]] = field(default_factory=set)
    """First and next offset of what was accepted as lost, as it became known."""
    lost_with_drives: set[tuple[int, int]] = field(default_factory=set)
    """Those of them that lay on a drive that was lost: who appended that was told so before."""
    stored_anew: set[str] = field(default_factory=set)
    """Values of staged commits and of the first append of a producer. Where a takeover loses what
    is known of producers, their repeat is new, and what was uploaded stays: docs/guarantees.md."""
    promised: list[tuple[int, int | None, list[str]]] = field(default_factory=list)
    """Values that are stored, none below an offset; and where the first is, if that was told."""
    told: set[tuple[int, int]] = field(default_factory=set)
    """First and next offset of what a producer was told is stored, when it asked or sent a commit again."""
    on_told: Callable[[str, int], None] = lambda *_: None
    """Called when a producer was told that its number is stored."""
    _places: dict[str, int] = field(default_factory=dict)
    _first: dict[str, int] = field(default_factory=dict)
    """The lowest offset at which each value was ever told of."""

    @property
    def may_have_lost(self) -> bool:
        """Whether something happened after which a gap is right."""
        return self.takeovers > 0 or (self.leaderless and self.losses > 0)

    def has_forgotten(self, who: str) -> bool:
        """Whether what was known of a producer may be gone: with a disk that an operator gave up, or,
        of a leaderless stream, with what it was told is stored."""
        return who in self.lost_of if self.leaderless else self.takeovers > 0

    @property
    def acknowledged_next(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    @property
    def told_next(self) -> int:
        """The end of all that anybody was told is stored."""
        return max(self.acknowledged_next, *(end for _, end in self.told), 0)

    def somewhere(self, chance: random.Random, end: int) -> int:
        """An offset up to `end`, mostly one that has a record."""
        far = [first for first, after in self.gaps if after - first > _FAR_COUNT and first < end]
        if not far:
            return chance.randint(0, end)
        # Else nearly all would lie within a gap of 2^32 offsets.
        return chance.choice([*far, *sorted(offset for offset in self.seen if offset < end), end])

    def lose_coordination(self, floor: int) -> None:
        """All of coordination is lost while the manifest begins at `floor`. Where all that a writer
        was told of a leaderless stream was removed before, and no fragment came since, nothing in the
        bucket tells of it any more: docs/guarantees.md, known faults."""
        self.losses += 1
        if not self.leaderless:
            return
        self.removed_below = max(self.removed_below, floor)
        last: dict[str, int] = {}
        for offset, value in self.acknowledged.items():
            name = value.partition(" ")[0]
            last[name] = max(last.get(name, -1), offset)
        self.lost_of.update(name for name, offset in last.items() if offset < floor)

    def lose_with_drive(self, first_offset: int, next_offset: int) -> None:
        """What was published between two offsets was on a drive that is lost for good. What owners know
        of producers is not lost with it."""
        known = set(self.lost_of)
        self.lose(first_offset, next_offset)
        self.lost_of = known
        self.lost_with_drives.add((first_offset, next_offset))

    def lose(self, first_offset: int, next_offset: int) -> None:
        """An operator's takeover has closed the stream's end with this gap."""
        if (first_offset, next_offset) in self.gaps:
            return
        self.gaps.add((first_offset, next_offset))
        self.told = {one for one in self.told if one[1] <= first_offset}
        for offset in [o for o in self.acknowledged if first_offset <= o < next_offset]:
            self.lost_of.add(self.acknowledged.pop(offset).partition(" ")[0])
        for value in [v for v, o in self._places.items() if first_offset <= o < next_offset]:
            del self._places[value]

    def is_lost(self, offset: int, gaps: set[tuple[int, int]] | None = None) -> bool:
        known = self.gaps if gaps is None else gaps
        return any(first <= offset < end for first, end in known)

    def acknowledge(
        self, first_offset: int, values: list[str], before: set[tuple[int, int]], *, blind: bool
    ) -> None:
        """An append was answered; `before` it was sent these gaps were known. Whoever takes it
        into one of them is an owner of the past, which a node may be only while it is blind."""
        if self.is_lost(first_offset, before - self.lost_with_drives) and not blind:
            raise Broken(f"{self.name}: {first_offset} is acknowledged by an owner of the past")
        for offset, value in enumerate(values, first_offset):
            if self.is_lost(offset):
                continue
            known = self.acknowledged.get(offset)
            if known is not None and known != value:
                raise Broken(f"{self.name}: offset {offset} was given to {known} and to {value}")
            self._place(offset, value)
            self.acknowledged[offset] = value

    def promise(self, begun: int, first_offset: int | None, values: list[str]) -> None:
        """An answer said that all of these are stored, with others between them perhaps."""
        self.promised.append((begun, first_offset, values))

    def require_promised(self, floor: int) -> None:
        """Each is where it was promised, as far as nothing of it was trimmed or lost.

        Raises:
            Broken: something is missing, or stands elsewhere.
        """
        for begun, first_offset, values in () if self.takeovers else self.promised:
            begin = begun if first_offset is None else first_offset
            lost = self.gaps if self.leaderless else self.lost_with_drives
            if begin < floor or any(end > begin for _, end in lost):
                continue
            missing = [value for value in values if value not in self._places]
            if missing:
                raise Broken(f"{self.name}: of a whole commit {missing[0][:40]} is not there")
            place = min(self._places[value] for value in values)
            if first_offset not in (None, place):
                raise Broken(f"{self.name}: the commit at {first_offset} begins elsewhere")

    def refuse(self, values: list[str]) -> None:
        for value in values:
            if value in self._places:
                place = self._places[value]
                raise Broken(f"{self.name}: {value} was refused, and is stored at {place}")
            self.refused.add(value)

    def show(self, offset: int, value: str) -> None:
        """A reader was shown this."""
        if value not in self.sent:
            raise Broken(f"{self.name}: nobody sent what is at {offset}: {value[:40]}")
        if value in self.refused:
            raise Broken(f"{self.name}: {value} was refused, and is read at {offset}")
        promised = self.acknowledged.get(offset, value)
        if promised != value:
            raise Broken(f"{self.name}: {offset} was acknowledged as {promised}, read as {value}")
        if self.is_lost(offset):
            return
        before = self.seen.setdefault(offset, value)
        if before != value:
            raise Broken(f"{self.name}: {offset} was {before}, and is {value} now")
        self._place(offset, value)

    def _place(self, offset: int, value: str) -> None:
        self._first[value] = min(self._first.get(value, offset), offset)
        place = self._places.setdefault(value, offset)
        if place < self.removed_below <= offset:
            self._places[value] = offset
            self.acknowledged.pop(place, None)
        elif place != offset and not (self.takeovers and value in self.stored_anew):
            raise Broken(f"{self.name}: {value} is at {place} and at {offset}")

    def is_stored_anew(self, value: str, offset: int) -> bool:
        """Whether a record may come after later ones of its producer: it was there before, and an operator
        gave up since, and before this offset, what an owner knew of the producer. That of a partition
        may have been in another one, by the layout of then."""
        before = self._first.get(value, offset)
        if self.of_super and before == offset:
            before = 0
        owners = any(before < begun <= offset for begun in self.begun_at)
        return self.takeovers > 0 and value in self.stored_anew and owners


def past_gaps(gaps: Iterable[tuple[int, int]], offset: int) -> int:
    """The offset, or where the gaps that it lies in end: the gap of one takeover may begin where
    that of the one before ends, of a stream that nobody appended to between them."""
    for first, end in sorted(gaps):
        offset = end if first <= offset < end else offset
    return offset
