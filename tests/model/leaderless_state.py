"""A state of the search over leaderless streams: coordination, bucket, processes, and what was given.

All of it is a value, so a state that was seen is known again. Coordination and bucket hold the real
bytes, which the product's own code wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bottomless.formats.keys import wal_key
from bottomless.formats.stream_record import encode_record
from bottomless.model.names import Uid
from bottomless.model.stream import EpochStart
from bottomless.model.wal import Note
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.leaderless.instance import WalInstance, encode_instance
from bottomless_server.leaderless.tail import UNSEEN, SeenTail, Tail, first_epoch
from bottomless_server.leaderless.tail_changes import Accepted, Refusal, tail_of
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores.streams import GENERATION_KEY, stream_key
from bottomless_server.stores.tail_keys import tail_index_key, tail_key
from bottomless_server.stores.wal import INSTANCES_KEY, held_key, instance_key, live_key
from model.leaderless import GENERATION, a_stream
from model.stepping import Task

STREAMS: Final = (a_stream(0), a_stream(1))
IDS: Final = tuple(record.stream_id for record in STREAMS)
RECORD_COUNT: Final = 2
"""Records of each piece."""
_RUNS: Final = 2


def instance_of(writer: int, run: int) -> Uid:
    """The instance as which a writer writes, after so many others."""
    return Uid(f"{16 * writer + run + 1:032x}")


INSTANCES: Final = tuple(instance_of(writer, run) for writer in range(2) for run in range(_RUNS))
_INDEXES: Final = frozenset(
    [INSTANCES_KEY, *map(tail_index_key, IDS), *(held_key(one) for one in INSTANCES)]
)
_KEYS: Final = (
    GENERATION_KEY,
    *(key(one) for one in IDS for key in (stream_key, tail_key)),
    *(key(one) for one in INSTANCES for key in (instance_key, live_key)),
    *sorted(_INDEXES),
)
_PLACES: Final = {redis_key: place for place, redis_key in enumerate(_KEYS)}

Slots = tuple[Any, ...]
"""What coordination holds under each key: bytes, or None, or of an index its members in order."""

EMPTY: Final[Slots] = tuple(() if key in _INDEXES else None for key in _KEYS)


class Flush(NamedTuple):
    """Appends that go into one object: one for each of its streams."""

    number: int
    groups: tuple[tuple[int, ...], ...]
    """The streams of each EXEC that is left to do."""

    @property
    def streams(self) -> tuple[int, ...]:
        return tuple(stream for group in self.groups for stream in group)


class Object(NamedTuple):
    """A WAL object in the bucket, or on its way there."""

    instance: Uid
    sequence: int
    writer: int
    flush: int
    """The number of its flush; of an object with notes alone one that no flush has."""
    streams: tuple[int, ...]
    data: bytes

    @property
    def key(self) -> str:
        return wal_key(self.instance, self.sequence)


class Sealed(NamedTuple):
    """A flush that is in an object, with something left to decide."""

    sequence: int
    flush: Flush
    places: tuple[tuple[int, Accepted], ...]
    """Where the piece of each of its streams lies."""


class Told(NamedTuple):
    """What a commit says of one stream."""

    stream: int
    refusal: Refusal | None
    tail: Tail | None
    notes: tuple[Note, ...]
    offset: int


class Given(NamedTuple):
    """An append that has its offsets."""

    stream: int
    offset: int
    writer: int
    flush: int


class Late(NamedTuple):
    """An EXEC on its way whose sender has given up; it is gone once what it watched is written."""

    watched: frozenset[str]
    values: tuple[tuple[str, bytes | None], ...]
    members: tuple[Any, ...]

    @property
    def changes(self) -> Changes:
        return Changes(dict(self.values), members=self.members)


class Writer(NamedTuple):
    """A process that writes, as far as it has come."""

    number: int
    todo: tuple[Flush, ...]
    run: int = 0
    stopped: bool = False
    """Whether it commits nothing more: it has heard of the loss, or may begin no other instance."""
    lapsed: bool = False
    attempt: int = 0
    lost: int | None = None
    lost_from: int = 0
    used: int = 0
    lost_commit: tuple[Told, ...] = ()
    """What the commit would have said whose reply was lost."""
    sequence: int = 0
    sealed: tuple[Sealed, ...] = ()
    notes: tuple[tuple[Any, ...], ...] = ()
    """What its `Notes` were told so far."""
    note_objects: int = 0
    seen: tuple[SeenTail, ...] = (UNSEEN, UNSEEN)

    @property
    def instance(self) -> Uid:
        return instance_of(self.number, self.run)


class State(NamedTuple):
    slots: Slots
    objects: frozenset[Object]
    flying: frozenset[Object]
    """Objects that are being put."""
    writers: tuple[Writer, ...]
    tasks: tuple[Task, ...] = ()
    late: frozenset[Late] = frozenset()
    given: frozenset[Given] = frozenset()
    noted: frozenset[tuple[int, int]] = frozenset()
    """Stream and offset of what was noted in an object that was durable, or found so by a repeat."""
    roots: tuple[int, ...] = (0, 0)
    """Where the manifest of each stream ends, in the bucket."""
    troubles: int = 0
    """How many EXECs may still be late, or lose their replies."""
    lapses: int = 0
    fences: int = 0
    generation: int = GENERATION
    """0 from the loss of coordination to the end of the rebuild."""
    may_lose: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether coordination was never lost."""
        return self.generation == GENERATION

    def held(self, redis_key: str) -> Any:
        return self.slots[_PLACES[redis_key]]

    def with_writer(self, writer: Writer) -> "State":
        writers = tuple(writer if one.number == writer.number else one for one in self.writers)
        return self._replace(writers=writers)

    def written(self, changes: Changes) -> "State":
        """After an EXEC, without a look at what it gave; who watched what it writes is broken."""
        slots, touched = list(self.slots), set(changes.values)
        for redis_key, value in changes.values.items():
            slots[_PLACES[redis_key]] = value
        for redis_key, member, present in changes.members:
            place, before = _PLACES[redis_key], self.held(redis_key)
            if present is not (member in before):
                touched.add(redis_key)
            after = {*slots[place], member} if present else {*slots[place]} - {member}
            slots[place] = tuple(sorted(after))
        assert not changes.queued
        late = self.late
        if late:
            late = frozenset(one for one in late if not one.watched & touched)
        return self._replace(slots=tuple(slots), late=late)

    def emptied(self) -> "State":
        """After the loss of coordination: all that watches is broken, since it watches the
        generation."""
        return self._replace(slots=EMPTY, late=frozenset(), generation=0, may_lose=False)


