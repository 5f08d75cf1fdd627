"""Our Python client on a queue, as its users call it; says what ours.py says.

    python bench/clients/queue_ours.py URL QUEUE SECONDS

Over and over it publishes a batch of messages of 1 KiB, receives as many and acknowledges them. A unit
is a message that was acknowledged.
"""

import json
import sys
import time

from bottomless import Client

MANY = 100
VALUES = [f"{number:010}" + "x" * 1_014 for number in range(MANY)]


def main() -> None:
    url, queue, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    count = 0
    with Client(url) as client:
        started, spent_before = time.perf_counter(), time.process_time()
        while time.perf_counter() < started + seconds:
            client.publish(queue, VALUES)
            messages = client.receive(queue, limit=MANY, max_wait_ms=5_000)
            assert all(message.value for message in messages)
            client.ack(queue, messages)
            count += len(messages)
        spent = time.perf_counter() - started
        working = time.process_time() - spent_before
    said = {"units": count, "seconds": spent, "cpu": time.process_time(), "cpu_sending": working}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
