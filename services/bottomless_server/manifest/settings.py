"""Settings of the manifest service. Each may be given as BOTTOMLESS_MANIFEST_… in the environment."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bottomless.model.config import FilterIndex, RetentionConfig
from bottomless.model.duration import stored_duration
from bottomless.model.limits import FANOUT_DEFAULT, FANOUT_MIN, REPLICA_COUNT_MAX
from bottomless_server.runtime.base.settings import CommonSettings


class ManifestSettings(CommonSettings):
    manifest_fanout: int = Field(FANOUT_DEFAULT, ge=FANOUT_MIN, le=100_000)
    """Entries that make a group."""
    manifest_debounce_ms: int = Field(50, ge=0, le=60_000)
    """How long a fragment may wait for others to share its root."""
    manifest_root_wait_ms: int = Field(10_000, ge=0, le=60_000)
    """How long fragments of 16 MiB and more may wait for others to share their root: what a busy
    stream puts is billed by the put. Never so long that a record becomes older by it than
    `fragment.max_age_ms`; the first smaller fragment and 512 MiB end the wait."""
    manifest_debounce_count: int = Field(64, ge=1, le=100_000)
    """A run this long is published at once."""
    manifest_held_count_max: int = Field(1_024, ge=1, le=100_000)
    """Fragments of one stream that may wait for the one before them; more are refused."""
    manifest_register_wait_ms: int = Field(10_000, ge=0, le=60_000)
    """How long a registration waits to be applied before it answers what still waits."""
    manifest_put_seconds: float = Field(10.0, gt=0)
    """How long one attempt to put a group or a root may take."""
    manifest_root_grace_ms: int = Field(15 * 60_000, ge=0)
    """How long a replaced root stays: longer than any reader caches one."""
    manifest_delete_grace_ms: int = Field(60 * 60_000, ge=0)
    """How long fragments and groups that retention or trim removed stay for running readers."""
    manifest_upload_deadline_ms: int = Field(60 * 60_000, ge=0)
    """The longest that a put of an uploader can be under way; given-up keys go after it."""
    manifest_delete_interval_ms: int = Field(30_000, ge=10)
    manifest_owner_ms: int = Field(1_000, ge=1)
    """How long the owner of a tail is waited for when its bounds are shown."""
    manifest_stream_count_max: int = Field(4_096, ge=1)
    """Streams whose manifest is kept in memory; the longest unused goes first."""
    manifest_operation_interval_ms: int = Field(1_000, ge=10)
    """How often operations are looked for that are due, or that another process has left."""
    manifest_operation_lease_ms: int = Field(10_000, ge=100)
    """After so long an operation of a process that died is taken up by another one."""
    manifest_operation_keep_ms: int = Field(7 * 86_400_000, ge=0)
    """How long finished operations can be asked for."""
    manifest_operation_count_max: int = Field(10_000, ge=1)
    """Operations kept; beyond, the oldest finished ones are forgotten earlier."""
    manifest_close_ms: int = Field(15_000, ge=0)
    """How long a deletion waits for the owner of the tail to stop: longer than its lease."""
    manifest_tenant_stream_count_max: int = Field(10_000, ge=1)
    """Streams that a tenant may have."""
    manifest_filter_index: FilterIndex = "none"
    """Filters that fragments of new streams get, where who creates one says nothing: `none`,
    `values` or `values-and-keys`."""
    manifest_replicas: int = Field(1, ge=1, le=REPLICA_COUNT_MAX)
    """Nodes that hold the tail of a new stream, where who creates one says nothing."""
    manifest_consumer_count_max: int = Field(1_000, ge=1)
    """Consumers of one stream whose offsets are kept."""
    manifest_consumer_snapshot_ms: int = Field(2_000, ge=10)
    """At most so long after a commit of an offset it is in the object store too."""
    manifest_group_count_max: int = Field(1_000, ge=1)
    """Consumer groups that a stream may have."""
    manifest_group_check_ms: int = Field(500, ge=10)
    """How often it is looked for members of consumer groups whose lease has run out, and for
    partitions that were not released in time: so late others may get them."""

    root_key_file: Path | None = None
    """A file with the secret of the root key, `sk_root_` and that: good without any store."""
    manifest_tenant_key_count_max: int = Field(1_000, ge=1)
    """API keys that a tenant may have, with those that ended and are not forgotten yet."""
    manifest_key_keep_ms: int = Field(7 * 86_400_000, ge=3_600_000)
    """How long keys that are revoked or expired stay listed."""
    manifest_key_interval_ms: int = Field(1_000, ge=10)
    """How often it is tried again to make a revocation durable that met an unavailable store."""

    manifest_generation_check_ms: int = Field(1_000, ge=10)
    """How often it is looked whether coordination still has the generation of the bucket."""
    manifest_retention_interval_ms: int = Field(60_000, ge=10)
    """How often the retention of each stream is evaluated: so late may anything go."""
    manifest_tier_interval_ms: int = Field(60_000, ge=10)
    """How often the tiers of each stream are evaluated: so late may anything begin to move."""
    manifest_retention_max_age: Annotated[str, AfterValidator(stored_duration)] | None = None
    """Age limit of streams that set none, like `7d`. Default: no limit."""
    manifest_retention_max_bytes: int | None = Field(None, ge=1)
    """Limit in bytes of streams that set none. Default: no limit."""
    manifest_promote_keep_ms: int = Field(86_400_000, ge=0)
    """How long what was promoted stays a tier above its own: a day."""
    manifest_gc_interval_ms: int = Field(86_400_000, ge=0)
    """How often all garbage is collected; 0 for only when somebody asks."""
    manifest_gc_minimum_age: Annotated[str, AfterValidator(stored_duration)] = "1D"
    """Objects younger than this are left alone, unless the request says otherwise."""
    manifest_wal_vacuum_ms: int = Field(10_000, ge=10)
    """How often WAL objects are deleted that no leaderless stream needs any more."""
    manifest_rebuild_wal_wait_ms: int = Field(31_000, ge=0)
    """How long a rebuild waits, before it looks at WAL objects, for what nodes that live still put:
    BOTTOMLESS_INGEST_WAL_NOTE_MS and BOTTOMLESS_INGEST_WAL_PUT_SECONDS together."""
    manifest_rebuild_wal_reads: int = Field(16, ge=1, le=256)
    """WAL objects that a rebuild reads at a time. What is read of one before its turn comes is in
    memory: a directory, of 8 MiB at most, or pieces, of 64 MiB together."""
    manifest_lease_seconds_max: int = Field(6 * 3_600, ge=1)
    """The longest that a lease may hold a range without being renewed."""

    def retention_default(self) -> RetentionConfig:
        return RetentionConfig(
            max_age=self.manifest_retention_max_age, max_bytes=self.manifest_retention_max_bytes
        )
