"""What all followed streams of a process share, and what arrives for them."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from bottomless.model.chunk import ChunkHeader
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.freeing import DiskUse, FreeingBounds
from bottomless_server.ingest.local.sound_logs import SoundLogs
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.node.core.following import LastOwned
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.node.lease import Clocks
from bottomless_server.protocol.replica import Item
from bottomless_server.runtime.base.shared_hops import SharedHops


class Here(Protocol):
    """What else this node knows of a stream."""

    def owned_epoch(self, stream_id: StreamId) -> int | None:
        """The epoch under which this node owns it now; None if it does not.

        Raises:
            Overloaded: nobody knows yet; it may be asked again.
        """
        ...

    def note_followed(self, stream_id: StreamId) -> None:
        """Note that another node, which owns it, makes what lies here from now on."""
        ...

    def last_owned(self, stream_id: StreamId) -> LastOwned:
        """What this node knows of when it owned it last since its process began."""
        ...

    async def stop(self, stream_id: StreamId) -> tuple[int, int] | None:
        """Return when this node owns it no more, and has none of its files open.

        Returns the place from which on nothing in its log is believed; None if all of it is.
        """
        ...

    async def is_in_sync(self, stream_id: StreamId) -> bool:
        """Whether its record counts this node among those that have everything, written just now: so
        nothing that was asked for before can still land.

        Raises:
            StoreError: nobody can tell.
        """
        ...


@dataclass(frozen=True, slots=True)
class FollowingContext:
    """What all followed streams of a process share."""

    files: FileCalls
    data_dir: Path
    executor: Executor
    hops: SharedHops
    rounds: RoundWriter
    clocks: Clocks
    disk: DiskUse
    freeing: FreeingBounds
    here: Here
    sound: SoundLogs
    """The logs of this node that were read whole, owned and followed."""


class Arrived(NamedTuple):
    """An item of a body, whose chunks were verified."""

    item: Item
    chunks: Sequence[tuple[ChunkHeader, memoryview]]
