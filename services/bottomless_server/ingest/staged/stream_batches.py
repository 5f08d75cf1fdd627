"""What is staged of one stream, in memory, and how much may be staged."""

from typing import NamedTuple

from bottomless.errors import Code, Overloaded, StoreError
from bottomless_server.ingest.producers.commit_plan import CommitPlan, StagedBatch


class StagedBounds(NamedTuple):
    """How much may be staged, and for how long: the settings of the same names."""

    stream_bytes_max: int
    bytes_max: int
    stream_count_max: int
    count_max: int
    keep_ms: int
    plan_keep_ms: int


class StreamBatches:
    """What is staged of one stream: its batches, and the plans of its commits."""

    def __init__(self) -> None:
        self.batches: dict[str, StagedBatch] = {}
        self.plans: dict[str, CommitPlan] = {}
        """The plans of producers, by the name of the producer."""
        self.damaged_plans: set[str] = set()
        """The names of the files of plans that cannot be read."""
        self.since: dict[str, int] = {}
        """When each batch and each plan came, or was found at the start, by elapsed time."""
        self.arriving_count = 0
        """Bodies that are being written."""
        self.size = 0
        """Bytes of batches, those that arrive included."""

    def __bool__(self) -> bool:
        return bool(self.batches or self.plans or self.damaged_plans or self.arriving_count)


def quota_exceeded(what: str, **facts: int) -> StoreError:
    """The refusal of a batch that is one too many; `facts` names the bound."""
    return Overloaded(
        f"no more {what} can be staged; commit some, or wait until they expire",
        code=Code.QUOTA_EXCEEDED,
        retry_after_seconds=5,
        facts=facts,
    )
