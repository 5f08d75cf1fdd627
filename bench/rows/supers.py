"""Super streams beside one stream: the same records, and the same bytes, sent to both."""

from typing import Final

import httpx
import pyarrow as pa

from bench.figures import times
from bench.pump import HttpLoad, Request
from bench.servers.ours import running_ours
from bench.turns import Row, Stage
from bench.wire import http

RECORDS_1M: Final = 8_000
"""Of 100 bytes with keys of 16, as Arrow some 1 MB."""
KEYS: Final = 1_000
PARTITIONS: Final = 8
CONNECTIONS: Final = 4
ONE: Final = "one stream"
MANY: Final = f"{PARTITIONS} partitions"


def body() -> bytes:
    """An Arrow stream of records with keys, each key as often as any other."""
    keys = [b"customer-%07d" % (number % KEYS) for number in range(RECORDS_1M)]
    columns = {"value": pa.array(http.values(RECORDS_1M), pa.binary()), "key": pa.array(keys)}
    rows = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue().to_pybytes())


def _produce(stage: Stage) -> None:
    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create("one")
    answer = httpx.put(
        f"{ours.url}/v1/super-streams/many", json={"partitions": PARTITIONS}, timeout=60
    )
    answer.raise_for_status()
    # The first request to a partition opens it, which takes longer than a warm-up may.
    path = f"{ours.url}/v1/super-streams/many/records"
    headers = {"Content-Type": http.ARROW}
    httpx.post(path, content=body(), headers=headers, timeout=60).raise_for_status()
    content = http.append("one", http.ARROW, body())
    divided = content.replace(b"/v1/streams/one/", b"/v1/super-streams/many/", 1)
    for side, sent in ((ONE, content), (MANY, divided)):
        request = Request(sent, RECORDS_1M)
        stage.runners[side] = HttpLoad(ours.port, ours.tree, [request], CONNECTIONS)
    stage.notes.append("Both sides are streams of one server, and take turns.")


ROWS: Final = (
    Row(
        "super-produce",
        f"Arrow of 1 MiB with keys over {PARTITIONS} partitions, beside one stream",
        "records",
        (times("≥ 0.6 x the same bytes into one stream", MANY, ONE, 0.6),),
        _produce,
    ),
)
