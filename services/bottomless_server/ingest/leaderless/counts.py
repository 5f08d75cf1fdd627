"""What a writer of leaderless streams counts, and how it is shown."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import Metric

from bottomless.errors import Code
from bottomless.model.limits import KIB, MIB
from bottomless_server.core.histogram import HistogramCounts
from bottomless_server.ingest.leaderless.core.accumulator import FlushCause, Gathered
from bottomless_server.runtime.observe.metrics import (
    SECONDS,
    counted,
    counted_by,
    distributed,
    distributed_by,
    gauged,
)

STAGES: Final = ("linger", "put", "commit", "note", "answer")
"""The way of an append, in its order; `answer` is all of it."""
_STREAMS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 65_535)
_SIZES: Final = (
    *(4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB),
    *(MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB),
)
_OUTCOMES: Final = (
    *("ok", "conflict", "split", "unknown", "settled"),
    *("unchecked", "unavailable", "lost"),
)
_REFUSALS: Final = (
    Code.TAIL_BOUND,
    Code.OVERLOADED,
    Code.COMMIT_TIMEOUT,
    Code.COORDINATION_UNAVAILABLE,
    Code.OBJECT_STORE_UNAVAILABLE,
)
"""Shown from the start, so that the first one is seen to come. Others are shown once they came."""


def _by_stage() -> Mapping[str, HistogramCounts]:
    return {stage: HistogramCounts(SECONDS) for stage in STAGES}


@dataclass(slots=True)
class WriterCounts:
    """What a writer did since the start of its process."""

    flushes: Counter[FlushCause] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    """EXECs by what became of them; and `split`: groups that were halved since others write to one of
    their streams."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Appends that were refused, by their code."""
    streams: HistogramCounts = field(default_factory=lambda: HistogramCounts(_STREAMS))
    """Streams of an object that holds any."""
    sizes: HistogramCounts = field(default_factory=lambda: HistogramCounts(_SIZES))
    """Bytes of an object."""
    stages: Mapping[str, HistogramCounts] = field(default_factory=_by_stage)
    """Seconds."""
    note_objects: int = 0
    """Objects with notes alone."""
    instances: int = 0

    def note_flush(self, gathered: Gathered, now: int) -> None:
        """Count what goes into an object now."""
        self.flushes[gathered.cause] += 1
        self.streams.note(len(gathered.shares))
        self.note_ms("linger", gathered.since, now)

    def note_ms(self, stage: str, since: int, now: int) -> None:
        """Count what a stage took; both times are in ms of a clock that never goes back."""
        self.stages[stage].note((now - since) / 1000)


@dataclass(frozen=True, slots=True)
class AroundWriter:
    """What others know of a writer, and how much there is of something now, and may be."""

    refusals: Mapping[str, int] = field(default_factory=Counter)
    """Appends that were refused before they came in line, by their code."""
    waiting_size: int = 0
    cache_size: int = 0
    found_count: int = 0
    missed_count: int = 0
    held_count: int = 0
    held_count_max: int = 0
    fullness: float = 0
    fullness_max: float = 0


def writer_metrics(counts: WriterCounts, around: AroundWriter) -> Iterable[Metric]:
    """Show the series of a writer; of a process without one all are 0."""
    name = "bottomless_ingest_wal"
    yield counted_by(
        f"{name}_flushes",
        "Flushes of what gathered for a WAL object, by why it went.",
        "cause",
        {cause.value: counts.flushes[cause] for cause in FlushCause},
    )
    yield distributed(f"{name}_streams", "Streams of a flush.", counts.streams)
    yield distributed(f"{name}_object_bytes", "Bytes of a WAL object.", counts.sizes)
    yield distributed_by(
        f"{name}_stage_seconds",
        "How long stages of appends to leaderless streams took.",
        "stage",
        counts.stages,
    )
    yield counted_by(
        f"{name}_commits",
        "Commits of leaderless streams, by what came of them.",
        "outcome",
        {one: counts.commits[one] for one in _OUTCOMES} | counts.commits,
    )
    yield counted_by(
        f"{name}_refusals",
        "Appends to leaderless streams that were refused, by the code of the answer.",
        "code",
        {
            **dict.fromkeys(map(str, _REFUSALS), 0),
            **Counter({str(code): count for code, count in counts.refusals.items()})
            + Counter({str(code): count for code, count in around.refusals.items()}),
        },
    )
    yield counted(f"{name}_note_objects", "WAL objects with notes alone.", counts.note_objects)
    yield counted(f"{name}_instances", "Instances that were begun.", counts.instances)
    yield counted_by(
        f"{name}_ranges",
        "Ranges of recent WAL objects that others asked for, by whether memory had them.",
        "found",
        {"yes": around.found_count, "no": around.missed_count},
    )
    yield from _levels(name, around)


def _levels(name: str, levels: AroundWriter) -> Iterable[Metric]:
    yield gauged(
        f"{name}_waiting_bytes", "Bytes of appends that are in no object yet.", levels.waiting_size
    )
    yield gauged(f"{name}_cache_bytes", "Bytes of recent WAL objects in memory.", levels.cache_size)
    yield gauged(
        f"{name}_held",
        "What holds WAL objects of this node in coordination.",
        levels.held_count,
    )
    yield gauged(
        f"{name}_held_limit",
        "What may hold them before appends are refused.",
        levels.held_count_max,
    )
    yield gauged(
        f"{name}_fullness_ratio",
        "How full the memory of coordination is, of 1, as this node saw it last.",
        levels.fullness,
    )
    yield gauged(
        f"{name}_fullness_limit_ratio",
        "How full it may be before appends are refused.",
        levels.fullness_max,
    )
