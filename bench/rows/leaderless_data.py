"""What happens to leaderless data afterwards: it is read, compacted, and rebuilt from."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx
from support.lost_coordination import await_loss, flush, rebuild
from support.valkey import running_valkey

from bench.figures import Figure, Goal, at_most, times
from bench.pump import HttpLoad
from bench.rows.append import RECORDS_1M
from bench.rows.leaderless import LEADERLESS, appends, compact, numbers, started
from bench.rows.objects import NOTHING_LOCAL, read_all, wait_freed
from bench.rows.replay import pages
from bench.rows.streams import create
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import http

READ_RECORDS: Final = 1_000_000
"""Some 104 MB, which the reader's cache holds."""
READ_PAGE_BYTES: Final = 8 << 20
COMPACTED, UPLOADED = "compacted, leaderless", "uploaded, local"
WAL_COLD: Final = "tail of WAL objects, cold"
GETS_EACH: Final = "GETs per WAL object"


def _filled(ours: Ours, name: str, config: Mapping[str, Any]) -> int:
    ours.create(name, config)
    requests = appends([name], RECORDS_1M, READ_RECORDS // RECORDS_1M)
    HttpLoad(ours.port, ours.tree, requests, 4, again=False)(0)
    return len(requests) * RECORDS_1M


def _set_up_read(stage: Stage) -> None:
    _set_up_fragments(stage)
    directory = stage.directory / "tail"
    settings = {"BOTTOMLESS_UPLOADER_WAL": "off"}
    with started(directory, settings) as ours:
        end = _filled(ours, "tail", LEADERLESS)
        found = pages(ours, "tail", http.CHUNKS, end, READ_PAGE_BYTES)
    objects = len(list((directory / "objects" / "_system" / "wal").rglob("*.wal")))

    def cold(_: float) -> Figure:
        with running_ours(directory, settings) as again:
            figure = read_all(again, found, 1)
        return replace(figure, extra={**figure.extra, GETS_EACH: figure.extra["GETs"] / objects})

    stage.runners[WAL_COLD] = cold
    stage.notes.append(
        f"{READ_RECORDS:,} records of 100 bytes from a directory, in pages of 8 MiB of chunks, with warm "
        "caches; cold is a server that was just started, whose node has nothing of it in memory."
    )


def _set_up_fragments(stage: Stage) -> None:
    ours = stage.stack.enter_context(started(stage.directory / "fragments", NOTHING_LOCAL))
    for side, name, config in (
        (COMPACTED, "compacted", LEADERLESS),
        (UPLOADED, "uploaded", {"fragment": {"max_age_ms": 1_000}}),
    ):
        end = _filled(ours, name, config)
        if side == COMPACTED:
            compact(ours)
        ours.wait_uploaded(name)
        if side == UPLOADED:
            end = wait_freed(ours)
        found = pages(ours, name, http.CHUNKS, end, READ_PAGE_BYTES)
        stage.runners[side] = lambda _, found=found: read_all(ours, found, 1)  # type: ignore[misc]


COMPACTION_STREAMS: Final = 100
COMPACTION_MIB_PER_SECOND: Final = 64
"""For each second that a side shall run, at most 512."""
COMPACTION_MIB_MAX: Final = 512
ROUND, REBUILD = "a round of compaction", "a rebuild"
CPU_GIB: Final = "CPU s per GiB"
WAL_GETS_EACH: Final = "GETs per WAL object, those of fragments included"


def _compaction(stage: Stage, work: Callable[[Ours, str], None]) -> Runner:
    def run(seconds: float) -> Figure:
        mib = min(int(seconds * COMPACTION_MIB_PER_SECOND), COMPACTION_MIB_MAX)
        home = stage.directory / f"compaction-{next(numbers)}"
        with running_valkey(home / "valkey") as valkey:
            settings = {
                "BOTTOMLESS_COORDINATION_URL": valkey.url,
                # No round begins by itself before there is more than is written.
                "BOTTOMLESS_UPLOADER_WAL_CACHE_BYTES": str(4 << 30),
                "BOTTOMLESS_MANIFEST_REBUILD_WAL_WAIT_MS": "0",
            }
            with started(home / "ours", settings) as ours:
                names = create(ours, COMPACTION_STREAMS, "compacted", LEADERLESS)
                requests = appends(names, RECORDS_1M // 4, 4 * mib)
                HttpLoad(ours.port, ours.tree, requests, 16, again=False)(0)
                objects = len(list((home / "ours" / "objects/_system/wal").rglob("*.wal")))
                before, spent = ours.store_calls(), ours.tree.cpu_seconds()
                begun = time.perf_counter()
                with ours.tree.watched() as rss:
                    work(ours, valkey.url)
                took = time.perf_counter() - begun
                ours.tree.settle(20)
                gets = ours.store_calls().get("get", 0) - before.get("get", 0)
                cpu = ours.tree.cpu_seconds() - spent
                return Figure(
                    units=mib,
                    seconds=took,
                    cpu_seconds=cpu,
                    rss_mib=max(rss),
                    extra={
                        CPU_GIB: cpu / mib * 1024,
                        WAL_GETS_EACH: gets / objects,
                        "WAL objects": objects,
                    },
                )

    return run


def _lose_and_rebuild(ours: Ours, valkey_url: str) -> None:
    flush(valkey_url)
    with httpx.Client(base_url=ours.url, timeout=60) as client:
        await_loss(client)
        rebuild(client)


def _set_up_compaction(stage: Stage) -> None:
    stage.runners[ROUND] = _compaction(stage, lambda ours, _: compact(ours))
    stage.runners[REBUILD] = _compaction(stage, _lose_and_rebuild)
    stage.notes.append(
        f"Appends of 256 KiB to {COMPACTION_STREAMS} streams of one `fragment.max_age_ms`, on a "
        "directory; memory is that of all services. A rebuild reads all of it from the WAL objects, "
        "after coordination has forgotten everything; the time until that is noticed is in it."
    )


ROWS: Final = (
    Row(
        "leaderless-read",
        "Replay of compacted leaderless data beside local data, and of WAL objects",
        "records",
        (
            times("compacted ≥ 0.95 x local", COMPACTED, UPLOADED, 0.95),
            at_most(
                "cold tail: ≤ 1.2 GETs per WAL object",
                WAL_COLD,
                lambda figure: figure.extra[GETS_EACH],
                1.2,
                "GETs",
            ),
        ),
        _set_up_read,
        warms_up=False,
    ),
    Row(
        "leaderless-compaction",
        "Compaction of WAL objects, and a rebuild from them",
        "MiB",
        (
            at_most(
                "≤ 1.2 GETs per WAL object",
                ROUND,
                lambda figure: figure.extra[WAL_GETS_EACH],
                1.2,
                "GETs",
            ),
            Goal(
                "CPU of a round",
                lambda sides: [one.extra[CPU_GIB] for one in sides.get(ROUND, ())],
                unit="CPU s/GiB",
            ),
            Goal(
                "a rebuild",
                lambda sides: [one.rate for one in sides.get(REBUILD, ())],
                unit="MiB/s",
            ),
        ),
        _set_up_compaction,
        warms_up=False,
        rounds_max=3,
    ),
)
