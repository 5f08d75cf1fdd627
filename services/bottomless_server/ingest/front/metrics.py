"""What ingest counts: appends, not records one by one, so that counting costs nothing."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.runtime.observe.metrics import SECONDS, counted, gauged


@dataclass(slots=True)
class AppendCounts:
    """Counts appends that were answered as stored, since the start of the process."""

    appends: int = 0
    records: int = 0
    bytes: int = 0
    duplicates: int = 0
    forwarded: int = 0
    """Requests that were passed on to another node."""
    forwarded_unanswered: int = 0
    super_parts: int = 0
    """Parts of requests to super streams that were stored, here or by another node."""
    super_parts_failed: int = 0

    def note(self, appended: Appended, size: int) -> None:
        """Count an append whose body had so many bytes, decoded."""
        if appended.replayed:
            self.duplicates += max(appended.record_count, appended.duplicates)
            return
        self.appends += 1
        self.records += appended.record_count
        self.bytes += size
        self.duplicates += appended.duplicates

    def metrics(self) -> Iterable[Metric]:
        name = "bottomless_ingest"
        yield counted(f"{name}_appends", "Appends that were stored.", self.appends)
        yield counted(f"{name}_records", "Records that were stored.", self.records)
        yield counted(
            f"{name}_append_bytes", "Bytes of bodies that were stored, decoded.", self.bytes
        )
        yield counted(
            f"{name}_duplicates",
            "Records that were sent again and were stored already.",
            self.duplicates,
        )
        yield counted(
            f"{name}_forwarded",
            "Requests that were passed on to the node that owns their stream.",
            self.forwarded,
        )
        yield counted(
            f"{name}_forwarded_unanswered",
            "Those of them that the owner did not answer.",
            self.forwarded_unanswered,
        )
        yield counted(
            f"{name}_super_parts",
            "Parts of requests to super streams that were stored, by this node or by others.",
            self.super_parts,
        )
        yield counted(
            f"{name}_super_parts_failed",
            "Parts of requests to super streams that failed.",
            self.super_parts_failed,
        )


class TimedFileCalls(RealFileCalls):
    """The file calls of the operating system, with each sync timed; called in threads."""

    def __init__(self) -> None:
        self.syncs = Histogram(
            "bottomless_ingest_fsync_seconds",
            "How long a sync of a segment, or of many at once, took.",
            buckets=SECONDS,
            registry=None,
        )

    def fdatasync(self, fd: int) -> None:
        began_at = time.perf_counter()
        super().fdatasync(fd)
        self.syncs.observe(time.perf_counter() - began_at)

    def syncfs(self, fd: int) -> None:
        began_at = time.perf_counter()
        super().syncfs(fd)
        self.syncs.observe(time.perf_counter() - began_at)


def ingest_gauges(
    *,
    in_flight_size: int,
    local_size: int,
    local_size_max: int,
    staged_size: int,
    staged_count: int,
    tracking_size: int,
    tracking_size_max: int,
    stream_count: int,
    unopened_count: int,
) -> Iterable[Metric]:
    name = "bottomless_ingest"
    yield gauged(
        f"{name}_in_flight_bytes",
        "Bytes of appends that are received, wait or are written.",
        in_flight_size,
    )
    yield gauged(f"{name}_local_bytes", "Bytes of local segments.", local_size)
    yield gauged(
        f"{name}_local_limit_bytes",
        "Bytes of local segments at which appends wait.",
        local_size_max,
    )
    yield gauged(
        f"{name}_staged_bytes", "Bytes of staged batches that wait for their commit.", staged_size
    )
    yield gauged(
        f"{name}_staged_batches", "Staged batches that wait for their commit.", staged_count
    )
    yield gauged(
        f"{name}_tracking_bytes", "Memory of producers and idempotency keys.", tracking_size
    )
    yield gauged(
        f"{name}_tracking_limit_bytes",
        "Memory of producers and idempotency keys at which new ones are refused.",
        tracking_size_max,
    )
    yield gauged(f"{name}_open_streams", "Streams that this node owns and has open.", stream_count)
    yield gauged(
        f"{name}_unopened_streams",
        "Streams that lie on this node's disk and could not be opened so far.",
        unopened_count,
    )
