"""Cut the run of one stream into fragments, some of it at a time: of tiny chunks what is known of each
takes several times as much room as they do. Nothing is kept here, and nothing is written.
"""

import asyncio
from collections.abc import Mapping, Sequence

from bottomless.errors import Corrupt
from bottomless.formats.checks import corrupt
from bottomless.formats.placing import Placed, place
from bottomless.guards import guard
from bottomless_server.leaderless.tail import TailEntry
from bottomless_server.uploader.compaction.core.runs import batches_of, fragments_of, place_of
from bottomless_server.uploader.compaction.core.tracking_chunks import FragmentTracking
from bottomless_server.uploader.compaction.core.waiting import Place
from bottomless_server.uploader.compaction.objects import WalObject
from bottomless_server.uploader.fragments import FragmentUploads, Parts


class RunCut:
    """What becomes fragments of one stream, within a session of it."""

    def __init__(
        self,
        parts: Parts,
        uploads: FragmentUploads,
        objects: Mapping[Place, WalObject],
        epoch: int,
        tracking: FragmentTracking | None,
    ) -> None:
        """`tracking` is None for a stream of which no name is known."""
        self._budget = parts.budget
        self._uploads = uploads
        self._objects = objects
        self._epoch = epoch
        self._tracking = tracking

    async def into_fragments(
        self, run: Sequence[TailEntry], published_next: int, target_bytes: int
    ) -> None:
        """Have fragments on their way, of `target_bytes` each but the last.

        Raises:
            Corrupt: an entry is damaged; what lies before it is on its way.
            StoreError: as `FragmentUploads.take`.
        """
        left: list[Placed] = []
        for batch in batches_of(run, target_bytes):
            await self._uploads.room()
            size = sum(entry.size for entry in batch) + sum(one.header.total_size for one in left)
            async with self._budget.holding(size):
                placed, damage = await asyncio.to_thread(
                    _place_all, batch, self._objects, self._epoch, published_next
                )
                left += placed
                goes_on = damage is None and batch[-1] is not run[-1]
                headers, taken = [one.header for one in left], 0
                for part in fragments_of(headers, target_bytes, goes_on=goes_on):
                    await self._uploads.room()
                    await self._take(left[part.start : part.stop])
                    taken = part.stop
                del left[:taken]
            if damage is not None:
                raise damage

    async def _take(self, chunks: Sequence[Placed]) -> None:
        data = await asyncio.to_thread(_joined, chunks)
        told = None if self._tracking is None else self._tracking.after(chunks)
        parts = [data] if told is None else [data, told]
        first, last = chunks[0].header, chunks[-1].header
        await self._uploads.take(parts, first.first_offset, last.next_offset)


def _place_all(
    batch: Sequence[TailEntry],
    objects: Mapping[Place, WalObject],
    epoch: int,
    published_next: int,
) -> tuple[list[Placed], Corrupt | None]:
    """Place the chunks of entries from an offset on, up to the first entry that is damaged. Every byte
    is summed here: long enough for a thread."""
    placed: list[Placed] = []
    for entry in batch:
        data = objects[place_of(entry)].data[entry.position : entry.position + entry.size]
        try:
            chunks = place(
                data,
                first_offset=entry.first_offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=epoch,
            )
            placed += above(chunks, published_next)
        except Corrupt as error:
            return placed, error
    return placed, None


@guard("the run of a stream begins where its manifest ends")
def above(chunks: Sequence[Placed], published_next: int) -> list[Placed]:
    """The chunks that no fragment has.

    Raises:
        Corrupt: the manifest ends inside one of them.
    """
    above = [one for one in chunks if one.header.next_offset > published_next]
    if above and above[0].header.first_offset < published_next:
        raise corrupt("tail entry", "the manifest ends inside one of its chunks")
    return above


def _joined(chunks: Sequence[Placed]) -> bytes:
    return b"".join(part for one in chunks for part in (one.front, one.body))
