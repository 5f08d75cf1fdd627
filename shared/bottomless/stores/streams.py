"""Stream records in coordination: found by name, read, created, changed under WATCH.

bottomless:generation              the generation that the bucket must show too
bottomless:name:{tenant}:{name}    stream id
bottomless:stream:{stream_id}      the stream record
bottomless:node:{node_id}          lease of one ingest data directory
bottomless:deletes                 object keys, by the time from which they may go
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bottomless.coordination.base import Changes, Coordination, Due
from bottomless.errors import Exists, NotFound
from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.names import TENANT_DEFAULT, NodeId, StreamId, StreamName
from bottomless.model.stream import StreamRecord

GENERATION_KEY: Final = "bottomless:generation"
DELETES_KEY: Final = "bottomless:deletes"


def stream_key(stream_id: StreamId) -> str:
    return f"bottomless:stream:{stream_id}"


def name_key(name: StreamName, tenant: str = TENANT_DEFAULT) -> str:
    return f"bottomless:name:{tenant}:{name}"


def node_key(node_id: NodeId) -> str:
    return f"bottomless:node:{node_id}"


def delete_later(object_key: str, due_at: int) -> Due:
    """An entry of the delete queue, to be written in the transaction that makes the object unreachable."""
    return Due(DELETES_KEY, object_key.encode("ascii"), due_at)


class Streams:
    """The records of all streams. Holds no state of its own."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def find(self, name: StreamName) -> StreamId:
        """The id behind a name.

        Raises:
            NotFound: no stream has this name.
        """
        value = await self._coordination.get(name_key(name))
        if value is None:
            raise stream_not_found()
        return StreamId(value.decode("ascii"))

    async def load(self, stream_id: StreamId) -> StreamRecord:
        """The record of a stream.

        Raises:
            NotFound: there is none.
        """
        value = await self._coordination.get(stream_key(stream_id))
        if value is None:
            raise stream_not_found()
        return decode_record(value)

    async def create(self, record: StreamRecord) -> None:
        """Enter a new stream under its name, both or neither.

        Raises:
            Exists: the name is taken.
        """
        keys = (name_key(record.name, record.tenant), stream_key(record.stream_id))

        def change(values: Mapping[str, bytes | None]) -> Changes:
            if any(value is not None for value in values.values()):
                raise Exists("a stream of this name exists")
            return Changes(
                {keys[0]: record.stream_id.encode("ascii"), keys[1]: encode_record(record)}
            )

        await self._coordination.transact(keys, change)

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
        return await self._update(stream_id, None, lambda record, _: decide(record), queued)

    async def update_unless_held(
        self,
        stream_id: StreamId,
        holder: NodeId,
        decide: Callable[[StreamRecord, bool], StreamRecord],
    ) -> StreamRecord:
        """The same, where `decide` also hears whether `holder`'s lease is live.

        The lease is watched with the record: if it is taken meanwhile, `decide` is asked again.

        Raises:
            NotFound: there is no such stream.
        """
        return await self._update(stream_id, holder, decide, ())

    async def _update(
        self,
        stream_id: StreamId,
        holder: NodeId | None,
        decide: Callable[[StreamRecord, bool], StreamRecord],
        queued: Sequence[Due],
    ) -> StreamRecord:
        key = stream_key(stream_id)
        keys = [key] if holder is None else [key, node_key(holder)]
        decided: list[StreamRecord] = []

        def change(values: Mapping[str, bytes | None]) -> Changes:
            value = values[key]
            if value is None:
                raise stream_not_found()
            held = holder is not None and values[node_key(holder)] is not None
            decided[:] = [decide(decode_record(value), held)]
            return Changes({key: encode_record(decided[0])}, queued)

        await self._coordination.transact(keys, change)
        return decided[0]


def stream_not_found() -> NotFound:
    return NotFound("there is no such stream")
