"""What a gigabyte costs from end to end: produced, tiered into object storage, and read once.

CPU seconds of the server's processes alone, until they are quiet again. A GB is 10^9 bytes of
values. RabbitMQ is one node, so its replication is off; it has no object storage, and what it
stores is on one disk and not synced when it confirms.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final

import httpx
from s3_server import Account, running_s3

from bench.figures import GIB, Figure, Goal, Sides, at_most
from bench.pump import SETTLE_SECONDS, HttpLoad, Request
from bench.rows.append import LARGE_CONNECTIONS, RECORDS_1M
from bench.rows.replay import PAGE_BYTES, consume_rabbitmq, fill_rabbitmq
from bench.servers.ours import Ours, running_ours
from bench.servers.rabbitmq import Rabbit, running_rabbitmq
from bench.turns import Row, Runner, Stage
from bench.wire import http

MEBIBYTES_PER_SECOND: Final = 512
"""What is produced for each second that a side shall run, up to a GiB."""
MEBIBYTES_MAX: Final = 1_024
GIGABYTE: Final = 1e9
TOUCHED_BYTES: Final = 4 << 30
SOON: Final = {"fragment": {"max_age_ms": 5_000}}
"""What is left of a stream is uploaded so early: nobody pays for a server that waits for it."""
OURS: Final = "ours, a directory"
OURS_S3: Final = "ours, S3"
RABBIT: Final = "RabbitMQ, not replicated"
RABBIT_SUB: Final = "RabbitMQ sub-entries, not replicated"
CPU: Final = "CPU s per GB"
IN: Final = "CPU s per GB produced and tiered"
OUT: Final = "CPU s per GB read"
PUTS: Final = "puts per GiB"


def _per_gb(cpu_seconds: float, records: float) -> float:
    return cpu_seconds / (records * http.VALUE_SIZE) * GIGABYTE


def _figure(records: int, produced: Figure, read: Figure, more: Mapping[str, float]) -> Figure:
    """Both halves as one: all records, the time of both, and what each of them cost."""
    return replace(
        produced,
        units=records,
        units_all=records,
        seconds=produced.seconds + read.seconds,
        cpu_seconds=produced.cpu_seconds + read.cpu_seconds,
        cpu_busy_seconds=produced.cpu_busy_seconds + read.cpu_busy_seconds,
        generator_cpu_seconds=produced.generator_cpu_seconds + read.generator_cpu_seconds,
        rss_mib=max(produced.rss_mib, read.rss_mib),
        p50_ms=0.0,
        p99_ms=0.0,
        p999_ms=0.0,
        extra={
            CPU: _per_gb(produced.cpu_seconds + read.cpu_seconds, records),
            IN: _per_gb(produced.cpu_seconds, records),
            OUT: _per_gb(read.cpu_seconds, records),
            **more,
        },
    )


def _appends(stage: Stage) -> int:
    """Of 1 MiB."""
    return max(1, int(min(stage.seconds * MEBIBYTES_PER_SECOND, MEBIBYTES_MAX)))


def _ours(ours: Ours, appends: int) -> Runner:
    numbers = count()

    def run(_: float) -> Figure:
        stream = f"cost-{next(numbers)}"
        ours.create(stream, SOON)
        request = Request(http.append(stream, http.ARROW, http.arrow_body(RECORDS_1M)), RECORDS_1M)
        puts, spent = ours.store_calls().get("put", 0), ours.tree.cpu_seconds()
        load = HttpLoad(ours.port, ours.tree, [request] * appends, LARGE_CONNECTIONS, again=False)
        produced = load(0)
        ours.wait_uploaded(stream)
        ours.tree.settle(SETTLE_SECONDS)
        between, puts = ours.tree.cpu_seconds(), ours.store_calls().get("put", 0) - puts
        read = _read(ours, stream, appends * RECORDS_1M)
        figure = _figure(
            appends * RECORDS_1M,
            replace(produced, cpu_seconds=between - spent),
            read,
            {PUTS: puts / (appends * len(request.content)) * GIB},
        )
        ours.delete(stream)
        return figure

    return run


def _read(ours: Ours, stream: str, end: int) -> Figure:
    """Page after page, as a client that does not know where the next one begins."""
    spent, offset = ours.tree.cpu_seconds(), 0
    with ours.tree.watched() as rss, httpx.Client(base_url=ours.url, timeout=60) as client:
        while offset < end:
            answer = client.get(
                f"/v1/streams/{stream}/records",
                params={"offset": offset, "max_bytes": PAGE_BYTES},
                headers={"Accept": http.CHUNKS, "Accept-Encoding": "identity"},
            ).raise_for_status()
            offset = int(answer.headers["Page-Next-Offset"])
        ours.tree.settle(SETTLE_SECONDS)
    return Figure(
        units=end, seconds=0.0, cpu_seconds=ours.tree.cpu_seconds() - spent, rss_mib=max(rss)
    )


def _rabbitmq(server: Rabbit, records: int, *, plain: bool) -> Runner:
    numbers = count()

    def run(_: float) -> Figure:
        stream = f"cost-{plain}-{next(numbers)}"
        server.tree.settle(SETTLE_SECONDS)
        spent = server.tree.cpu_seconds()
        filled, produced = fill_rabbitmq(server, stream, records, plain=plain)
        between = server.tree.cpu_seconds()
        read = consume_rabbitmq(server, stream, filled)(0)
        server.connection().delete(stream)
        return _figure(filled, replace(produced, cpu_seconds=between - spent), read, {})

    return run


def _set_up(stage: Stage) -> None:
    appends = _appends(stage)
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    stage.runners[OURS] = _ours(ours, appends)
    account = Account("bench", "bench", "bench-secret")
    endpoint = stage.stack.enter_context(running_s3(stage.directory / "s3", account))
    settings = {
        "BOTTOMLESS_STORE_URL": account.store_url(endpoint, "cost"),
        **account.environment(),
    }
    on_s3 = stage.stack.enter_context(running_ours(stage.directory / "ours-s3", settings))
    stage.runners[OURS_S3] = _ours(on_s3, appends)
    with stage.side(RABBIT):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        for side, plain in ((RABBIT, True), (RABBIT_SUB, False)):
            stage.runners[side] = _rabbitmq(server, appends * RECORDS_1M, plain=plain)
    stage.notes += [
        (
            f"{appends:,} appends of 1 MiB for each side in each round, then read once in pages of 8 MiB. "
            "The CPU of the S3 server and of the clients is not in it. RabbitMQ stores once, unsynced, "
            "and tiers nothing; its plain messages are what its clients send by default."
        ),
        (
            "A put is one billed request as long as fragments are not sent in parts "
            "(`unit/manifest/test_shared_roots.py` counts those too)."
        ),
    ]


def _beside(theirs: str) -> Callable[[Sides], list[float] | None]:
    def read(sides: Sides) -> list[float] | None:
        pairs = zip(sides.get(OURS, ()), sides.get(theirs, ()), strict=False)
        return [ours.extra[CPU] / peer.extra[CPU] for ours, peer in pairs] or None

    return read


def _known(side: str) -> Goal:
    return Goal(
        f"{side}: {CPU}",
        lambda sides: [figure.extra[CPU] for figure in sides.get(side, ())],
        unit="CPU s/GB",
    )


ROWS: Final = (
    Row(
        "cost",
        "CPU of a GB of records from end to end: produced, tiered and read once",
        "records",
        (
            *(_known(side) for side in (OURS, OURS_S3, RABBIT, RABBIT_SUB)),
            Goal("CPU beside RabbitMQ, not replicated", _beside(RABBIT)),
            Goal("CPU beside RabbitMQ sub-entries, not replicated", _beside(RABBIT_SUB)),
            at_most(
                f"{OURS_S3}: ≤ 20 puts per GiB, data and metadata",
                OURS_S3,
                lambda figure: figure.extra[PUTS],
                20,
                "puts/GiB",
            ),
        ),
        _set_up,
        warms_up=False,
        rounds_max=3,
        touched_bytes=TOUCHED_BYTES,
    ),
)
