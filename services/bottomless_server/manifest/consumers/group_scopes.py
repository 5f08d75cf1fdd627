"""What consumer groups share, as a request names it: a stream, or a super stream with its partitions."""

from typing import NamedTuple

from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord
from bottomless.model.super_stream import SuperRecord
from bottomless_server.manifest.common.core.preconditions import require_no_partition
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.stores.groups import Shared, scope_of


class GroupPlace(NamedTuple):
    """A partition, by the stream that it is."""

    name: StreamName
    stream_id: StreamId


class GroupScope(NamedTuple):
    """What the members of a group share."""

    shared: Shared
    places: tuple[GroupPlace, ...]
    """The partitions, in the order of their numbers; of a stream it is that stream."""

    @property
    def scope(self) -> str:
        """The id by which coordination knows it."""
        return scope_of(self.shared)

    @property
    def headers(self) -> dict[str, str]:
        """What every answer says of it."""
        return {} if isinstance(self.shared, SuperRecord) else {"stream-id": self.scope}


class Scopes:
    """Finds what groups share, by its name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def of_stream(self, name: FullName) -> GroupScope:
        """Find a stream.

        Raises:
            NotFound
            Exists: `partition-of-super-stream`.
        """
        record = await self._registry.find(name)
        require_no_partition(record)
        return stream_scope(record)

    async def of_super(self, name: FullName) -> GroupScope:
        """Find a super stream.

        Raises:
            NotFound
        """
        record = await self._registry.supers.find(name)
        places = tuple(GroupPlace(one.name, one.stream_id) for one in record.partitions)
        return GroupScope(record, places)


def stream_scope(record: StreamRecord) -> GroupScope:
    """A stream, whose one partition it is itself."""
    return GroupScope(record, (GroupPlace(record.name, record.stream_id),))
