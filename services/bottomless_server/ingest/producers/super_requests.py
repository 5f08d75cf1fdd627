"""Requests of a producer to a super stream: what stores each of them once, over many partitions.

A request is numbered as a whole, from its first record to its last, and its records go to several
partitions. What each partition remembers alone cannot tell a record that is stored from one that a
request left out when it was cut off, so two logs decide together:

    super:{producer}           in the coordinating partition: which requests are whole, and by which
                               layout each was divided. Its numbers are those of a STRICT producer
    part.{layout}:{producer}   in each partition: which requests have their part there. The number
                               of an append is that of the request's last record (TRANSACTION), its
                               body's checksum that of the whole request

No name that a request may give has a colon. The steps are these, and after a crash that follows any
of them the request comes again as it was:

1. `decide_begin` at the coordinating partition: only the request that follows the last whole one
   goes on, so nothing with a later number is stored before step 3.
2. `decide_part` at each partition, side by side. Some may have their parts from an earlier try. A
   number at or above the request's first one is then of the same request, or the request was cut
   anew: its records may be stored under the other cut, so it is refused.
3. `entries_of_whole` at the coordinating partition: the request is whole, and can be answered.

A new run of a producer begins with a higher epoch, which is raised in the order of `raises`: when
the coordinating partition says of an older run that its last number is this, no partition takes
another part of that run. Each growth of the super stream gives it another layout, by which the same
records go elsewhere: `layout_of` finds the layout by which a request was begun.

On the record's path: beside it, for super streams alone; asked by local/waiting.py of each part, and
by super_steps.py of the other steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple

from bottomless.errors import Code
from bottomless.guards import guard
from bottomless.model.chunk import AppendMode, TrackedEntry
from bottomless.model.routing import hash_keys, keys_of
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.core.super_growing import super_growing
from bottomless_server.core.tracking.known_producers import Producer, Remembered, tracked
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.places import Places, check_place
from bottomless_server.ingest.producers.producers import (
    Appended,
    New,
    check_known,
    conflict,
    decide,
    known_of,
    repeat_of,
)
from bottomless_server.ingest.records.conditions import Conditions, FromProducer, PartOf
from bottomless_server.ingest.records.intake import Append

_COLON: Final = ":"
"""No name that a request may give has one."""
NO_LAYOUT: Final = 0
"""No layout has this number: it is not known by which one a request was divided."""


class Request(NamedTuple):
    """One request of a producer to a super stream."""

    producer_id: str
    epoch: int
    first: int
    """The number of its first record."""
    last: int
    """The number of its last record."""
    body_crc: int
    start_any: bool = False
    """An unknown producer may begin with any number."""

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return self.last - self.first + 1


class Begun(Enum):
    """What is to be done with a request, by what the coordinating partition knows."""

    GO_ON = auto()
    """Its parts are to be appended, those that are not stored yet."""
    WHOLE = auto()
    """All of it is stored: it is answered by what the partitions remember, and nothing is
    appended."""
    RAISE = auto()
    """Its epoch is higher than what is known, and has to be raised before it begins."""


class Raise(NamedTuple):
    """One step of raising an epoch."""

    partition: int
    coordinates: bool
    """Whether it is the name of whole requests that is raised there, or those of parts."""


def whole_name(producer_id: str) -> str:
    """The name under which the coordinating partition knows which requests are whole."""
    return f"super{_COLON}{producer_id}"


def part_name(layout: int, producer_id: str) -> str:
    """The name under which a partition knows which requests have their part there."""
    return f"part.{layout}{_COLON}{producer_id}"


def is_of_requests(name: str) -> bool:
    """Whether a name is one that requests to super streams are known by, and no producer's own."""
    return _COLON in name


def coordinating_partition(producer_id: str, initial_count: int) -> int:
    """Find the partition that coordinates the requests of a producer; growth never changes it."""
    [number] = hash_keys(keys_of([producer_id.encode("ascii")])).tolist()
    return int(number) % initial_count


@guard("the look at the coordinating partition before a part is appended")
def decide_begin(tracking: Tracking, request: Request) -> Begun:
    """What becomes of a request, by what the coordinating partition knows: step 1.

    Raises:
        StoreError: it is refused, as an append of a STRICT producer would be.
    """
    return _state_of(tracking, request)


@guard("a place for a request before its parts are stored")
def require_place(tracking: Tracking, request: Request) -> None:
    """Refuse to begin a request which could not be noted as whole: the stream remembers as many other
    producers as it may.

    The place is not kept. Where others take it while the parts are stored, the answer says that all of
    them are (outcome committed), and the same request again ends it when there is room.

    Raises:
        Overloaded: `quota-exceeded`.
    """
    identity = FromProducer(whole_name(request.producer_id), request.epoch, AppendMode.STRICT)
    check_place(tracking, identity, Places(tracking))


