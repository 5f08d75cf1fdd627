"""Appends of batches: ours, RabbitMQ's two ways, and the least that a server can do."""

from typing import Final, Literal

from bench.figures import Figure, at_most, times
from bench.pump import HttpLoad, Load, Request
from bench.rows.peers import add_kafka, add_nats, add_valkey
from bench.servers.ours import Ours, running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.servers.reference import running_reference
from bench.turns import Row, Runner, Stage
from bench.wire import http, rabbit

RECORDS_1M: Final = 10_000
"""Of 100 bytes, with their Arrow offsets 1.04 MB."""
RECORDS_64K: Final = 620
RECORDS_10K: Final = 100
STREAM: Final = "bench"
LARGE_CONNECTIONS: Final = 4
SMALL_CONNECTIONS: Final = 8
PIPELINE_DEPTH: Final = 8
TOUCHED_BYTES: Final = 4 << 30
"""More than the fastest side writes in a second."""
RABBIT_KEEPS: Final = {
    "max-length-bytes": "2000000000",
    "stream-max-segment-size-bytes": "500000000",
}
"""Its own default for segments and a bound, so that a long run does not fill the disk."""


def appends(ours: Ours, stream: str, content_type: str, records: int, connections: int) -> Runner:
    """Batches of so many records into one stream, one after the other on each connection."""
    make = {
        http.ARROW: http.arrow_body,
        http.FRAMES: http.frames_body,
    }[content_type]
    request = Request(http.append(stream, content_type, make(records)), records)
    return HttpLoad(ours.port, ours.tree, [request], connections)


def add_ours(stage: Stage, records: int, connections: int, level: str) -> None:
    """Our side twice: as an Arrow stream, and as frames of our own format."""
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    if not ours.create(STREAM, {"durability": level}):
        ours.create(STREAM)
        if level != "fsync":
            stage.notes.append(
                f"This version has no durability `{level}`: its figures are those of `fsync`."
            )
    stage.runners["ours"] = appends(ours, STREAM, http.ARROW, records, connections)
    stage.runners["ours, frames"] = appends(ours, STREAM, http.FRAMES, records, connections)


def add_reference(
    stage: Stage, level: Literal["null", "os", "fsync"], records: int, connections: int
) -> None:
    name = {"null": "no work at all"}.get(level, f"C reference, {level}")
    with stage.side(name):
        server = stage.stack.enter_context(running_reference(stage.directory / level, level))
        request = Request(http.append(STREAM, http.ARROW, http.arrow_body(records)), records)
        stage.runners[name] = HttpLoad(server.port, server.tree, [request], connections)


def add_rabbitmq(stage: Stage) -> None:
    """Its server limit: single messages and sub-entries, each as large as a frame may be."""
    with stage.side("RabbitMQ sub-entries"):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        for name, request, window in (
            ("RabbitMQ plain", rabbit.plain_request(http.values(2_000)), 20_000),
            ("RabbitMQ sub-entries", rabbit.batch_request(http.values(9_500)), 95_000),
        ):
            stream = name.split()[1]
            sockets = []
            for number in range(2):
                connection = server.connection()
                if not number:
                    connection.create(stream, RABBIT_KEEPS)
                connection.declare_publisher(stream)
                sockets.append(connection.socket)
            stage.runners[name] = Load("rabbit", [request], sockets, window, tree=server.tree).run


def _large_os(stage: Stage) -> None:
    add_ours(stage, RECORDS_1M, LARGE_CONNECTIONS, "os")
    add_reference(stage, "os", RECORDS_1M, LARGE_CONNECTIONS)
    add_reference(stage, "null", RECORDS_1M, LARGE_CONNECTIONS)
    add_rabbitmq(stage)
    add_kafka(stage)
    add_nats(stage, always=False)
    add_valkey(stage, always=False)


