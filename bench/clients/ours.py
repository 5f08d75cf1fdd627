"""Our Python client as its users call it: `send` per record, `send_many`, `send_table`.

    python bench/clients/ours.py URL STREAM SECONDS send|send_many|send_table

Says in one line of JSON how many records were stored, in how long, and its own CPU time; the
clock stops when the last is stored. `cpu_sending` leaves out the start of the program.
"""

import json
import sys
import time

import pyarrow as pa

from bottomless import Client

VALUE = b"x" * 100
MANY = 1_000
TABLE = 10_000


def main() -> None:
    url, stream, seconds, way = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    count = 0
    table = pa.table({"value": pa.array([VALUE] * TABLE, pa.binary())})
    many = [VALUE] * MANY
    with Client(url) as client:
        started, spent_before = time.perf_counter(), time.process_time()
        deadline = started + seconds
        with client.producer(stream) as producer:
            while time.perf_counter() < deadline:
                if way == "send":
                    for value in many:
                        producer.send(value)
                    count += MANY
                elif way == "send_many":
                    producer.send_many(many)
                    count += MANY
                else:
                    producer.send_table(table)
                    count += TABLE
        spent = time.perf_counter() - started
        sending = time.process_time() - spent_before
    said = {"units": count, "seconds": spent, "cpu": time.process_time(), "cpu_sending": sending}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
