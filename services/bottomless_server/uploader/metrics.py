"""What the uploader counts."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from bottomless_server.runtime.observe.metrics import counted, gauged


@dataclass(slots=True)
class UploadCounts:
    """Since the start of the process."""

    fragments: int = 0
    bytes: int = 0
    retries: int = 0
    whole: "UploadCounts | None" = None
    """The counts of which these are a part."""

    def note(self, size: int) -> None:
        """Count a fragment that got into the manifest, of so many bytes."""
        self.fragments += 1
        self.bytes += size
        if self.whole is not None:
            self.whole.note(size)


@dataclass(slots=True)
class MoveCounts:
    """Moves of fragments to other drives, since the start of the process."""

    moves: int = 0
    """Moves whose copies the manifest names by this process' doing."""
    bytes: int = 0
    """Bytes of these copies."""
    failures: int = 0
    """Tries that failed."""


def move_metrics(counts: MoveCounts) -> Iterable[Metric]:
    name = "bottomless_uploader"
    yield counted(f"{name}_moves", "Moves to other drives that were carried out.", counts.moves)
    yield counted(f"{name}_moved_bytes", "Bytes that these moves have copied.", counts.bytes)
    yield counted(
        f"{name}_move_failures", "Tries of a move that failed, and are made again.", counts.failures
    )


def uploader_metrics(
    counts: UploadCounts,
    *,
    active_count: int,
    failing_count: int,
    lag_ms: int,
    memory_size: int,
) -> Iterable[Metric]:
    name = "bottomless_uploader"
    yield counted(f"{name}_fragments", "Fragments that got into the manifest.", counts.fragments)
    yield counted(
        f"{name}_fragment_bytes", "Bytes of fragments that got into the manifest.", counts.bytes
    )
    yield counted(f"{name}_retries", "Attempts that failed and are repeated.", counts.retries)
    yield gauged(f"{name}_active_streams", "Streams that have something to upload.", active_count)
    yield gauged(f"{name}_failing_streams", "Streams whose last attempt failed.", failing_count)
    yield gauged(
        f"{name}_lag_seconds",
        "The longest that a stream with something to upload got nothing into the manifest.",
        lag_ms / 1000,
    )
    yield gauged(f"{name}_memory_bytes", "Bytes fetched and not yet uploaded.", memory_size)
