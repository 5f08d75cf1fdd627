"""Stream records in coordination: found by name, read, created, changed under WATCH.

bottomless:generation              the generation that the bucket must show too
bottomless:name:{tenant}:{name}    stream id, or that of a super stream: name_values.py
bottomless:freed                   another one with each name that is freed: freed_names.py
bottomless:stream:{stream_id}      the stream record
bottomless:node:{node_id}          lease of one ingest data directory
bottomless:nodes                   where ingest nodes are: ingest_nodes.py
bottomless:node-facts:{node_id}    what a node says of itself beside that: node_facts.py
bottomless:producers:{stream_id}   what the last owner knew of producers when it left
bottomless:deletes                 object keys, by the time from which they may go
bottomless:deletes-failing         those of them that failed, by the time when they first did
bottomless:deletes:{number}        the same two of each other drive than the first
bottomless:deletes-failing:{number}
bottomless:going:{stream_id}       fragments whose deletion may be under way: going.py

Indexes, each changed in the transaction that changes what it speaks of:

bottomless:names:{tenant}          names of active streams, each with NUL and its stream id
bottomless:deleting:{tenant}       the same of those that are being deleted
bottomless:streams                 ids of all streams that have a record

A stream that is not found where the generation is not found either was not deleted: the
store was emptied. Who knows the generation therefore says so, instead of 404.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

import orjson
from cachetools import LRUCache

from bottomless.errors import Corrupt, Exists, NotFound, Unavailable
from bottomless.formats.stream_record import SERVED, decode_record, encode_record
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import (
    FullName,
    NodeId,
    StreamId,
    StreamName,
)
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Decide, Due, Member, Room, Values
from bottomless_server.core.not_found import only_a_super_stream, stream_not_found
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.stores.config_mark import CONFIGS_KEY, new_config_mark
from bottomless_server.stores.going import going_key
from bottomless_server.stores.name_values import holder_in, stream_in

T = TypeVar("T")

GENERATION_KEY: Final = "bottomless:generation"
FREED_KEY: Final = "bottomless:freed"
DELETES_KEY: Final = "bottomless:deletes"
FAILING_DELETES_KEY: Final = "bottomless:deletes-failing"
STREAMS_KEY: Final = "bottomless:streams"


def stream_key(stream_id: StreamId) -> str:
    return f"bottomless:stream:{stream_id}"


def producers_key(stream_id: StreamId) -> str:
    """Written whenever a stream becomes clean, and good until its next owner has written."""
    return f"bottomless:producers:{stream_id}"


def name_key(name: FullName) -> str:
    # Neither part can hold a colon, so no two names share a key.
    return f"bottomless:name:{name.tenant}:{name.name}"


def names_key(state: StreamState, tenant: str) -> str:
    """The index of the names of all streams of a tenant that are in this state."""
    return f"bottomless:{_INDEXES[state]}:{tenant}"


_MARK_SIZE: Final = 16


def freeing(name: FullName) -> Changes:
    """Take a name from its stream, and show everybody who remembers names that one was freed."""
    mark = secrets.token_hex(_MARK_SIZE).encode("ascii")
    return Changes({name_key(name): None, FREED_KEY: mark})


_INDEXES: Final = {StreamState.ACTIVE: "names", StreamState.DELETING: "deleting"}


class Named(NamedTuple):
    """One entry of an index of names."""

    name: StreamName
    stream_id: StreamId

    def member(self) -> bytes:
        # NUL is in no name and sorts before all that are, so the index is in order of names.
        return f"{self.name}\0{self.stream_id}".encode("ascii")


def room_for(record: StreamRecord, count_max: int) -> Room:
    """The bound of a tenant's streams, for one that is being created."""
    named = Named(record.name, record.stream_id).member()
    return Room(names_key(StreamState.ACTIVE, record.tenant), named, count_max)


def parse_named(member: bytes) -> Named:
    name, _, stream_id = member.decode("ascii").partition("\0")
    return Named(StreamName(name), StreamId(stream_id))


