"""What the reader shows of itself at a scrape."""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.scan import ScanTotals
from bottomless_server.reader.fences import Fences
from bottomless_server.reader.followers import Followers
from bottomless_server.reader.heat_telling import HeatTelling
from bottomless_server.reader.leaderless.wal_tail import WalReads
from bottomless_server.runtime.http.connection import Places
from bottomless_server.runtime.observe.metrics import counted, gauged


def reader_metrics(
    cache: SharedCache,
    blocks: Blocks,
    followers: Followers,
    waiters: Places,
    fences: Fences,
    wal: WalReads | None,
    heat: HeatTelling | None,
) -> Iterable[Metric]:
    name = "bottomless_reader"
    yield counted(f"{name}_cache_hits", "Things found in the cache.", cache.hit_count)
    yield counted(f"{name}_cache_misses", "Things made for the cache.", cache.miss_count)
    yield gauged(f"{name}_cache_bytes", "Bytes that the cache holds.", cache.size)
    yield counted(
        f"{name}_block_fetches", "Ranged GETs of fragments and of WAL objects.", blocks.fetch_count
    )
    yield gauged(f"{name}_followers", "Answers that stay open.", followers.places.count)
    yield gauged(f"{name}_waiters", "Long polls that wait.", waiters.count)
    yield counted(
        f"{name}_follow_pages",
        "Pages read for answers that stay open, whoever shares them.",
        followers.read_count,
    )
    yield counted(
        f"{name}_group_fenced_reads",
        "Reads of members of consumer groups that were refused or ended: another one holds the stream.",
        fences.refused_count,
    )
    yield from _filter_metrics(name, followers.reader.scanned)
    yield from _wal_metrics(name, wal)
    yield from _heat_metrics(name, heat)


def _heat_metrics(name: str, heat: HeatTelling | None) -> Iterable[Metric]:
    yield gauged(
        f"{name}_heat_fragments",
        "Fragments of which it is counted how much is fetched.",
        heat.fragment_count if heat else 0,
    )
    yield counted(
        f"{name}_heat_told",
        "Fragments of which manifest was told how much is fetched.",
        heat.told_count if heat else 0,
    )
    yield counted(
        f"{name}_heat_lost",
        "Fragments of which it could not be told.",
        heat.lost_count if heat else 0,
    )


def _filter_metrics(name: str, scanned: ScanTotals) -> Iterable[Metric]:
    yield counted(f"{name}_filter_pages", "Pages that were read with a filter.", scanned.page_count)
    yield counted(
        f"{name}_filter_scanned_bytes",
        "Bytes of chunks that pages with a filter looked at.",
        scanned.scanned_size,
    )
    yield counted(
        f"{name}_filter_skipped_bytes",
        "Bytes of fragments that pages with a filter left unread.",
        scanned.skipped_size,
    )
    yield counted(
        f"{name}_filter_skipped_fragments",
        "Fragments that pages with a filter left unread as a whole.",
        scanned.skipped_count,
    )
    yield counted(
        f"{name}_filter_false_chunks",
        "Chunks that filters let pass, and that held nothing that a page asked for.",
        scanned.false_chunk_count,
    )
    yield counted(
        f"{name}_filter_false_fragments",
        "Fragments that filters let pass, and that held nothing that a page asked for.",
        scanned.false_fragment_count,
    )


def _wal_metrics(name: str, wal: WalReads | None) -> Iterable[Metric]:
    reads = CounterMetricFamily(
        f"{name}_wal_reads",
        "Ranges of WAL objects that were read, by where they came from.",
        labels=["source"],
    )
    reads.add_metric(["node"], wal.nodes.read_count if wal else 0)
    reads.add_metric(["cache"], wal.chunks.held_count if wal else 0)
    reads.add_metric(["store"], wal.chunks.store_count if wal else 0)
    yield reads
    yield counted(
        f"{name}_wal_node_failures",
        "Questions to nodes for bytes of WAL objects that failed, or took too long.",
        wal.nodes.failure_count if wal else 0,
    )
    yield counted(
        f"{name}_tail_polls",
        "Questions whether leaderless streams have grown, each for all that are waited at.",
        wal.poll.poll_count if wal else 0,
    )
    yield counted(
        f"{name}_tail_wakes",
        "Waits that such a question has ended.",
        wal.poll.wake_count if wal else 0,
    )
