"""The port between the routes of ingest and the profile that stores what a stream is given.

`front/` knows a stream by its `Appender` alone, and gets that from `Appenders`, by the stream's id.
How a record becomes durable is the profile's business: in the local profile the newest records of
a stream lie on the disk of the one node that owns it (staged/owned_appenders.py, local/, log/). In the
leaderless profile they lie in object storage, and any node appends (leaderless/). front/lookup.py
chooses between them by what manifest says of the stream; routes, forms and answers are the same.

A partition of a super stream is a local stream. What a request to the whole super stream asks of the
owner of one is a `PartitionPort`: on this node (local/owned_partitions.py), or another one.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.ingest.producers.commit_plan import StagedBatch
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions
from bottomless_server.ingest.records.intake import Append
from bottomless_server.protocol.parts import StepAsked, StepSaid


class Staged(NamedTuple):
    """A batch that is stored and belongs to no stream's records yet."""

    batch: StagedBatch
    expires_at: int
    """When it may be removed unless it is committed, in ms since 1970."""


class Appender(Protocol):
    """Appends to one stream, and shows and changes what the stream knows of its producers."""

    @property
    def stream_id(self) -> StreamId: ...

    @property
    def next_offset(self) -> int:
        """The end of the stream, as far as this node knows."""
        ...

    @property
    def durability(self) -> str:
        """What an answered append outlives, as answers name it: `fsync` or `object-store`."""
        ...

    @property
    def replica_count(self) -> int | None:
        """Nodes on whose disks all is that was answered, as answers name it; None where others are to
        have none of it."""
        ...

    def require_space(self) -> None:
        """Refuse an append, before its body is read, where there is no place to store it.

        Raises:
            Overloaded: `disk-bound`; nothing is stored.
        """
        ...

    async def append(self, append: Append) -> Appended:
        """Return when the records are durable and visible.

        Raises:
            StoreError: with the outcome that is known.
        """
        ...

    def put(self, append: Append) -> asyncio.Future[Appended]:
        """Put an append in line, after all that were put before; what `append` would return or
        raise is the future's.

        Raises:
            StoreError: it is refused now, and is not in line; outcome none.
        """
        ...

    async def stage(self, frames: Sequence[Frame]) -> Staged:
        """Return when a batch is durable; only a commit makes its records visible.

        Raises:
            StoreError: nothing is staged.
        """
        ...

    async def commit(self, conditions: Conditions, staged_ids: Sequence[str]) -> Appended:
        """Make staged batches records of the stream, in this order, by one append.

        Raises:
            StoreError: with the outcome that is known; the same request again is right.
        """
        ...

    async def list_producers(self, after: str, count: int) -> list[tuple[str, Producer]]:
        """At most `count` producers, in the order of their names, of those that sort after `after`."""
        ...

    async def find_producer(self, producer_id: str) -> Producer | None:
        """What the stream knows of a producer; None if it does not know it."""
        ...

    async def raise_epoch(self, producer_id: str) -> None:
        """Return when earlier writers under this name are locked out, and when none of their
        commits is open.

        Raises:
            StoreError: with the outcome that is known.
        """
        ...

    async def forget_producer(self, producer_id: str) -> None:
        """Return when the stream does not know the producer any more, durably.

        Raises:
            NotFound: `producer-not-found`.
            StoreError: with the outcome that is known.
        """
        ...


class PartitionPort(Protocol):
    """One partition of a super stream, at its owner."""

    async def append_part(self, append: Append) -> Appended:
        """Return when the part of a request is durable and visible, or was before.

        Raises:
            StoreError: with the outcome that is known.
        """
        ...

    async def do_step(self, asked: StepAsked) -> StepSaid:
        """Ask what the partition remembers of requests, or have it change that, durably.

        Raises:
            StoreError: with the outcome that is known; the same step again is right.
        """
        ...

    async def fence_layouts(self, layout: int) -> None:
        """Return when no part of an older layout than this can be stored any more.

        Raises:
            StoreError: nobody can say so; outcome none.
        """
        ...


class Partitions(Protocol):
    """The partitions of super streams that this node owns, or may claim."""

    async def get(self, stream_id: StreamId) -> PartitionPort:
        """A partition, under a claim that was good just now.

        Raises:
            NotFound: there is no such stream.
            OwnedElsewhere: another node has to be asked.
            StoreError: nobody owns it now; outcome none.
        """
        ...


class Appenders(Protocol):
    """The streams of one profile, as far as this node can append to them."""

    async def get(self, stream_id: StreamId) -> Appender:
        """The appender of a stream.

        Raises:
            NotFound: there is no such stream.
            OwnedElsewhere: another node has to be asked.
            StoreError: nobody can append to it here now; outcome none.
        """
        ...

    def forget_elsewhere(self, stream_id: StreamId) -> None:
        """Ask anew who owns a stream, since somebody takes another node for its owner than is remembered."""
        ...

    def at_once(self, stream_id: StreamId) -> Appender | None:
        """The appender of a stream, if that is known without a wait and there is space; None
        leaves it to `get`, also where that will refuse."""
        ...
