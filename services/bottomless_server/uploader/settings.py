"""Settings of the fragment-uploader. They are listed in docs/settings.md."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from bottomless.model.limits import LONG_POLL_MS_MAX, MIB
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.uploader.core.window import UNAPPLIED_COUNT_MAX

_Seconds = Annotated[float, Field(ge=0)]


class WalCompaction(StrEnum):
    """Whether WAL objects of leaderless streams are compacted."""

    ON = "on"
    OFF = "off"
    ONLY = "only"
    """This process does nothing else."""


class UploaderSettings(CommonSettings):
    """Environment variables `BOTTOMLESS_UPLOADER_…`."""

    uploader_uploads_in_flight_per_stream: Annotated[int, Field(ge=1, le=1_000)] = 4
    uploader_memory_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Bytes fetched and not yet uploaded, over all streams; one fragment may exceed it, alone. One that
    is read while it is put counts 2 MiB."""
    uploader_unapplied_count_max: Annotated[int, Field(ge=1, le=10_000)] = UNAPPLIED_COUNT_MAX
    """Fragments of one stream cut and not yet in the manifest, uploaded or not."""
    uploader_retry_initial_seconds: _Seconds = 0.1
    uploader_retry_max_seconds: _Seconds = 30.0
    uploader_retry_jitter_seconds: _Seconds = 1.0
    uploader_damage_retry_seconds: _Seconds = 60.0
    """Wait before a stream whose chunks are damaged is tried again: an operator has to act."""
    uploader_upload_deadline_seconds: Annotated[float, Field(gt=0)] = 900.0
    """How long one put may take, with its own retries; less than the manifest's upload deadline,
    after which keys that were given up are deleted for the last time."""
    uploader_idle_seconds: _Seconds = 30.0
    """A stream that has had nothing to upload for so long loses its task until it commits again."""
    uploader_nodes_ms: Annotated[int, Field(ge=10)] = 1_000
    """How often it asks manifest which ingest nodes are alive: how late a new one is followed."""
    uploader_poll_wait_ms: Annotated[int, Field(ge=0, le=LONG_POLL_MS_MAX)] = 20_000
    uploader_move_interval_ms: Annotated[int, Field(ge=10)] = 60_000
    """How often moves to other drives are looked for: so late one is taken up, or tried again."""
    uploader_move_bytes_per_second: Annotated[int, Field(ge=1)] = 64 * MIB
    """How fast moves to other drives copy, all of them together."""
    uploader_moves_in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """Moves to other drives that are under way at once, and objects of them that are copied at once."""
    uploader_wal: WalCompaction = WalCompaction.ON
    uploader_wal_cache_bytes: Annotated[int, Field(ge=MIB)] = 512 * MIB
    """Bytes of WAL objects of one round; one object may exceed it, alone. With half of it waiting a
    round begins."""
    uploader_wal_entries: Annotated[int, Field(ge=1)] = 500_000
    """A round begins when so many tail entries wait."""
    uploader_wal_lease_ms: Annotated[int, Field(ge=100)] = 15_000
    """How long shards of leaderless streams stay with a process that is gone."""
