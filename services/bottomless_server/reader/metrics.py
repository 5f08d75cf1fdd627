"""What the reader shows of itself at a scrape."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.connection import Places
from bottomless_server.reader.followers import Followers
from bottomless_server.runtime.observe.metrics import counted, gauged


def reader_metrics(
    cache: SharedCache, blocks: Blocks, followers: Followers, waiters: Places
) -> Iterable[Metric]:
    name = "bottomless_reader"
    yield counted(f"{name}_cache_hits", "Things found in the cache.", cache.hit_count)
    yield counted(f"{name}_cache_misses", "Things made for the cache.", cache.miss_count)
    yield gauged(f"{name}_cache_bytes", "Bytes that the cache holds.", cache.size)
    yield counted(f"{name}_block_fetches", "Ranged GETs of fragments.", blocks.fetch_count)
    yield gauged(f"{name}_followers", "Answers that stay open.", followers.places.count)
    yield gauged(f"{name}_waiters", "Long polls that wait.", waiters.count)
    yield counted(
        f"{name}_follow_pages",
        "Pages read for answers that stay open, whoever shares them.",
        followers.read_count,
    )
