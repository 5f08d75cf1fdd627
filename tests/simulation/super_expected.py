"""What producers were told of one super stream, and what may therefore never be seen.

Of each partition `Expected` says so. What concerns them all is here: each value is in one partition
only, in one where a layout has its key, and the values of a key go from partition to partition in
the order of the layouts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bottomless.formats.super_record import decode_super
from bottomless.model.names import SuperId
from bottomless.model.routing import hash_keys, keys_of
from bottomless.model.super_stream import Layout, SuperRecord, SuperState
from bottomless_server.stores.supers import super_key
from simulation.expected import Broken, Expected
from simulation.programs import Ground

KEY_COUNT: Final = 5
"""Keys of each producer."""
Gaps = Mapping[str, set[tuple[int, int]]]


def key_of(value: str) -> str:
    """The key of a record, by its value: `{producer} {number} …`."""
    who, number, _ = value.split(" ", 2)
    return f"{who}.{int(number) % KEY_COUNT}"


@dataclass
class SuperExpected:
    """A super stream as it has to be."""

    name: str
    super_id: str
    streams: list[Expected] = field(default_factory=list)
    """The partitions, in the order of their indexes."""
    layouts: tuple[Layout, ...] = ()
    over: bool = False
    """Who appends finishes what it is at, and begins nothing."""
    sent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)
    """Values that are stored, of which nobody said where."""
    whole: set[str] = field(default_factory=set)
    """Values of requests that were answered 200."""
    _routes: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def may_have_forgotten(self) -> bool:
        """Whether an operator gave something up: what was known of a producer may be gone with it."""
        return any(one.takeovers for one in self.streams)

    def gaps(self) -> Gaps:
        """What is known to be lost now."""
        return {one.stream_id: set(one.gaps) for one in self.streams}

    def route(self, key: str, count: int) -> int:
        """The partition of a key among so many."""
        if (key, count) not in self._routes:
            [number] = hash_keys(keys_of([key.encode()])).tolist()
            self._routes[key, count] = int(number) % count
        return self._routes[key, count]

    def take(
        self, told: Mapping[str, Any], values: Sequence[str], gaps: Gaps, *, blind: bool
    ) -> None:
        """Hold what an answer says of the parts that are stored against what is known.

        Raises:
            Broken
        """
        by_id = {one.stream_id: one for one in self.streams}
        indexes = sorted(n for part in told["results"] for n in part["record_indexes"])
        if indexes != list(range(len(values))):
            raise Broken(f"{self.name}: of {len(values)} records the answer has {indexes}")
        for part in told["results"]:
            mine = [values[n] for n in part["record_indexes"]]
            if part["status"] != 200:
                continue
            if part["count"] + part["duplicates"] != len(mine):
                raise Broken(f"{self.name}: {len(mine)} records make {part}")
            stream = by_id.get(part["stream_id"])
            if stream is None:
                raise Broken(f"{self.name}: stored in {part['stream']}, which nobody knows")
            first = part["first_offset"]
            if first is None:
                self.promised.update(mine)
                continue
            if part["last_offset"] != first + len(mine) - 1:
                raise Broken(f"{self.name}: {len(mine)} records stand at {part}")
            before = gaps.get(stream.stream_id, set())
            stream.acknowledge(first, mine, before, blind=blind)

    def require_layouts(self, told: Mapping[str, Any], values: Sequence[str], known: int) -> None:
        """Hold an answer to a request without numbers against the layouts that there were when it was
        sent, so many: nothing of it is stored by one before the last of these.

        Raises:
            Broken
        """
        layouts = self.layouts[min(known, len(self.layouts)) - 1 :]
        for part in told["results"]:
            if part["status"] != 200:
                continue
            for value in (values[n] for n in part["record_indexes"]):
                key = key_of(value)
                if part["partition"] not in {self.route(key, one.count) for one in layouts}:
                    raise Broken(f"{self.name}: {value[:40]} was stored by a layout of before")

    def refuse(self, values: Sequence[str]) -> None:
        """An answer said that nothing of these was stored."""
        self.refused.update(values)
        for stream in self.streams:
            stream.refuse(list(values))

    def check(self) -> None:
        """Look at all that was read of all partitions, when everything was.

        Raises:
            Broken: a record is there twice, or is not, or not where it belongs.
        """
        places: dict[str, tuple[int, int]] = {}
        doubled: list[str] = []
        for index, stream in enumerate(self.streams):
            for offset, value in sorted(stream.seen.items()):
                self._require_route(value, index)
                if value in places:
                    doubled.append(f"{value[:30]} in {places[value]} and {(index, offset)}")
                places[value] = index, offset
        if self.may_have_forgotten:
            # A repeat may be new where what was known of it is lost: docs/guarantees.md.
            return
        if doubled:
            raise Broken(f"{self.name}: stored twice: {doubled[:3]}")
        missing = sorted((self.promised | self.whole) - places.keys())
        if missing:
            raise Broken(f"{self.name}: said to be stored, and is not: {missing[0][:40]}")
        self._check_order(places)

    def _require_route(self, value: str, index: int) -> None:
        counts = [layout.count for layout in self.layouts]
        if index not in {self.route(key_of(value), count) for count in counts}:
            raise Broken(f"{self.name}: {value[:40]} is in {index}, where no layout has its key")

    def _check_order(self, places: Mapping[str, tuple[int, int]]) -> None:
        """What was acknowledged of a key stands in the order of its numbers: in each partition, and
        over them by the layouts."""
        by_key: dict[str, list[tuple[int, str]]] = {}
        for stream in self.streams:
            for value in stream.acknowledged.values():
                number = int(value.split(" ", 2)[1])
                by_key.setdefault(key_of(value), []).append((number, value))
        for key, numbered in by_key.items():
            at = 0
            ends: dict[int, int] = {}
            for _, value in sorted(numbered):
                index, offset = places[value]
                counts = [layout.count for layout in self.layouts[at:]]
                steps = [n for n, count in enumerate(counts) if self.route(key, count) == index]
                if not steps:
                    raise Broken(f"{self.name}: {value[:40]} went by a layout of before")
                at += steps[0]
                if ends.get(index, -1) >= offset:
                    raise Broken(f"{self.name}: {value[:40]} is not after what came before it")
                ends[index] = offset


class SuperWatch:
    """Looks at the record of a super stream past all services, and learns what it has."""

    def __init__(
        self, expected: SuperExpected, ground: Ground, enter: Callable[[Expected], None]
    ) -> None:
        """`enter` has a new partition watched, and whatever befalls streams befall it."""
        self._expected = expected
        self._ground = ground
        self._enter = enter
        self._read_of: bytes | None = None
        self.record: SuperRecord | None = None

    @property
    def is_active(self) -> bool:
        """Whether it is there, and does not grow."""
        return self.record is not None and self.record.state is SuperState.ACTIVE

    def look(self) -> None:
        """Take up what has changed.

        Raises:
            Broken: something is gone in which records were acknowledged.
        """
        value = self._ground.coordination.peek(super_key(SuperId(self._expected.super_id)))
        if value is None or value == self._read_of:
            return
        self._read_of, self.record = value, decode_super(value)
        streams = self._expected.streams
        for place in self.record.partitions:
            known = streams[place.index : place.index + 1]
            if known and known[0].stream_id == place.stream_id:
                continue
            # A growth that coordination was lost in may be lost with it.
            self._give_up(place.index)
            expected = self._expected
            new = Expected(
                place.name, place.stream_id, sent=expected.sent, refused=expected.refused
            )
            new.trimmed_below = 0
            new.of_super = True
            new.stored_anew = expected.sent
            streams.append(new)
            self._enter(new)
        self._give_up(len(self.record.partitions))
        self._expected.layouts = self.record.layouts

    def _give_up(self, index: int) -> None:
        for gone in self._expected.streams[index:]:
            if gone.acknowledged:
                raise Broken(f"{gone.name} is gone, with {len(gone.acknowledged)} records")
            gone.deleted = True
        del self._expected.streams[index:]
