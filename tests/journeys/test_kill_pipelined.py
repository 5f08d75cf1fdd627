"""`kill -9` under appends that are pipelined: what was answered is there, at its offset.

Clients keep several appends under way on each connection and read answers in order, so many of
those that are stored by one round come from one connection. A process that really dies tells what
`unit/ingest/test_append_order.py` cannot: that an answer which left the process was true.
"""

import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
from support.server import AllInOne
from support.waiting import until

from bottomless.formats.batch import schema_of
from bottomless.model.record import Columns

STREAMS = ("first", "second", "third")
CONNECTIONS = 4
DEPTH = 6
ANSWERS = 100
"""How many there are at the first kill; after it, as many again."""
KILLS = 2
ARROW = "application/vnd.apache.arrow.stream"
SIZES = (1, 7, 100, 620)


@dataclass
class Ledger:
    """What was answered: of each stream the values that an offset was told for."""

    told: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    lost: int = 0
    """Appends without an answer."""
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, count: int) -> bool:
        return len(self.told) >= count


def arrow(values: list[bytes]) -> bytes:
    batch = pa.record_batch([pa.array(values, pa.binary())], schema=schema_of(Columns.VALUE))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def requests(number: int) -> Iterator[tuple[str, list[bytes], bytes]]:
    """Without an end: the stream, the values, which nobody else sends, and the bytes."""
    count = 0
    while True:
        size, name = SIZES[count % len(SIZES)], STREAMS[(number + count) % len(STREAMS)]
        values = [b"%d-%d-%d" % (number, count, n) + b"y" * (n % 150) for n in range(size)]
        body = arrow(values)
        head = (
            f"POST /v1/streams/{name}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: {ARROW}"
            f"\r\nPrefer: return=minimal\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield name, values, head.encode() + body
        count += 1


def produce(address: tuple[str, int], number: int, ledger: Ledger, stop: threading.Event) -> None:
    """Keep appends under way until the connection ends, or until all is answered."""
    waiting: deque[tuple[str, list[bytes]]] = deque()
    try:
        with socket.create_connection(address, 60) as peer, peer.makefile("rb") as answers:
            for name, values, message in requests(number):
                if stop.is_set():
                    break
                peer.sendall(message)
                waiting.append((name, values))
                if len(waiting) == DEPTH:
                    take(answers, waiting, ledger)
            while waiting:
                take(answers, waiting, ledger)
    except OSError:
        # It died. What it may have stored without an answer is nobody's.
        pass
    with ledger.lock:
        ledger.lost += len(waiting)


def take(answers: IO[bytes], waiting: deque[tuple[str, list[bytes]]], ledger: Ledger) -> None:
    """Read one answer, which is for the oldest that waits."""
    head = []
    while line := answers.readline():
        if line == b"\r\n":
            break
        head.append(line.decode().lower())
    else:
        raise ConnectionResetError
    name, values = waiting.popleft()
    found = dict(line.rstrip().split(": ", 1) for line in head[1:])
    with ledger.lock:
        if " 204 " not in head[0]:
            ledger.faults.append(head[0])
            return
        ledger.told[name, int(found["stream-first-offset-appended"])] = values


def read(client: httpx.Client, name: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        page = client.get(
            f"/v1/streams/{name}/records", params={"offset": offset}, headers={"accept": ARROW}
        )
        page.raise_for_status()
        table = pa.ipc.open_stream(page.content).read_all()
        if not table.num_rows:
            return found
        rows: list[dict[str, Any]] = table.select(["offset", "value"]).to_pylist()
        for row in rows:
            assert row["offset"] not in found
            found[row["offset"]] = row["value"]
        offset = int(page.headers["page-next-offset"])


def test_what_was_answered_to_pipelined_appends_is_at_its_offset_after_kills(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    with AllInOne(tmp_path / "data") as server:
        with server.client() as client:
            for name in STREAMS:
                config = {"fragment": {"max_age_ms": 300}}
                client.put(f"/v1/streams/{name}", json=config).raise_for_status()
        for kill in range(KILLS):
            where, stop = urlsplit(server.url), threading.Event()
            address = (where.hostname or "", where.port or 0)
            producers = [
                threading.Thread(target=produce, args=(address, 10 * kill + n, ledger, stop))
                for n in range(CONNECTIONS)
            ]
            for producer in producers:
                producer.start()
            wanted = ANSWERS * (kill + 1)
            until(partial(ledger.has, wanted))
            server.kill()
            stop.set()
            for producer in producers:
                producer.join()
            server.start()
        with server.client() as client:
            stored = {name: read(client, name) for name in STREAMS}
    assert ledger.faults == []
    assert ledger.lost, "nothing was under way when it was killed"
    missing = [
        (name, first)
        for (name, first), values in ledger.told.items()
        if [stored[name].get(first + n) for n in range(len(values))] != values
    ]
    assert missing == []
    for values in stored.values():
        assert sorted(values) == list(range(len(values)))
        assert len(set(values.values())) == len(values)
