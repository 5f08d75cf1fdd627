"""Bounds of a store of queues, with their defaults; whoever runs a node reads them from its environment."""

from typing import NamedTuple

from bottomless.model.limits import GIB, MIB
from bottomless_server.queues.core.start_plan import V1Files


class EngineSettings(NamedTuple):
    """All bounds of the engine. Sizes in bytes, times in ms unless the name says otherwise."""

    file_bytes_max: int = 16 * MIB
    """A message file that would grow beyond is sealed."""
    checksum: bool = True
    """Whether new records carry a CRC-32C."""
    v1_files: V1Files = V1Files.READ
    """What a start does about message files of version 1, which came from RabbitMQ."""
    compact_live_share: float = 0.5
    """A sealed file of which less is needed is compacted."""
    compact_quiet_ms: int = 15_000
    """How long nothing of a file was let go of before it is compacted."""
    compact_bytes_per_second: int = 32 * MIB
    """Bytes that compactions copy, on average; 0: no bound."""
    disk_bytes_max: int = 64 * GIB
    """Bytes of message files beyond which publishes are refused (`disk-bound`)."""
    free_bytes_min: int = 64 * MIB
    """Room on the disk below which publishes are refused (`storage-full`)."""
    dedup_count_max: int = 1_000_000
    """Repeats that one queue remembers; beyond, publishes with a key or a `dedup_id` are refused."""
    ledger_cache_bytes: int = 64 * MIB
    wal_bytes_max: int = 16 * MIB
    """Log of the ledger after which it is checkpointed."""
    round_bytes_max: int = 8 * MIB
    round_change_count_max: int = 5_000
    waiting_bytes_max: int = 128 * MIB
    """Bytes of requests that wait for their round; beyond, requests are refused (`overloaded`)."""
    waiting_receive_count_max: int = 1_000
    """Receives that wait for messages of one queue."""
    sweep_count: int = 500
    """Items of each kind that one round of upkeep does."""
    read_thread_count: int = 8
    open_file_count_max: int = 512
    housekeeping_ms: int = 1_000
    """Between two looks for files to remove and to compact, if there were rounds in between."""
    outgoing_retry_ms_min: int = 250
    outgoing_retry_ms_max: int = 60_000
    """Pauses of a target that refuses, which grow from one to the other."""
