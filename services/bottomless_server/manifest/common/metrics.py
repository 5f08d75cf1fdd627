"""What the manifest service counts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from bottomless_server.core.store_prices import StorePrices, dollars_of_month
from bottomless_server.manifest.common.unended_growths import UnendedGrowths
from bottomless_server.runtime.observe.metrics import counted, gauged, gauged_by
from bottomless_server.stores.stored_sizes import StoredSizes


class WalCounts(NamedTuple):
    """Instances of writers of WAL objects, as the vacuum of this process has just found them; none in a
    process that does not look at them."""

    instances: int = 0
    dead: int = 0
    """Others have settled them, and some of their objects are still needed."""
    in_doubt: int = 0
    """A rebuild keeps their objects for a while, since it may have missed something of them."""


@dataclass(slots=True)
class GroupCounts:
    """What became of members of consumer groups, in this process since its start."""

    joined: int = 0
    expired: int = 0
    forced: int = 0
    """Partitions that were taken from a holder who did not release them in time."""
    fenced: int = 0
    """Commits of who does not hold the partition."""
    waiting: int = 0
    """Heartbeats that wait for a change now."""


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
    read_promotions: int = 0
    """Moves one tier up that were entered because readers fetch much there."""
    prunes: int = 0
    """EXECs that took entries out of tails."""
    pruned_entries: int = 0
    wal: WalCounts = field(default_factory=WalCounts)
    groups: GroupCounts = field(default_factory=GroupCounts)
    growths: UnendedGrowths = field(default_factory=UnendedGrowths)
    stored: StoredSizes | None = None
    """What lies in the bucket, as far as anybody has looked."""
    unreadable_consumers: int = 0
    """Offsets that a snapshot was written without, each time."""


def stored_metrics(
    stored: StoredSizes | None, prices: StorePrices, *, now: int
) -> Iterable[Metric]:
    """What lies in the bucket, and what it comes to. Of what nobody has looked at there is no sample."""
    name = "bottomless_manifest_stored"
    kinds = {} if stored is None else stored.kinds
    yield gauged_by(
        f"{name}_objects",
        "Objects in the bucket, as of the last collection of garbage.",
        "kind",
        {kind: found.object_count for kind, found in kinds.items()},
    )
    yield gauged_by(
        f"{name}_bytes",
        "Bytes of these objects.",
        "kind",
        {kind: found.size for kind, found in kinds.items()},
    )
    yield gauged_by(
        f"{name}_dollars_per_month",
        "What these bytes come to in a month.",
        "kind",
        {kind: dollars_of_month(prices, found.size) for kind, found in kinds.items()},
    )
    age = GaugeMetricFamily(f"{name}_age_seconds", "How long ago that was looked at.")
    if stored is not None:
        age.add_metric([], max(now - stored.at, 0) / 1000)
    yield age


def manifest_metrics(
    counts: ManifestCounts,
    *,
    paused_count: int,
    unreadable_count: int,
    move_count: int,
    damaged_count: int,
    failing_tier_count: int,
    clock_doubted: bool,
    regressed: bool,
    growth_ms: int,
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
    yield counted(f"{name}_tail_prunes", "Prunes of tails that took entries out.", counts.prunes)
    yield counted(
        f"{name}_pruned_entries", "Entries that prunes took out of tails.", counts.pruned_entries
    )
    yield gauged(
        f"{name}_wal_instances", "Instances of writers of WAL objects.", counts.wal.instances
    )
    yield gauged(
        f"{name}_wal_dead_instances",
        "Those of them whose writer is gone, and of which something is still needed.",
        counts.wal.dead,
    )
    yield gauged(
        f"{name}_wal_in_doubt",
        "Those of them of which all objects are kept, since a rebuild may have missed some.",
        counts.wal.in_doubt,
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
        f"{name}_moves",
        "Moves of fragments to other drives that were decided and have not ended.",
        move_count,
    )
    yield gauged(
        f"{name}_damaged_sources",
        "Fragments that could not be moved since they are damaged or gone, as far as this process was told.",
        damaged_count,
    )
    yield counted(
        f"{name}_read_promotions",
        "Moves of fragments one tier up that were decided since they are read often.",
        counts.read_promotions,
    )
    yield gauged(
        f"{name}_failing_tier_streams",
        "Streams whose tiers could not be evaluated at the last walk.",
        failing_tier_count,
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
    yield from _group_metrics(counts.groups)
    yield gauged(
        f"{name}_super_growth_seconds",
        "For how long the oldest growth of a super stream that has not ended is under way.",
        growth_ms / 1000,
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


def _group_metrics(counts: GroupCounts) -> Iterable[Metric]:
    name = "bottomless_manifest_group"
    yield counted(f"{name}_joins", "Members that joined a consumer group.", counts.joined)
    yield counted(
        f"{name}_expiries", "Members of consumer groups whose lease ran out.", counts.expired
    )
    yield counted(
        f"{name}_forced_releases",
        "Partitions that were taken from a member which did not release them in time.",
        counts.forced,
    )
    yield counted(
        f"{name}_fenced_commits",
        "Commits of offsets that were refused, since somebody else holds the partition.",
        counts.fenced,
    )
    yield gauged(
        f"{name}_waiting_heartbeats",
        "Heartbeats of members that wait for a change of their group.",
        counts.waiting,
    )
