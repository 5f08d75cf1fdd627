"""What the manifest service counts."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from bottomless_server.runtime.observe.metrics import counted, gauged


@dataclass(slots=True)
class ManifestCounts:
    """Since the start of the process."""

    publishes: int = 0
    conflicts: int = 0
    deleted: int = 0
    refused_deletes: int = 0
    queued_deletes: int = 0
    """Members of the delete queue at the last pass of the deleter."""
    failing_deletes: int = 0
    failing_delete_ms: int = 0
    """How long the oldest of them fails; both as of the last pass."""
    collections: int = 0
    unreadable_keys: int = 0
    """Unreadable keys at the last time that all keys were compared with the bucket."""
    deleted_wal_objects: int = 0
    unreadable_consumers: int = 0
    """Offsets that a snapshot was written without, each time."""


def manifest_metrics(
    counts: ManifestCounts,
    *,
    paused_count: int,
    unreadable_count: int,
    clock_doubted: bool,
    regressed: bool,
) -> Iterable[Metric]:
    name = "bottomless_manifest"
    yield counted(f"{name}_publishes", "Roots that were published.", counts.publishes)
    yield counted(
        f"{name}_conflicts",
        "Attempts to publish that met a record which somebody else had changed.",
        counts.conflicts,
    )
    yield counted(f"{name}_deleted_objects", "Objects that were deleted.", counts.deleted)
    yield counted(
        f"{name}_deleted_wal_objects",
        "WAL objects of leaderless streams that were deleted.",
        counts.deleted_wal_objects,
    )
    yield counted(
        f"{name}_refused_deletes",
        "Objects that were due and are reachable, so that they stayed: each is a bug.",
        counts.refused_deletes,
    )
    yield gauged(
        f"{name}_delete_queue", "Objects and ranges that wait for their end.", counts.queued_deletes
    )
    yield gauged(
        f"{name}_failing_deletes",
        "Members of the delete queue, and deleted streams, of which something could not be deleted.",
        counts.failing_deletes,
    )
    yield gauged(
        f"{name}_failing_delete_seconds",
        "For how long the oldest of them has been failing.",
        counts.failing_delete_ms / 1000,
    )
    yield counted(
        f"{name}_garbage_collections", "Collections of all garbage begun.", counts.collections
    )
    yield gauged(
        f"{name}_retention_paused_streams",
        "Streams whose age retention pauses because clocks disagree.",
        paused_count,
    )
    yield gauged(
        f"{name}_unreadable_streams",
        "Streams whose record in coordination is damaged, or of a later release.",
        unreadable_count,
    )
    yield gauged(
        f"{name}_unreadable_keys",
        "API keys whose record in coordination is damaged, or of a later release.",
        counts.unreadable_keys,
    )
    yield counted(
        f"{name}_unreadable_consumers",
        "Offsets of consumers that could not be read when a snapshot was written.",
        counts.unreadable_consumers,
    )
    yield gauged(
        f"{name}_clock_doubted",
        "1 while nothing is deleted for its age, since clocks disagree.",
        int(clock_doubted),
    )
    yield gauged(
        f"{name}_regressed",
        "1 while coordination is empty or older than the bucket.",
        int(regressed),
    )