def _large_fsync(stage: Stage) -> None:
    add_ours(stage, RECORDS_1M, LARGE_CONNECTIONS, "fsync")
    add_reference(stage, "fsync", RECORDS_1M, LARGE_CONNECTIONS)
    add_valkey(stage, always=True)
    add_nats(stage, always=True, batch=20)


def _small_fsync(stage: Stage) -> None:
    add_ours(stage, RECORDS_64K, SMALL_CONNECTIONS, "fsync")
    add_reference(stage, "fsync", RECORDS_64K, SMALL_CONNECTIONS)


def _pipelined(stage: Stage, records: int) -> None:
    """Eight connections, each with eight requests that wait for their answers."""
    request = Request(http.append(STREAM, http.ARROW, http.arrow_body(records)), records)
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create(STREAM)
    reference = stage.stack.enter_context(running_reference(stage.directory / "fsync", "fsync"))
    for name, server in (("ours", ours), ("C reference, fsync", reference)):
        stage.runners[name] = HttpLoad(
            server.port, server.tree, [request], SMALL_CONNECTIONS, depth=PIPELINE_DEPTH
        )


def _pipelined_10k(stage: Stage) -> None:
    _pipelined(stage, RECORDS_10K)


def _pipelined_64k(stage: Stage) -> None:
    _pipelined(stage, RECORDS_64K)


def _cpu(figure: Figure) -> float:
    return figure.cpu_per_million


def _cpu_of_10k(figure: Figure) -> float:
    """Milliseconds of CPU of one append."""
    return figure.cpu_per_million * RECORDS_10K / 1000


def _cpu_of_64k(figure: Figure) -> float:
    """Milliseconds of CPU of one append."""
    return figure.cpu_per_million * RECORDS_64K / 1000


ROWS: Final = (
    Row(
        "append-os",
        "Append, Arrow batches of 1 MiB, 100 B records, durability `os`",
        "records",
        (
            times("≥ 1.2 x RabbitMQ sub-entries", "ours", "RabbitMQ sub-entries", 1.2),
            times("≥ 10 x RabbitMQ plain batches", "ours", "RabbitMQ plain", 10),
            times("≥ 0.5 x the C reference", "ours", "C reference, os", 0.5),
        ),
        _large_os,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "append-fsync",
        "The same, durability `fsync`",
        "records",
        (
            times("≥ 0.6 x the C reference with fdatasync", "ours", "C reference, fsync", 0.6),
            times("≥ 20 x Valkey, always", "ours", "Valkey, always", 20),
            at_most("≤ 0.25 CPU s per million records", "ours", _cpu, 0.25, "CPU s/M"),
        ),
        _large_fsync,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "append-64k",
        "Append 64 KiB batches, `fsync`, 8 connections",
        "records",
        (
            times("≥ 0.7 x the C reference", "ours", "C reference, fsync", 0.7),
            at_most("≤ 0.35 ms CPU an append", "ours", _cpu_of_64k, 0.35, "ms"),
        ),
        _small_fsync,
        touched_bytes=TOUCHED_BYTES,
    ),
    Row(
        "append-pipelined-10k",
        "Append batches of 10 KB, `fsync`, 8 connections with 8 requests under way each",
        "records",
        (
            times("≥ 0.7 x the C reference", "ours", "C reference, fsync", 0.7),
            at_most("≤ 0.14 ms CPU an append", "ours", _cpu_of_10k, 0.14, "ms"),
        ),
        _pipelined_10k,
        guess_seconds=60,
    ),
    Row(
        "append-pipelined-64k",
        "Append 64 KiB batches, `fsync`, 8 connections with 8 requests under way each",
        "records",
        (
            times("≥ 0.55 x the C reference", "ours", "C reference, fsync", 0.55),
            at_most("≤ 0.35 ms CPU an append", "ours", _cpu_of_64k, 0.35, "ms"),
        ),
        _pipelined_64k,
        guess_seconds=60,
        touched_bytes=TOUCHED_BYTES,
    ),
)