def node_key(node_id: NodeId) -> str:
    return f"bottomless:node:{node_id}"


def deletes_key(drive: int) -> str:
    """The delete queue of a drive."""
    return DELETES_KEY if drive == DEFAULT_NUMBER else f"{DELETES_KEY}:{drive}"


def failing_deletes_key(drive: int) -> str:
    """Members of the delete queue of a drive that failed, by the time when they first did."""
    return FAILING_DELETES_KEY if drive == DEFAULT_NUMBER else f"{FAILING_DELETES_KEY}:{drive}"


def delete_later(object_key: str, due_at: int, drive: int = DEFAULT_NUMBER) -> Due:
    """An entry of a delete queue, to be written in the transaction that makes the object unreachable."""
    return Due(deletes_key(drive), object_key.encode("ascii"), due_at)


NOTHING: Final = Changes()
_KNOWN_COUNT_MAX: Final = 4_096
"""Streams that are remembered by their names, some 3 KB each."""


class KeyedCalls(Protocol):
    """What `Streams` needs of coordination; each call promises what `Coordination` says of it."""

    async def get(self, redis_key: str) -> bytes | None: ...

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]: ...

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]: ...

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T: ...


class Loaded(NamedTuple):
    """The records of several streams."""

    records: list[StreamRecord]
    unreadable: dict[StreamId, Corrupt]
    """Streams that are there, and whose record this release cannot read."""


class _Known(NamedTuple):
    """A record, and the bytes that say it."""

    value: bytes
    record: StreamRecord