def _state_of(tracking: Tracking, request: Request) -> Begun:
    known = tracking.producers.get(whole_name(request.producer_id))
    # Parts of an older run may be stored where no request of it was ever whole.
    if request.epoch > (0 if known is None else known.epoch):
        return Begun.RAISE
    verdict = known_of(tracking, _as_append(request), NO_LAYOUT)
    return Begun.GO_ON if isinstance(verdict, New) else Begun.WHOLE


def _as_append(request: Request) -> Append:
    """A request as an append of the producer under whose name whole requests are known."""
    identity = FromProducer(
        whole_name(request.producer_id),
        request.epoch,
        AppendMode.STRICT,
        request.first,
        request.start_any,
    )
    conditions = Conditions(identity=identity)
    return Append(request.record_count, 0, request.body_crc, conditions=conditions)


def decide_waiting(
    tracking: Tracking, append: Append, next_offset: int, places: Places, layout: int
) -> New | Appended:
    """What becomes of any append that waits, a part of a request or not; `layout` is the oldest one
    of which the partition takes parts.

    Raises:
        StoreError: it is refused; nothing is stored of it.
    """
    part_of = append.conditions.part_of
    if part_of is None:
        return decide(tracking, append, next_offset, places)
    require_layout(part_of, layout)
    request, identity = request_of_part(append), append.conditions.identity
    if request is None or identity is None:
        return New()
    verdict = decide_part(tracking, request, part_of.layout, append)
    if isinstance(verdict, New):
        check_place(tracking, identity, places)
    return verdict


@guard("the layout of a part at its partition")
def require_layout(part_of: PartOf, layout: int) -> None:
    """Refuse a part that was divided by an older layout than the partition has been told of, unless
    its request is known to have begun by that one.

    Raises:
        Unavailable: `super-stream-growing`; outcome none.
    """
    if part_of.layout < layout and not part_of.resumed:
        raise super_growing()


@guard("the layout that a partition is opened with")
def oldest_layout(record: SuperRecord) -> int:
    """The oldest layout of which a partition takes parts whose owner has just claimed it."""
    newest = record.layouts[-1].version
    # Who makes it grow has told the owner of before, and does not know this one.
    return newest + 1 if record.state is SuperState.GROWING else newest


def conditions_of_part(request: Request | None, layout: int, *, resumed: bool) -> Conditions:
    """The conditions of a part, which of a request with numbers name it and its own number."""
    if request is None:
        return Conditions(part_of=PartOf(layout, resumed))
    name = part_name(layout, request.producer_id)
    identity = FromProducer(name, request.epoch, AppendMode.TRANSACTION, request.last)
    return Conditions(identity, part_of=PartOf(layout, resumed, request.first))


def request_of_part(append: Append) -> Request | None:
    """The request that an append is a part of; None where that has no numbers."""
    identity, part_of = append.conditions.identity, append.conditions.part_of
    if part_of is None or not isinstance(identity, FromProducer):
        return None
    producer_id = identity.producer_id.partition(_COLON)[2]
    return Request(producer_id, identity.epoch, part_of.first, identity.number, append.body_crc)


@guard("the first number and the body of a part")
def decide_part(tracking: Tracking, request: Request, layout: int, part: Append) -> New | Appended:
    """What becomes of the part of a request at its partition: step 2.

    Raises:
        WrongOffset: `producer-fenced`; `producer-sequence-overlap` where another request has left a
            part that may have some of these records.
    """
    name = part_name(layout, request.producer_id)
    known = tracking.producers.get(name)
    if known is None:
        return New()
    check_known(known, FromProducer(name, request.epoch, AppendMode.TRANSACTION, request.last))
    if known.last_sequence is None or known.last_sequence < request.first:
        return New()
    original = remembered_part(known, request)
    if original is not None:
        return repeat_of(original, part)
    raise conflict(
        Code.PRODUCER_SEQUENCE_OVERLAP,
        "a request of this producer was cut off and has to be sent again as it was, before any"
        " other; or continue after last_seq under a higher epoch",
        last_seq=known.last_sequence,
    )


def remembered_part(known: Producer, request: Request) -> Remembered | None:
    """The part of a request, if it is remembered by what its partition knows of the parts."""
    wanted = (request.last, request.body_crc, request.epoch)
    for found in known.appends:
        if (found.sequence, found.body_crc, found.epoch) == wanted:
            return found
    return None


@guard("the layout of the request before, as it is remembered")
def layout_before(tracking: Tracking, request: Request) -> int:
    """Tell by which layout the request was divided that this one follows; `NO_LAYOUT` where the last
    whole one is another, or of an older run.

    Where it is the newest one, so is that of this request: it was never begun before that one was
    whole. No clock is asked.
    """
    known = tracking.producers.get(whole_name(request.producer_id))
    last = known.appends[-1] if known is not None and known.appends else None
    if last is None or last.epoch != request.epoch:
        return NO_LAYOUT
    return last.first_offset if last.sequence + last.record_count == request.first else NO_LAYOUT


