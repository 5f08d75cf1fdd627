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
