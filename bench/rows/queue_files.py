"""Message files alone, in this process: what a compaction writes, and how a scan passes over holes."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, Goal, Sides, at_most
from bench.turns import Row, Runner, Stage
from bottomless.formats.message_file import (
    HEADER_SIZE,
    encode_file_header,
    encode_record,
    hole_front,
    record_size,
    scan,
)
from bottomless_server.node.file_calls import RealFileCalls, read_exactly, write_all
from bottomless_server.queues.core.compaction_plan import (
    CompactionPlan,
    LiveRecord,
    gaps_of,
    plan_compaction,
)
from bottomless_server.queues.store.compaction import cut, move_records

FILE_SIZE: Final = 16 << 20
VALUE_SIZE: Final = 1_024
SHARES: Final = (0.1, 0.25, 0.45)
"""Of what is live, all below that at which a file is compacted."""
SMALL_HOLE: Final = 5
LARGE_HOLE: Final = 8 << 20
HOLE_COUNT: Final = 1_000
SMALL: Final = f"holes of {SMALL_HOLE} B"
LARGE: Final = f"holes of {LARGE_HOLE >> 20} MiB"
PER_GAP_BYTE: Final = "bytes written per gap byte"
MOST: Final = 0.05


class CountedCalls(RealFileCalls):
    """File calls that know how much was written."""

    def __init__(self) -> None:
        self.written = 0

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        size = super().pwritev(fd, parts, position)
        self.written += size
        return size


def _side(share: float) -> str:
    return f"{share:.0%} live"


def _records() -> tuple[list[LiveRecord], bytes]:
    """A full message file of records of one size."""
    parts, position = [encode_file_header()], HEADER_SIZE
    places: list[LiveRecord] = []
    size = record_size(VALUE_SIZE, checksum=True)
    while position + size <= FILE_SIZE:
        msg_id = len(places).to_bytes(16, "big")
        parts += [bytes(part) for part in encode_record(msg_id, [b"x" * VALUE_SIZE], checksum=True)]
        places.append(LiveRecord(msg_id, position, size))
        position += size
    return places, b"".join(parts)


def _compacting(directory: Path, share: float) -> Runner:
    """Which records are live is drawn by chance, of a seed of its own in each run."""
    places, content = _records()
    path = directory / f"{share}.sqs"
    seeds = iter(range(1_000_000))

    def run(_: float) -> Figure:
        path.write_bytes(content)
        chosen = random.Random(next(seeds)).sample(places, int(share * len(places)))
        live = sorted(chosen, key=lambda record: record.position)
        files = CountedCalls()
        begun, spent = time.perf_counter(), time.process_time()
        plan: CompactionPlan = plan_compaction(live, len(content))
        move_records(files, path, plan.fillings)
        cut(files, path, plan.end)
        took = time.perf_counter() - begun
        gap_bytes = sum(size for _, size in gaps_of(live, len(content)))
        return Figure(
            units=gap_bytes,
            seconds=took,
            cpu_seconds=time.process_time() - spent,
            extra={PER_GAP_BYTE: files.written / gap_bytes, "MiB left": plan.end / (1 << 20)},
        )

    return run


def _scanning(path: Path, hole_size: int) -> Runner:
    """Holes of one size, each with what says so at its front; the rest was never written."""
    files = RealFileCalls()
    fd = files.open(path, create=True)
    end = HEADER_SIZE + HOLE_COUNT * hole_size
    files.truncate(fd, end)
    for number in range(HOLE_COUNT):
        write_all(files, fd, [hole_front(hole_size)], HEADER_SIZE + number * hole_size)
    files.close(fd)

    def run(seconds: float) -> Figure:
        fd = files.open(path)
        count, begun, spent = 0, time.perf_counter(), time.process_time()
        try:
            while time.perf_counter() - begun < seconds:
                for found in scan(lambda at, size: read_exactly(files, fd, size, at), end):
                    assert found.size == hole_size
                    count += 1
        finally:
            files.close(fd)
        return Figure(
            units=count,
            seconds=time.perf_counter() - begun,
            cpu_seconds=time.process_time() - spent,
        )

    return run


def _compactions(stage: Stage) -> None:
    for share in SHARES:
        stage.runners[_side(share)] = _compacting(stage.directory, share)
    stage.notes.append(
        f"A file of {FILE_SIZE >> 20} MiB with records of {VALUE_SIZE:,} bytes; which of them are live is "
        "drawn by chance. Files of version 1 are rewritten: one byte for each live byte."
    )


def _scans(stage: Stage) -> None:
    stage.runners[SMALL] = _scanning(stage.directory / "small.sqs", SMALL_HOLE)
    stage.runners[LARGE] = _scanning(stage.directory / "large.sqs", LARGE_HOLE)


def _above(share: float) -> Goal:
    return at_most(
        f"{_side(share)}: written per gap byte ≤ live share + {MOST:.0%}",
        _side(share),
        lambda figure: figure.extra[PER_GAP_BYTE],
        share + MOST,
        "B/B",
    )


def _times_as_long(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(SMALL, ()), sides.get(LARGE, ()), strict=False)
    return [small.rate / large.rate for small, large in pairs] or None


ROWS: Final = (
    Row(
        "queues-compaction",
        "Queues: a message file is compacted in place",
        "gap bytes",
        tuple(map(_above, SHARES)),
        _compactions,
        guess_seconds=20,
    ),
    Row(
        "queues-holes",
        "Queues: a scan of a message file passes over holes",
        "holes",
        (Goal("a hole of 8 MiB takes ≤ 1.2 x as long as one of 5 B", _times_as_long, at_most=1.2),),
        _scans,
        guess_seconds=40,
    ),
)