class Streams:
    """The records of all streams. What it remembers saves a question and a look at bytes, and is never
    given out without asking whether it is so still."""

    def __init__(self, coordination: KeyedCalls, served: AbstractSet[str] = SERVED) -> None:
        self._coordination = coordination
        self.served = served
        """Features of records that are given out; a record with another is one that cannot be read."""
        self.generation: int | None = None
        """The generation that coordination has to show; None where nobody has found out."""
        self._known: LRUCache[FullName, _Known] = LRUCache(_KNOWN_COUNT_MAX)
        """What was there under a name when it was asked for last; `find_record` asks what is."""

    async def find(self, name: FullName) -> StreamId:
        """The id of the stream that has a name.

        Raises:
            NotFound: no stream has this name; it says so if a super stream has.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        holder = holder_in(await self._coordination.get(name_key(name)))
        if holder.stream_id is None:
            await self.check_generation()
            raise only_a_super_stream(holder.super_id) if holder.super_id else stream_not_found()
        return holder.stream_id

    async def find_record(self, name: FullName) -> StreamRecord:
        """The record of the stream that has a name; by one question, where the name was asked for before.

        Raises:
            NotFound: no stream has this name, or its record is gone.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        known = self._known.get(name)
        stream_id = await self.find(name) if known is None else known.record.stream_id
        # Both are of one moment: the name is that of the stream still, and this is its record.
        asked = [name_key(name), stream_key(stream_id)]
        named, value = await self._coordination.get_many(asked)
        if value is None or stream_in(named) != stream_id:
            self._known.pop(name, None)
            return await self.load(await self.find(name))
        if known is None or known.value != value:
            known = self._known[name] = _Known(value, decode_record(value, self.served))
        return self.believed(known.record)

    async def find_many(self, names: Sequence[FullName]) -> dict[FullName, StreamId]:
        """The ids of the streams that have these names; names of no stream are left out."""
        values = await self._coordination.get_many([name_key(name) for name in names])
        return {
            name: stream_id
            for name, value in zip(names, values, strict=True)
            if (stream_id := stream_in(value)) is not None
        }

    async def load(self, stream_id: StreamId) -> StreamRecord:
        """The record of a stream.

        Raises:
            NotFound: there is none.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        value = await self._coordination.get(stream_key(stream_id))
        if value is None:
            await self.check_generation()
            raise stream_not_found()
        return self._read(value)

    def _read(self, value: bytes) -> StreamRecord:
        return self.believed(decode_record(value, self.served))

    @guard("the generation of each record")
    def believed(self, record: StreamRecord) -> StreamRecord:
        """Refuse a record of before the last rebuild: the store went back, and was not noticed yet."""
        if self.generation is not None and record.generation < self.generation:
            raise coordination_lost()
        return record

    async def load_many(self, stream_ids: Sequence[StreamId]) -> "Loaded":
        """The records of streams, without those that are gone.

        One that cannot be read (a later release wrote it, or it is damaged) is told beside the
        others and does not end the question for them.
        """
        values = await self._coordination.get_many([stream_key(one) for one in stream_ids])
        loaded = Loaded([], {})
        for stream_id, value in zip(stream_ids, values, strict=True):
            if value is None:
                continue
            try:
                loaded.records.append(self._read(value))
            except Corrupt as error:
                loaded.unreadable[stream_id] = error
            except Unavailable:
                loaded.unreadable[stream_id] = Corrupt("the record is from before a rebuild")
        return loaded

    async def config_mark(self) -> bytes | None:
        """Read the mark of configurations; None as long as none was changed."""
        return await self._coordination.get(CONFIGS_KEY)

    async def names(self, tenant: str, state: StreamState, after: bytes, limit: int) -> list[Named]:
        """Streams of a tenant in the order of their names, those after a member of the index."""
        found = await self._coordination.members(names_key(state, tenant), after, limit)
        if not found:
            await self.check_generation()
        return [parse_named(member) for member in found]

    async def create(
        self, record: StreamRecord, room: Room | None = None, also: Changes = NOTHING
    ) -> None:
        """Enter a new stream under its name, with its place in the indexes and `also`, or none of
        it.

        Raises:
            IndexFull: its tenant has as many streams as `room` says.
            Exists: the name is taken.
            Unavailable: `coordination-regressed`: the store was emptied, or went back.
        """
        keys = (name_key(record.full_name), stream_key(record.stream_id))
        named = Named(record.name, record.stream_id).member()
        entered = Changes(
            {keys[0]: record.stream_id.encode("ascii"), keys[1]: encode_record(record)},
            members=[
                Member(names_key(StreamState.ACTIVE, record.tenant), named, True),
                Member(STREAMS_KEY, record.stream_id.encode("ascii"), True),
            ],
        )

        def change(values: Values) -> tuple[Changes, None]:
            self.require_generation(values[GENERATION_KEY])
            if self.generation is not None and record.generation != self.generation:
                raise Unavailable("coordination was rebuilt while the stream was created")
            if any(values[key] is not None for key in keys):
                raise Exists("a stream of this name exists")
            return entered | also, None

        await self._coordination.transact([*keys, GENERATION_KEY], change, room=room)

    async def bury(
        self,
        stream_id: StreamId,
        name: FullName,
        decide: Callable[[StreamRecord], StreamRecord],
        also: Changes,
        *,
        watched: Sequence[str] = (),
        require: Callable[[Values], Changes | None] | None = None,
    ) -> StreamRecord:
        """Write a stream's tombstone and free its name, with `also` in the same transaction.

        `require` looks at these keys too that are `watched`; it raises to leave all as it is, and
        may say what else is to be written.

        Raises:
            NotFound: there is no such stream.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        key = stream_key(stream_id)

        def change(values: Values) -> tuple[Changes, StreamRecord]:
            required = None if require is None else require(values)
            value = values[key]
            if value is None:
                raise stream_not_found()
            record = decide(self._read(value))
            assert record.state is StreamState.DELETING
            assert record.tenant == name.tenant
            own_name = name_key(name)
            named = Named(name.name, stream_id).member()
            buried = Changes({key: encode_record(record)})
            if values[own_name] == stream_id.encode("ascii"):
                buried |= freeing(name)
            members = [
                Member(names_key(StreamState.ACTIVE, record.tenant), named, False),
                Member(names_key(StreamState.DELETING, record.tenant), named, True),
            ]
            return buried | Changes(members=members) | also | (required or NOTHING), record

        try:
            return await self._coordination.transact([key, name_key(name), *watched], change)
        except NotFound:
            # Nothing is where the generation is not.
            await self.check_generation()
            raise

    async def forget(self, record: StreamRecord) -> None:
        """Remove the record of a stream of which nothing else is left."""
        key = stream_key(record.stream_id)
        named = Named(record.name, record.stream_id).member()
        values: dict[str, bytes | None] = {key: None, producers_key(record.stream_id): None}
        if record.drives:
            values[going_key(record.stream_id)] = None
        gone = Changes(
            values,
            (),
            [
                Member(names_key(StreamState.DELETING, record.tenant), named, False),
                Member(STREAMS_KEY, record.stream_id.encode("ascii"), False),
            ],
        )
        await self._coordination.transact([key], lambda _: (gone, None))

    async def update(
        self,
        stream_id: StreamId,
        decide: Callable[[StreamRecord], StreamRecord],
        queued: Sequence[Due] = (),
    ) -> StreamRecord:
        """Change a record under WATCH; `decide` sees it and raises to leave it as it is.

        `decide` is called again with the newer record when others were faster, so conditions
        on version and epoch belong into it. `queued` is written in the same transaction.

        Raises:
            NotFound: there is no such stream.
        """
        return await self._update(stream_id, (), lambda record, _: decide(record), queued)

    async def leave(
        self,
        stream_id: StreamId,
        decide: Callable[[StreamRecord], StreamRecord],
        producers: bytes | None,
    ) -> StreamRecord:
        """Update a record, and in the same transaction write down what is known of producers.

        Raises:
            NotFound: there is no such stream.
        """
        also = {producers_key(stream_id): producers}
        return await self._update(stream_id, (), lambda record, _: decide(record), (), also)

    async def update_unless_held(
        self,
        stream_id: StreamId,
        holder: NodeId,
        decide: Callable[[StreamRecord, bool], StreamRecord],
        queued: Sequence[Due] = (),
    ) -> StreamRecord:
        """Update a record; `decide` is also told whether the lease of `holder` is live.

        The lease is watched with the record: if it is taken meanwhile, `decide` is asked again.

        Raises:
            NotFound: there is no such stream.
        """
        lease = node_key(holder)

        def told(record: StreamRecord, values: Values) -> StreamRecord:
            return decide(record, values[lease] is not None)

        return await self._update(stream_id, (lease,), told, queued)

    async def update_watching(
        self,
        stream_id: StreamId,
        watched: Sequence[str],
        decide: Callable[[StreamRecord, Values], StreamRecord],
    ) -> StreamRecord:
        """Update a record; `decide` also sees the values of other keys, which are watched with it.

        Raises:
            NotFound: there is no such stream.
        """
        return await self._update(stream_id, watched, decide, ())

    async def _update(
        self,
        stream_id: StreamId,
        watched: Sequence[str],
        decide: Callable[[StreamRecord, Values], StreamRecord],
        queued: Sequence[Due],
        also: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> StreamRecord:
        key = stream_key(stream_id)

        def change(values: Values) -> tuple[Changes, StreamRecord]:
            value = values[key]
            if value is None:
                raise stream_not_found()
            before = self._read(value)
            record = decide(before, values)
            written = {**also, key: encode_record(record)}
            if record.config != before.config:
                written[CONFIGS_KEY] = new_config_mark()
            return Changes(written, queued), record

        try:
            return await self._coordination.transact([key, *watched], change)
        except NotFound:
            # Nothing is where the generation is not.
            await self.check_generation()
            raise

    async def check_generation(self) -> None:
        """Hear whether the store was emptied, where something is not found.

        Raises:
            Unavailable: `coordination-regressed`.
        """
        if self.generation is not None:
            self.require_generation(await self._coordination.get(GENERATION_KEY))

    def require_generation(self, held: bytes | None) -> None:
        """Refuse where `held`, the value of `GENERATION_KEY`, is not the expected generation.

        Raises:
            Unavailable: `coordination-regressed`.
        """
        if self.generation is None:
            return
        if held is None or orjson.loads(held).get("generation") != self.generation:
            raise coordination_lost()
