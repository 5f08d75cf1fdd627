"""The first screen of docs/performance.md: what a core and a dollar get, out of the kept figures.

Pure: the same document gives the same lines. A figure that is not kept is named as not measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.figures import Figure, Spread

CORE_HOUR_DOLLARS: Final = 0.04
PUT_DOLLARS: Final = 0.005 / 1_000
GET_DOLLARS: Final = 0.0004 / 1_000
GB_MONTH_DOLLARS: Final = 0.023
VALUE_SIZE: Final = 100
"""Bytes of a record of the rows."""
GIGABYTES_PER_GIB: Final = (1 << 30) / 1e9
UNKNOWN: Final = "not measured yet"

COST: Final = ("cost", "ours, S3")
COST_RABBIT: Final = ("cost", "RabbitMQ, not replicated")
COLD: Final = ("replay-objects", "S3, empty cache, warm server")
CPU_PER_GB: Final = "CPU s per GB"
PUTS: Final = "puts per GiB"
GETS: Final = "GETs per GiB"


class Line(NamedTuple):
    """A kind of work, the side that measures it, and what its rate hangs on."""

    work: str
    row: str
    side: str
    batch: int
    """Records of one request; 0: it is said in records alone."""
    limit: str


LINES: Final = (
    Line(
        "append batches of 1 MiB, upload included",
        "append-fsync",
        "ours",
        10_000,
        "the kernel: page cache, sockets and syncs are more than half of the CPU",
    ),
    Line(
        "append batches of 64 KiB, 8 connections",
        "append-64k",
        "ours",
        620,
        "Python's share of each request; the same pipelined is cheaper",
    ),
    Line(
        "append batches of 10 KB, pipelined",
        "append-pipelined-10k",
        "ours",
        100,
        "half reads the Arrow body, a third is the head of the request",
    ),
    Line(
        "append batches of 10 KB to 1,000 streams",
        "many-streams",
        "1,000 streams",
        100,
        "a round, a file and a sync for each stream",
    ),
    Line(
        "append one JSON record, one connection",
        "one-record",
        "ours, fsync",
        1,
        "Python, two thirds of the CPU, and one sync of the disk",
    ),
    Line(
        "replay as chunks, local tier",
        "replay-local",
        "ours, chunks",
        0,
        "sockets and the event loop; every byte is checked before it is sent",
    ),
    Line(
        "replay as chunks, S3, nothing cached",
        *COLD,
        0,
        "the S3 server, which has the other core; the next run is fetched while one is given out",
    ),
)


def _figures(rows: Mapping[str, Any], row: str, side: str) -> list[Figure]:
    documents: Sequence[Any] = rows.get(row, {}).get("sides", {}).get(side, ())
    return [Figure.from_json(document) for document in documents]


def _middle(figures: list[Figure], name: str) -> float:
    """Of one of their numbers, or of one of those that only their row has."""
    found = [
        getattr(figure, name) if hasattr(figure, name) else figure.extra[name] for figure in figures
    ]
    return Spread.of(found).middle


def _told(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value >= 1_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def per_core(rows: Mapping[str, Any]) -> Iterator[str]:
    """One line for each kind of work: what a second of one core of the server does."""
    yield "| Work of records of 100 bytes | One core does, a second | p50 / p99 | What limits it |"
    yield "|---|---|---|---|"
    for line in LINES:
        figures = _figures(rows, line.row, line.side)
        yield f"| {line.work} | {_core(line, figures)} | {_waits(figures)} | {line.limit} |"


def _core(line: Line, figures: list[Figure]) -> str:
    if not figures:
        return UNKNOWN
    records = 1e6 / _middle(figures, "cpu_per_million")
    told = f"{_told(records)} records"
    if line.batch != 1:
        told += f", {_told(records * VALUE_SIZE / 1e6)} MB"
    if line.batch > 1:
        told += f"; {_told(1e3 * line.batch / records)} ms an append"
    return told


def _waits(figures: list[Figure]) -> str:
    if not figures or not _middle(figures, "p99_ms"):
        return ""
    return f"{_told(_middle(figures, 'p50_ms'))} / {_told(_middle(figures, 'p99_ms'))} ms"


class Price(NamedTuple):
    """What a GB costs that is produced, kept in S3, and read from there once, in dollars."""

    compute: float
    puts: float
    gets: float

    @property
    def all(self) -> float:
        return sum(self)


def price(cpu_per_gb: float, puts_per_gib: float, gets_per_gib: float) -> Price:
    """By the prices above; requests are counted for each GiB, as a GB is a little less."""
    return Price(
        cpu_per_gb / 3_600 * CORE_HOUR_DOLLARS,
        puts_per_gib / GIGABYTES_PER_GIB * PUT_DOLLARS,
        gets_per_gib / GIGABYTES_PER_GIB * GET_DOLLARS,
    )


def per_dollar(rows: Mapping[str, Any]) -> Iterator[str]:
    """What a GB costs from end to end, and how many of them a dollar is good for."""
    ours, cold, rabbit = (_figures(rows, *side) for side in (COST, COLD, COST_RABBIT))
    if not ours or not cold or GETS not in cold[0].extra:
        yield f"**Per dollar**: {UNKNOWN} (rows `cost` and `replay-objects`)."
        return
    cpu = _middle(ours, CPU_PER_GB)
    found = price(cpu, _middle(ours, PUTS), _middle(cold, GETS))
    month_share = found.all / GB_MONTH_DOLLARS * 30
    yield (
        f"**Per dollar**: a GB (10^9 bytes of values) that is produced in batches of 1 MiB, kept in "
        f"S3 and read once takes {_told(cpu)} CPU seconds of the server, "
        f"{_told(_middle(ours, PUTS))} puts a GiB and, where it is read from S3, "
        f"{_told(_middle(cold, GETS))} GETs a GiB. At ${CORE_HOUR_DOLLARS:g} for an hour of a core, "
        f"${PUT_DOLLARS * 1e3:g} for 1,000 puts and ${GET_DOLLARS * 1e3:g} for 1,000 GETs that is "
        f"${_told(found.all * 1_000)} a TB, or {_told(1 / found.all)} GB for a dollar: "
        f"${_told(found.compute * 1_000)} for cores, ${_told(found.puts * 1_000)} for puts, "
        f"${_told(found.gets * 1_000)} for GETs. To keep it costs as much in "
        f"{_told(month_share)} days, at ${GB_MONTH_DOLLARS:g} a GB and month: storage is what a "
        "stream that is kept costs. Prices are round ones, to be replaced by yours; traffic out of "
        "a cloud, between its zones, and disks are not in them."
    )
    if rabbit:
        yield ""
        yield (
            f"RabbitMQ, one node that neither syncs nor replicates nor tiers, takes "
            f"{_told(_middle(rabbit, CPU_PER_GB))} CPU seconds for the same GB."
        )


def glance(rows: Mapping[str, Any]) -> str:
    """All of it."""
    return "\n".join([*per_core(rows), "", *per_dollar(rows)]) + "\n"
