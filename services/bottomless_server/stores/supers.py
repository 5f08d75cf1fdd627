"""Super streams in coordination: their records, their names, and their partitions' places.

bottomless:super:{super_id}        the super record
bottomless:name:{tenant}:{name}    `super:` and the id of the super stream: name_values.py
bottomless:super-names:{tenant}    index of the names of a tenant's super streams, each with NUL and
                                   its id
bottomless:supers                  index of the ids of all super streams that have a record

A partition is a stream: its record, its name and its places in the indexes are those of any other
(`streams.py`), and its record says of which super stream it is a partition. What makes a super
stream, or changes which partitions it has, writes its record and theirs in one EXEC, so after a crash
at any moment each partition's record and the super record say the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from bottomless.errors import Exists, NotFound, Unavailable
from bottomless.formats.stream_record import encode_record
from bottomless.formats.super_record import decode_super, encode_super
from bottomless.guards import guard
from bottomless.model.names import FullName, StreamId, SuperId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.coordination.base import Changes, Member, Room, Values
from bottomless_server.core.not_found import super_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.stores.name_values import super_in, value_of_super
from bottomless_server.stores.streams import (
    GENERATION_KEY,
    STREAMS_KEY,
    KeyedCalls,
    Named,
    Streams,
    freeing,
    name_key,
    names_key,
    parse_named,
    stream_key,
)

SUPERS_KEY: Final = "bottomless:supers"
_TAKEN_SHOWN_MAX: Final = 10


def super_key(super_id: SuperId) -> str:
    return f"bottomless:super:{super_id}"


def super_names_key(tenant: str) -> str:
    return f"bottomless:super-names:{tenant}"


def room_for_partitions(partitions: Sequence[StreamRecord], count_max: int) -> Room:
    """The bound of a tenant's streams, for partitions that are made together."""
    first = partitions[0]
    named = Named(first.name, first.stream_id).member()
    index = names_key(StreamState.ACTIVE, first.tenant)
    return Room(index, named, count_max, others=len(partitions) - 1)


async def super_named(coordination: KeyedCalls, name: FullName) -> SuperId | None:
    """The super stream that has a name; None if none has it."""
    return super_in(await coordination.get(name_key(name)))


class Supers:
    """The records of all super streams. Holds no state of its own."""

    def __init__(self, coordination: KeyedCalls, streams: Streams) -> None:
        self._coordination = coordination
        self._streams = streams

    async def find(self, name: FullName) -> SuperId:
        """The id of the super stream that has a name.

        Raises:
            NotFound: no super stream has this name, though a stream may.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        super_id = super_in(await self._coordination.get(name_key(name)))
        if super_id is None:
            await self._streams.check_generation()
            raise super_not_found()
        return super_id

    async def load(self, super_id: SuperId) -> SuperRecord:
        """The record of a super stream.

        Raises:
            NotFound: there is none.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        value = await self._coordination.get(super_key(super_id))
        if value is None:
            await self._streams.check_generation()
            raise super_not_found()
        return self._read(value)

    def _read(self, value: bytes) -> SuperRecord:
        record = decode_super(value, self._streams.served)
        generation = self._streams.generation
        if generation is not None and record.generation < generation:
            raise coordination_lost()
        return record

    async def names(self, tenant: str, after: bytes, limit: int) -> list[Named]:
        """Super streams of a tenant in the order of their names, those after a member of the index."""
        found = await self._coordination.members(super_names_key(tenant), after, limit)
        if not found:
            await self._streams.check_generation()
        return [parse_named(member) for member in found]

    async def create(
        self, record: SuperRecord, partitions: Sequence[StreamRecord], room: Room
    ) -> None:
        """Enter a new super stream and all its partitions under their names, or none of it.

        One EXEC that watches all names. In coordination after a crash: nothing, or all of it; no
        object is there yet, so nobody may go by these names before whoever finds them has put them.

        Raises:
            IndexFull: its tenant has no room for so many streams.
            Exists: one of the names is taken; `taken_partitions` says of which partitions. Or it was
                made already, and perhaps deleted since.
            Unavailable: `coordination-regressed`: the store was emptied, or went back.
        """
        own, key = name_key(record.full_name), super_key(record.super_id)
        names = {name_key(one.full_name): index for index, one in enumerate(partitions)}
        entered = _entered(record, partitions)

        def change(values: Values) -> tuple[Changes, None]:
            self._require_generation(values, record)
            require_free(values, own, names)
            require_never_made(values[key])
            return entered, None

        watched = [own, *names, key, GENERATION_KEY]
        await self._coordination.transact(watched, change, room=room)

    async def update(
        self, super_id: SuperId, decide: Callable[[SuperRecord], SuperRecord]
    ) -> SuperRecord:
        """Change a record under WATCH; `decide` sees it and raises to leave it as it is.

        Raises:
            NotFound: there is no such super stream.
        """
        key = super_key(super_id)

        def change(values: Values) -> tuple[Changes, SuperRecord]:
            record = decide(self._required(values[key]))
            return Changes({key: encode_super(record)}), record

        try:
            return await self._coordination.transact([key], change)
        except NotFound:
            await self._streams.check_generation()
            raise

    async def begin_growth(
        self,
        super_id: SuperId,
        decide: Callable[[SuperRecord], SuperRecord],
        partitions: Sequence[StreamRecord],
        room: Room,
        also: Changes,
    ) -> SuperRecord:
        """Let a super stream be one that grows, and enter the partitions that it is to get, with `also`.

        One EXEC that watches all new names. In coordination after a crash: nothing of it, or all; the
        super record does not name the new partitions yet, so nobody may go by their names.

        Raises:
            IndexFull: its tenant has no room for so many streams.
            Exists: one of the names is taken.
            NotFound: there is no such super stream.
        """
        key = super_key(super_id)
        names = {
            name_key(one.full_name): one.partition_of.index
            for one in partitions
            if one.partition_of
        }
        entered = _of_partitions(partitions)

        def change(values: Values) -> tuple[Changes, SuperRecord]:
            self._streams.require_generation(values[GENERATION_KEY])
            record = decide(self._required(values[key]))
            assert record.state is SuperState.GROWING
            require_free(values, None, names)
            return Changes({key: encode_super(record)}) | entered | also, record

        watched = [key, *names, GENERATION_KEY]
        return await self._coordination.transact(watched, change, room=room)

    async def follow(self, partition: StreamRecord) -> StreamRecord:
        """Give a partition the configuration that its super stream has at this moment.

        In coordination after a crash: the partition's record is as it was, or has it.

        Raises:
            NotFound: there is no such partition.
        """
        assert partition.partition_of is not None
        key = super_key(partition.partition_of.super_id)

        def decide(record: StreamRecord, values: Values) -> StreamRecord:
            value = values[key]
            config = record.config if value is None else self._read(value).config
            if record.state is not StreamState.ACTIVE or record.config == config:
                return record
            return replace(
                record,
                config=config,
                config_version=record.config_version + 1,
                registry_version=record.registry_version + 1,
            )

        return await self._streams.update_watching(partition.stream_id, (key,), decide)

    async def bury(
        self,
        super_id: SuperId,
        decide: Callable[[SuperRecord], SuperRecord],
        also: Changes,
    ) -> SuperRecord:
        """Write the tombstone of a super stream and free its name, with `also`, all in one EXEC.

        In coordination after a crash: nothing of it, or all. Its partitions are there as they were,
        under names of their own.

        Raises:
            NotFound: there is no such super stream.
        """
        key = super_key(super_id)
        # Names never change.
        full_name = (await self.load(super_id)).full_name
        own = name_key(full_name)

        def change(values: Values) -> tuple[Changes, SuperRecord]:
            record = decide(self._required(values[key]))
            assert record.state is SuperState.DELETING
            buried = Changes({key: encode_super(record)})
            if values[own] == value_of_super(super_id):
                buried |= freeing(full_name)
            return buried | also, record

        try:
            return await self._coordination.transact([key, own], change)
        except NotFound:
            await self._streams.check_generation()
            raise

    async def forget(self, record: SuperRecord) -> None:
        """Remove the record of a super stream of which nothing else is left."""
        key = super_key(record.super_id)
        named = Named(record.name, StreamId(record.super_id)).member()
        members = [
            Member(super_names_key(record.tenant), named, False),
            Member(SUPERS_KEY, record.super_id.encode("ascii"), False),
        ]
        gone = Changes({key: None}, members=members)
        await self._coordination.transact([key], lambda _: (gone, None))

    def _required(self, value: bytes | None) -> SuperRecord:
        if value is None:
            raise super_not_found()
        return self._read(value)

    def _require_generation(self, values: Values, record: SuperRecord) -> None:
        generation = self._streams.generation
        self._streams.require_generation(values[GENERATION_KEY])
        if generation is not None and record.generation != generation:
            raise Unavailable("coordination was rebuilt while the super stream was created")


