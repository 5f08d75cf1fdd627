"""What an operator may set of the queues service; the bounds of its engine are made of it."""

from typing import Annotated, Literal

from pydantic import Field

from bottomless.model.limits import GIB, KIB, MIB
from bottomless_server.queues.core.start_plan import V1Files
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.runtime.base.settings import CommonSettings

_Positive = Annotated[int, Field(ge=1)]


class QueuesSettings(CommonSettings):
    """Each bound with its reason; all of them can be set as `BOTTOMLESS_QUEUES_…`."""

    queues_file_bytes_max: Annotated[int, Field(ge=64 * KIB, le=GIB)] = 16 * MIB
    """Bytes of a message file, after which the next one is begun: what a compaction works on at once."""
    queues_checksum: Literal["crc32c", "off"] = "crc32c"
    """Whether new messages carry a checksum, which every read checks."""
    queues_v1_files: Literal["read", "migrate", "refuse"] = "read"
    """What a start does about message files of version 1, which an import brings: reads them where they
    lie, writes them anew first, or does not begin while there are any."""
    queues_compact_live_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A message file of which less than this part is needed is compacted."""
    queues_compact_quiet_ms: Annotated[int, Field(ge=0)] = 15_000
    """How long nothing of a file was acknowledged before it is compacted."""
    queues_compact_bytes_per_second: Annotated[int, Field(ge=0)] = 32 * MIB
    """Bytes that compactions copy in a second, on average; 0 for no bound."""
    queues_disk_bytes_max: _Positive = 64 * GIB
    """Bytes of all message files; beyond, publishes are refused (429 `disk-bound`)."""
    queues_free_bytes_min: Annotated[int, Field(ge=0)] = 64 * MIB
    """Room on the disk below which publishes are refused (503 `storage-full`): acknowledgements need
    some, too."""
    queues_dedup_count_max: _Positive = 1_000_000
    """Publishes that one queue remembers; beyond, those with a key or a `dedup_id` are refused (429
    `quota-exceeded`), and nothing is forgotten early."""
    queues_ledger_cache_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Memory for the ledger."""
    queues_wal_bytes_max: Annotated[int, Field(ge=64 * KIB)] = 16 * MIB
    """Bytes of the ledger's log, after which they are moved into it."""
    queues_round_bytes_max: Annotated[int, Field(ge=64 * KIB)] = 8 * MIB
    """Bytes of requests that share one sync."""
    queues_round_change_count_max: _Positive = 5_000
    """Requests that share one sync."""
    queues_waiting_bytes_max: Annotated[int, Field(ge=MIB)] = 128 * MIB
    """Bytes of requests that are being received, or wait for their sync."""
    queues_answer_bytes_max: Annotated[int, Field(ge=MIB)] = 128 * MIB
    """Bytes of messages that receives have taken, or looks have read, and that are not sent yet; further ones
    wait for room, and are refused then (503 `overloaded`)."""
    queues_waiting_receive_count_max: _Positive = 1_000
    """Receives that wait for messages of one queue; more are refused (503 `overloaded`)."""
    queues_wait_ms: Annotated[int, Field(ge=0)] = 2_000
    """How long a publish, or what a receive has found, waits for room before 503 `overloaded`."""
    queues_sweep_count: _Positive = 500
    """Messages of each kind that are removed, expired or made ready between two rounds of requests."""
    queues_read_thread_count: Annotated[int, Field(ge=1, le=256)] = 8
    """Threads that read messages."""
    queues_open_file_count_max: _Positive = 512
    """Message files that stay open for reads."""

    queues_lease_ms: Annotated[int, Field(ge=100, le=50_000)] = 10_000
    """After so long without a word from the node, an operator may have its queues taken over. At most
    50 s: a rebuild of coordination counts a home as alive for 60 s."""
    queues_lease_margin_ms: Annotated[int, Field(ge=10, le=10_000)] = 2_000
    """The node stops that much earlier, coordination waits that much longer."""
    queues_renew_ms: Annotated[int, Field(ge=10)] = 3_000
    """Twice within what the node believes in, so that one lost call costs nothing."""
    queues_forward_ms: Annotated[int, Field(ge=100)] = 15_000
    """How long the home of a tenant's queues may be silent about a request that was passed on to it,
    beside what the request itself may wait."""
    queues_clock_jump_ms_max: _Positive = 60_000
    """A wall clock that gains more than this on elapsed time stops all that needs it (`clock-skew`)."""

    def engine(self) -> EngineSettings:
        """The bounds of the engine."""
        return EngineSettings(
            file_bytes_max=self.queues_file_bytes_max,
            checksum=self.queues_checksum == "crc32c",
            v1_files=V1Files(self.queues_v1_files),
            compact_live_share=self.queues_compact_live_share,
            compact_quiet_ms=self.queues_compact_quiet_ms,
            compact_bytes_per_second=self.queues_compact_bytes_per_second,
            disk_bytes_max=self.queues_disk_bytes_max,
            free_bytes_min=self.queues_free_bytes_min,
            dedup_count_max=self.queues_dedup_count_max,
            ledger_cache_bytes=self.queues_ledger_cache_bytes,
            wal_bytes_max=self.queues_wal_bytes_max,
            round_bytes_max=self.queues_round_bytes_max,
            round_change_count_max=self.queues_round_change_count_max,
            waiting_bytes_max=self.queues_waiting_bytes_max,
            waiting_receive_count_max=self.queues_waiting_receive_count_max,
            sweep_count=self.queues_sweep_count,
            read_thread_count=self.queues_read_thread_count,
            open_file_count_max=self.queues_open_file_count_max,
        )
