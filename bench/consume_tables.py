"""What a named consumer gets through: tables and records, beside pages, in one run.

    PYTHONPATH=tests:docs/examples .venv/bin/python -m bench.consume_tables [--records 600000] [--rounds 3]

All three read the same stream of 100-byte records from the same server, in turns; both consumers
commit after each batch. CPU is that of the client alone. The first round warms everything up.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from support.server import AllInOne

from bottomless import Client

STREAM: Final = "tables"
_APPEND_COUNT: Final = 20_000


class Took(NamedTuple):
    seconds: float
    cpu_seconds: float


def fill(client: Client, count: int) -> int:
    client.create_stream(STREAM)
    values = pa.array([b"%0100d" % number for number in range(_APPEND_COUNT)], pa.binary())
    for _ in range(count // _APPEND_COUNT):
        client.append_arrow(STREAM, pa.table({"value": values}))
    return count // _APPEND_COUNT * _APPEND_COUNT


def pages(client: Client, _: str, __: int) -> int:
    return sum(page.table.num_rows for page in client.arrow_pages(STREAM, "first"))


def tables(client: Client, name: str, count: int) -> int:
    found = 0
    with client.consumer(STREAM, name) as consumer:
        for page in consumer.tables():
            found += page.table.num_rows
            consumer.commit()
            if found >= count:
                break
    return found


def records(client: Client, name: str, count: int) -> int:
    found = 0
    with client.consumer(STREAM, name) as consumer:
        for batch in consumer:
            found += len(batch.records)
            consumer.commit()
            if found >= count:
                break
    return found


_SIDES: Final[dict[str, Callable[[Client, str, int], int]]] = {
    "arrow_pages": pages,
    "consumer.tables()": tables,
    "consumer": records,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    took: dict[str, list[Took]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as directory,
        AllInOne(Path(directory) / "data") as server,
        Client(server.url) as client,
    ):
        count = fill(client, options.records)
        for number in range(options.rounds + 1):
            for side, run in _SIDES.items():
                cpu, began = time.process_time(), time.perf_counter()
                found = run(client, f"c{number}-{side.partition('.')[2][:6] or 'records'}", count)
                assert found == count, (side, found)
                if number:
                    took[side].append(Took(time.perf_counter() - began, time.process_time() - cpu))
    for side, runs in took.items():
        seconds = statistics.median(one.seconds for one in runs)
        cpu = statistics.median(one.cpu_seconds for one in runs)
        print(f"{side:18} {count / seconds:12,.0f} records/s   {cpu:6.2f} s of CPU")
    medians = {side: statistics.median(one.seconds for one in runs) for side, runs in took.items()}
    factor = medians["consumer"] / medians["consumer.tables()"]
    print(f"consumer.tables() is {factor:.1f} x the consumer of records")


if __name__ == "__main__":
    main()
