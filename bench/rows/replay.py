"""Reading a stream from its first record to its last, from the node's own disk."""

from typing import Final

import httpx

from bench.figures import Figure, Goal, bytes_ratios, times
from bench.pump import HttpLoad, Load, Request
from bench.rows.append import RECORDS_1M, STREAM
from bench.servers.ours import Ours, running_ours
from bench.servers.rabbitmq import Rabbit, running_rabbitmq
from bench.turns import Row, Runner, Stage
from bench.wire import http, rabbit

RECORDS_PER_SECOND: Final = 1_000_000
"""How much is filled in for each second that a side shall run: some 100 MB."""
PAGE_BYTES: Final = 8 << 20
LOCAL_ONLY: Final = {"fragment": {"target_bytes": 1 << 30, "max_age_ms": 86_400_000}}
"""Nothing is uploaded before there is a gigabyte of it."""
CREDIT: Final = 50
VALUES: Final = "ours, Arrow, columns=value"

FILLED_AT_ONCE = 1_000
"""Requests that are written out for one load: they lie in memory as often as they are sent."""


def fill(ours: Ours, stream: str, records: int) -> int:
    """Append records of 100 bytes in batches of 1 MiB; returns how many there are."""
    request = Request(http.append(stream, http.ARROW, http.arrow_body(RECORDS_1M)), RECORDS_1M)
    count = max(1, records // RECORDS_1M)
    for done in range(0, count, FILLED_AT_ONCE):
        requests = [request] * min(FILLED_AT_ONCE, count - done)
        HttpLoad(ours.port, ours.tree, requests, 1, again=False)(0)
    return count * RECORDS_1M


def pages(
    ours: Ours, stream: str, accept: str, end: int, max_bytes: int, columns: str = ""
) -> list[Request]:
    """The requests that read the stream from 0 to an end, found by reading it once."""
    asked = {"columns": columns} if columns else {}
    more = f"&columns={columns}" if columns else ""
    found: list[Request] = []
    offset = 0
    with httpx.Client(base_url=ours.url, timeout=60) as client:
        while offset < end:
            answer = client.get(
                f"/v1/streams/{stream}/records",
                params={"offset": offset, "max_bytes": max_bytes, **asked},
                headers={"Accept": accept, "Accept-Encoding": "identity"},
            )
            answer.raise_for_status()
            after = int(answer.headers["Page-Next-Offset"])
            assert after > offset
            content = http.page(stream, offset, accept, max_bytes, more)
            found.append(Request(content, after - offset))
            offset = after
    return found


def reader(ours: Ours, requests: list[Request]) -> Runner:
    """One connection that asks for one page after the other."""
    return HttpLoad(ours.port, ours.tree, requests, 1, again=False)


def fill_rabbitmq(server: Rabbit, stream: str, records: int, *, plain: bool) -> tuple[int, Figure]:
    """The same records, each as a message, or many in a sub-entry; returns how many there are."""
    connection = server.connection()
    connection.create(stream)
    connection.declare_publisher(stream)
    if plain:
        request, window = rabbit.plain_request(http.values(2_000)), 20_000
    else:
        request, window = rabbit.batch_request(http.values(9_500)), 95_000
    requests = [request] * max(1, records // request.units)
    figure = Load("rabbit", requests, [connection.socket], window, tree=server.tree).run()
    connection.close()
    return len(requests) * request.units, figure


def consume_rabbitmq(server: Rabbit, stream: str, records: int) -> Runner:
    def run(_: float) -> Figure:
        connection = server.connection()
        try:
            return Load(
                "rabbit-consume",
                [],
                [connection.socket],
                1,
                until=records,
                tree=server.tree,
                greet=lambda: connection.subscribe(stream, CREDIT),
            ).run()
        finally:
            connection.close()

    return run


def _local(stage: Stage) -> None:
    wanted = int(stage.seconds * RECORDS_PER_SECOND)
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create(STREAM, LOCAL_ONLY)
    end = fill(ours, STREAM, wanted)
    for name, accept, columns in (
        ("ours, chunks", http.CHUNKS, ""),
        ("ours, Arrow", http.ARROW, ""),
        (VALUES, http.ARROW, "value"),
    ):
        found = pages(ours, STREAM, accept, end, PAGE_BYTES, columns)
        stage.runners[name] = reader(ours, found)
    with stage.side("RabbitMQ raw"):
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        for name, stream in (("RabbitMQ raw", "plain"), ("RabbitMQ raw, sub-entries", "sub")):
            filled, _ = fill_rabbitmq(server, stream, wanted, plain=stream == "plain")
            stage.runners[name] = consume_rabbitmq(server, stream, filled)


ROWS: Final = (
    Row(
        "replay-local",
        "Replay from the local tier",
        "records",
        (
            times("chunks ≥ 1 x RabbitMQ raw", "ours, chunks", "RabbitMQ raw", 1),
            times("Arrow ≥ 1 x RabbitMQ raw", "ours, Arrow", "RabbitMQ raw", 1),
            Goal(
                "Arrow, in bytes: ≥ 1 x RabbitMQ raw",
                lambda sides: bytes_ratios(sides, "ours, Arrow", "RabbitMQ raw"),
                at_least=1,
            ),
            times("Arrow, columns=value: ≥ 1 x RabbitMQ raw", VALUES, "RabbitMQ raw", 1),
        ),
        _local,
    ),
)
