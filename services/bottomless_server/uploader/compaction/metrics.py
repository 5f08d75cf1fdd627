"""What rounds of compaction count."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import Metric

from bottomless_server.core.histogram import HistogramCounts
from bottomless_server.runtime.base.on_loop import loop_time
from bottomless_server.runtime.observe.metrics import SECONDS, counted, distributed_by, gauged
from bottomless_server.uploader.metrics import UploadCounts

STAGES: Final = ("read", "list", "fetch", "pack", "release")
"""What a look does: reads what is held, learns sizes, fetches objects, has fragments made of them, and
releases them. Most looks only read."""
_SECONDS: Final = (*SECONDS, 60, 120, 300)


def _by_stage() -> Mapping[str, HistogramCounts]:
    return {stage: HistogramCounts(_SECONDS) for stage in STAGES}


@dataclass(slots=True)
class RoundCounts:
    """Since the start of the process."""

    rounds: int = 0
    objects: int = 0
    bytes: int = 0
    streams: int = 0
    released: int = 0
    prunes: int = 0
    """Streams that were pruned since they kept an object from being released."""
    uploads: UploadCounts = field(default_factory=UploadCounts)
    stages: Mapping[str, HistogramCounts] = field(default_factory=_by_stage)
    """Seconds."""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count what a stage takes, however it ends."""
        began_at = loop_time()
        try:
            yield
        finally:
            self.stages[stage].note(loop_time() - began_at)


def compaction_metrics(
    counts: RoundCounts,
    *,
    shard_count: int,
    object_count: int,
    entry_count: int,
    oldest_age_ms: int,
    aside_count: int,
) -> Iterable[Metric]:
    name = "bottomless_compaction"
    yield counted(f"{name}_rounds", "Rounds of compaction.", counts.rounds)
    yield counted(f"{name}_objects", "WAL objects that rounds fetched.", counts.objects)
    yield counted(f"{name}_bytes", "Bytes of WAL objects that rounds fetched.", counts.bytes)
    yield counted(f"{name}_streams", "Runs of streams that became fragments.", counts.streams)
    yield counted(
        f"{name}_fragments", "Fragments that got into the manifest.", counts.uploads.fragments
    )
    yield counted(
        f"{name}_fragment_bytes",
        "Bytes of fragments that got into the manifest.",
        counts.uploads.bytes,
    )
    yield counted(f"{name}_released", "WAL objects that were released.", counts.released)
    yield counted(f"{name}_prunes", "Prunes that a release waited for.", counts.prunes)
    yield distributed_by(
        f"{name}_stage_seconds", "How long stages of compaction took.", "stage", counts.stages
    )
    yield gauged(f"{name}_shards", "Shards of streams that are compacted here.", shard_count)
    yield gauged(f"{name}_waiting_objects", "WAL objects that are not released.", object_count)
    yield gauged(f"{name}_waiting_entries", "Tail entries that wait, about.", entry_count)
    yield gauged(
        f"{name}_oldest_age_seconds",
        "The age of the oldest commit that waits for compaction.",
        oldest_age_ms / 1000,
    )
    yield gauged(f"{name}_streams_set_aside", "Streams that rounds pass over.", aside_count)


def no_compaction() -> Iterable[Metric]:
    """What a process shows that compacts nothing."""
    return compaction_metrics(
        RoundCounts(), shard_count=0, object_count=0, entry_count=0, oldest_age_ms=0, aside_count=0
    )
