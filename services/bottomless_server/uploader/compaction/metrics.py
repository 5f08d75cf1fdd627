"""What rounds of compaction count."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from bottomless_server.runtime.observe.metrics import counted, gauged


@dataclass(slots=True)
class RoundCounts:
    """Since the start of the process."""

    rounds: int = 0
    objects: int = 0
    bytes: int = 0
    streams: int = 0
    released: int = 0


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
    yield counted(f"{name}_released", "WAL objects that were released.", counts.released)
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