@guard("the id of a super stream, never made twice")
def require_never_made(value: bytes | None) -> None:
    """Refuse to make a super stream whose id has a record: an attempt made it whose reply was lost, and
    somebody may have deleted it since. Its names are free then, and its deletion goes on.

    Raises:
        Exists: it has one.
    """
    if value is not None:
        raise Exists("the super stream was made, and perhaps deleted since")


def require_free(values: Values, own: str | None, partitions: Mapping[str, int]) -> None:
    """Refuse names of which one is taken, by the keys that the EXEC watches: that of the super
    stream, and those of partitions with their indexes.

    Raises:
        Exists: `taken_partitions` has the first of those whose names are taken.
    """
    if own is not None and values[own] is not None:
        raise Exists("a stream or a super stream of this name exists")
    taken = [index for key, index in partitions.items() if values[key] is not None]
    if taken:
        raise Exists(
            "another stream has the name of a partition; partitions are called after their super"
            " stream, with their indexes",
            facts={"taken_partitions": taken[:_TAKEN_SHOWN_MAX]},
        )


def _entered(record: SuperRecord, partitions: Sequence[StreamRecord]) -> Changes:
    """A super record under its name, and the partitions that are new in it under theirs."""
    values: dict[str, bytes | None] = {
        super_key(record.super_id): encode_super(record),
        name_key(record.full_name): value_of_super(record.super_id),
    }
    named = Named(record.name, StreamId(record.super_id)).member()
    members = [
        Member(super_names_key(record.tenant), named, True),
        Member(SUPERS_KEY, record.super_id.encode("ascii"), True),
    ]
    return Changes(values, members=members) | _of_partitions(partitions)


def _of_partitions(partitions: Sequence[StreamRecord]) -> Changes:
    """New partitions under their names, with their places in the indexes."""
    values: dict[str, bytes | None] = {}
    members: list[Member] = []
    for one in partitions:
        mine = one.stream_id.encode("ascii")
        values[name_key(one.full_name)] = mine
        values[stream_key(one.stream_id)] = encode_record(one)
        index = names_key(StreamState.ACTIVE, one.tenant)
        members.append(Member(index, Named(one.name, one.stream_id).member(), True))
        members.append(Member(STREAMS_KEY, mine, True))
    return Changes(values, members=members)