def entries_of_whole(
    tracking: Tracking,
    request: Request,
    now: int,
    places: Places | None = None,
    layout: int = NO_LAYOUT,
) -> list[TrackedEntry]:
    """Entries by which the coordinating partition knows that a request is whole: step 3. `layout` is
    the one by which it was divided; it stands where the offset of an append stands, which a request
    that is in several partitions does not have.

    There are none where it is known already, by another try of the same request.

    Raises:
        Overloaded: `quota-exceeded`.
        StoreError: another request, or a newer run of the producer, was faster.
    """
    begun = _state_of(tracking, request)
    if begun is Begun.WHOLE:
        return []
    name = whole_name(request.producer_id)
    known = tracking.producers.get(name)
    if begun is Begun.RAISE:
        raise conflict(
            Code.PRODUCER_UNKNOWN,
            "the epoch of this request is not known any more; send it again",
        )
    if known is None:
        identity = FromProducer(name, request.epoch, AppendMode.STRICT)
        check_place(tracking, identity, places or Places(tracking))
        known = Producer(AppendMode.PLAIN, request.epoch, None, request.first, now)
    whole = Remembered(
        request.first, request.record_count, request.body_crc, request.epoch, layout, now
    )
    begins = known.last_sequence is None
    after = replace(
        known,
        mode=AppendMode.STRICT,
        last_sequence=request.last,
        epoch_sequence=request.first if begins else known.epoch_sequence,
        timestamp=now,
        appends=(*known.appends, whole)[-tracking.bounds.append_count_max :],
    )
    return list(tracked(name, after))


@guard("the epoch of a producer, raised in all partitions first")
def raises(partition_count: int, coordinating: int) -> list[Raise]:
    """The steps by which an epoch is raised, in the order in which they have to be done.

    Those of parts come first, side by side, and each tells the highest number that it found. The
    last one, of the coordinating partition, is done with the highest of all.
    """
    parts = [Raise(partition, coordinates=False) for partition in range(partition_count)]
    return [*parts, Raise(coordinating, coordinates=True)]


def highest_part(tracking: Tracking, producer_id: str, layouts: Iterable[int]) -> int | None:
    """The highest number of a part that a partition knows of a producer, over all its layouts."""
    found = [tracking.producers.get(part_name(layout, producer_id)) for layout in layouts]
    numbers = [one.last_sequence for one in found if one is not None]
    return max((number for number in numbers if number is not None), default=None)


def highest_epoch(tracking: Tracking, producer_id: str, layouts: Iterable[int]) -> int:
    """The highest epoch of a producer that its coordinating partition knows; 0 where it knows none."""
    names = [whole_name(producer_id), *(part_name(layout, producer_id) for layout in layouts)]
    found = [tracking.producers.get(name) for name in names]
    return max((one.epoch for one in found if one is not None), default=0)


@guard("an epoch that no other run of the producer has")
def require_free_epoch(highest: int, epoch: int) -> None:
    """Refuse an epoch that another run may have taken, by the highest one that is known.

    Raises:
        WrongOffset: `producer-fenced`; `current_epoch` is the highest.
    """
    if epoch <= highest:
        raise conflict(
            Code.PRODUCER_FENCED,
            "another run of this producer begins at this moment",
            current_epoch=highest,
        )


def entries_of_raise(
    tracking: Tracking,
    name: str,
    epoch: int,
    now: int,
    highest: int | None = None,
    places: Places | None = None,
) -> list[TrackedEntry]:
    """Entries that raise the epoch of one name; none where it is that epoch already.

    `highest` is the highest number of all parts, for the name of whole requests: the next request
    begins after it.

    Raises:
        WrongOffset: `producer-fenced`: it is higher already.
        Overloaded: `quota-exceeded`.
    """
    known = tracking.producers.get(name)
    if known is None:
        identity = FromProducer(name, epoch, AppendMode.PLAIN)
        places = places or Places(tracking)
        check_place(tracking, identity, places)
        # One change may bring several names.
        places.take(identity)
        known = Producer(AppendMode.PLAIN, 0, None, 0, now)
    check_known(known, FromProducer(name, epoch, known.mode))
    if known.epoch == epoch:
        return []
    numbers = [number for number in (known.last_sequence, highest) if number is not None]
    last = max(numbers, default=None)
    raised = replace(
        known,
        # A number that is known is one of a mode.
        mode=AppendMode.STRICT if highest is not None else known.mode,
        epoch=epoch,
        last_sequence=last,
        epoch_sequence=0 if last is None else last + 1,
        timestamp=now,
    )
    return list(tracked(name, raised))


@guard("the layout by which a request was begun")
def layout_of(request: Request, highest: Mapping[int, int | None], newest: int) -> int:
    """Find the layout by which a request goes: the one by which it was begun, or the newest.

    `highest` has the highest number of a part that any partition knows, by older layouts.
    """
    begun = [
        layout
        for layout, number in highest.items()
        if number is not None and number >= request.first
    ]
    return min(begun, default=newest)
