"""Where staged batches and plans of commits are kept, as commits see it.

Of a stream that lies on one node that is its disk (batches.py). Of one with replicas it is the object
store, where the next owner finds them (object_batches.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId
from bottomless_server.ingest.producers.commit_plan import (
    CommitPlan,
    StagedBatch,
    staged_not_found,
)


class KeptBatches(Protocol):
    """The staged batches of one stream at least, and the plans of its commits."""

    def plan(self, stream_id: StreamId, producer_id: str) -> CommitPlan | None:
        """The plan of a producer's commit that needs several parts, None if there is none.

        Raises:
            Corrupt: there was one, and what it said is lost: so is what its repeat must do.
        """
        ...

    def pinned(
        self, stream_id: StreamId, producer_id: str, staged_ids: Sequence[str]
    ) -> AbstractAsyncContextManager[list[StagedBatch]]:
        """Batches by id, in order; within, none of them is removed or pinned by another.

        Raises:
            NotFound: `staged-not-found`: also where they are another producer's by now.
            StoreError: they cannot be looked at now; outcome none.
        """
        ...

    async def read(self, stream_id: StreamId, batches: Sequence[StagedBatch]) -> tuple[Frame, ...]:
        """The frames of pinned batches, as they were staged.

        Raises:
            Corrupt: they are not what was staged.
            OSError, StoreError
        """
        ...

    async def record_count(self, stream_id: StreamId, staged_ids: Sequence[str]) -> int:
        """Records of those batches that are there.

        Raises:
            StoreError: that cannot be looked at now; outcome none.
        """
        ...

    async def save_plan(self, stream_id: StreamId, plan: CommitPlan) -> None:
        """Return when a plan is durable and counts, in place of the producer's earlier one.

        Raises:
            OSError, StoreError: the old one counts, or the new one.
        """
        ...

    async def drop(
        self, stream_id: StreamId, staged_ids: Sequence[str], plan: CommitPlan | None = None
    ) -> None:
        """Remove batches that nobody needs any more, and before them the plan that names them.

        Those of any other plan, and those that a commit has pinned, stay.
        """
        ...


def free_batches(
    known: Mapping[str, StagedBatch],
    staged_ids: Sequence[str],
    pins: AbstractSet[str],
    others: Iterable[CommitPlan],
) -> list[StagedBatch]:
    """Batches by id, in order, which no commit has pinned, and no plan of `others` needs.

    Raises:
        NotFound: `staged-not-found`.
    """
    found = [known.get(staged_id) for staged_id in staged_ids]
    batches = [batch for batch in found if batch is not None]
    taken = {staged_id for plan in others for staged_id in plan.staged_ids}.union(pins)
    if len(batches) < len(staged_ids) or not taken.isdisjoint(staged_ids):
        raise staged_not_found()
    return batches


def droppable(
    staged_ids: Sequence[str], plan: CommitPlan | None, plans: Iterable[CommitPlan]
) -> list[str]:
    """Ids of batches that no other plan names: the commit that names such a one did not need it."""
    others = [one for one in plans if one != plan]
    kept = {staged_id for one in others for staged_id in one.staged_ids}
    return [staged_id for staged_id in staged_ids if staged_id not in kept]