Step = tuple[str, State]
"""What somebody does, and the state after it."""


class Story(NamedTuple):
    """The bounds of a search: what there is, and how much may go wrong."""

    plans: tuple[tuple[Flush, ...], ...]
    """The flushes of each writer."""
    tasks: tuple[Task, ...] = ()
    """What vacuum, uploader and manifest do, again and again."""
    task_count: int = 1
    """How many of them stand between two of their calls at a time."""
    runs: int = 2
    """Instances that a writer may have."""
    troubles: int = 0
    lapses: int = 0
    fences: int = 0
    loses: bool = False
    """Whether coordination may be lost, once."""
    publishes: bool = True
    puts_overlap: bool = False
    """Whether a put takes time, and the next one begins meanwhile."""
    note_objects: int = 0
    """Objects with notes alone that a writer may put."""
    notes_of_object: int = 8
    """Notes that fit into one object."""
    sync: bool = False
    repeats: bool = False
    """Whether another node answers repeats of what is stored, once it finds that noted."""
    unwatched: str = ""
    """Keys that begin so are read and not watched: a fault that the search has to find."""


def first_slots() -> Slots:
    """What coordination holds before anybody writes: two streams."""
    state = State(EMPTY, frozenset(), frozenset(), ())
    return state.written(made(STREAMS, GENERATION)).slots


def made(records: Any, generation: int) -> Changes:
    """Records and tails of streams, in a generation."""
    value = f'{{"generation":{generation},"bucket":true}}'.encode()
    values: dict[str, bytes | None] = {GENERATION_KEY: value}
    for record in records:
        values[stream_key(record.stream_id)] = encode_record(record)
        values[tail_key(record.stream_id)] = encode_tail(tail_of(record, 0))
    return Changes(values)


def rebuilt(ends: Sequence[int], instances: Mapping[Uid, range]) -> Slots:
    """What coordination holds after a rebuild: streams that go on there, and settled instances."""
    epoch = first_epoch(GENERATION + 1)
    records = [
        replace(
            record,
            generation=GENERATION + 1,
            epoch=epoch,
            epochs=(*record.epochs, EpochStart(epoch, end)),
            published_next=end,
        )
        for record, end in zip(STREAMS, ends, strict=True)
    ]
    changes = made(records, GENERATION + 1)
    for instance, found in instances.items():
        settled = WalInstance(None, GENERATION + 1, found.stop, found.stop, found.start)
        entered = Member(INSTANCES_KEY, instance.encode(), True)
        changes |= Changes({instance_key(instance): encode_instance(settled)}, members=[entered])
    return State(EMPTY, frozenset(), frozenset(), ()).written(changes).slots
