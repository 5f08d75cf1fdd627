"""Python clients of other queues, as their users call them; says what ours.py says.

    python bench/clients/queue_peers.py pika|pika-blocking|greenstalk|redis PORT QUEUE SECONDS

Over and over each publishes a batch of messages of 1 KiB, takes as many and acknowledges them; a unit is
a message that was acknowledged. `pika` sends a batch and then waits for its confirms, which takes its
connection of callbacks; `pika-blocking` waits for each confirm, as the one without does. Both have
messages pushed.
"""

import json
import sys
import time
from typing import Any

import greenstalk
import pika
import redis

MANY = 100
VALUES = [b"%010d" % number + b"x" * 1_014 for number in range(MANY)]
GROUP = "clients"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def parameters(port: int) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)


class Callbacks:
    """A worker on pika's connection of callbacks."""

    def __init__(self, port: int, queue: str, seconds: float) -> None:
        self.queue = queue
        self.deadline = time.perf_counter() + seconds
        self.count = self.unconfirmed = self.held = self.published = 0
        self.last_tag = 0
        self.confirmed: set[int] = set()
        self.connection = pika.SelectConnection(parameters(port), on_open_callback=self.on_open)
        self.channel: Any = None

    def on_open(self, _: Any) -> None:
        self.connection.channel(on_open_callback=self.on_channel)

    def on_channel(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self.on_confirm, callback=self.on_selected)

    def on_selected(self, _: Any) -> None:
        self.channel.basic_qos(prefetch_count=MANY)
        self.channel.basic_consume(self.queue, self.on_message)
        self.publish()

    def publish(self) -> None:
        if time.perf_counter() >= self.deadline:
            self.connection.close()
            self.connection.ioloop.stop()
            return
        for value in VALUES:
            self.channel.basic_publish("", self.queue, value, PERSISTENT)
        self.unconfirmed = MANY
        self.confirmed.clear()

    def on_confirm(self, frame: Any) -> None:
        last = frame.method.delivery_tag - self.published
        first = 1 if frame.method.multiple else last
        self.confirmed.update(range(first, last + 1))
        self.unconfirmed = MANY - len(self.confirmed)
        self.go_on()

    def on_message(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        assert body
        self.held += 1
        self.last_tag = method.delivery_tag
        self.go_on()

    def go_on(self) -> None:
        if self.unconfirmed or self.held < MANY:
            return
        self.channel.basic_ack(self.last_tag, multiple=True)
        self.count += self.held
        self.published += MANY
        self.held = 0
        self.publish()


def by_callbacks(port: int, queue: str, seconds: float) -> int:
    worker = Callbacks(port, queue, seconds)
    worker.connection.ioloop.start()
    return worker.count


def blocking(port: int, queue: str, seconds: float) -> int:
    connection = pika.BlockingConnection(parameters(port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=MANY)
    count = 0
    deadline = time.perf_counter() + seconds
    deliveries = channel.consume(queue)
    while time.perf_counter() < deadline:
        for value in VALUES:
            channel.basic_publish("", queue, value, PERSISTENT)
        tag = 0
        for _ in range(MANY):
            method, _, body = next(deliveries)
            assert body
            tag = method.delivery_tag
        channel.basic_ack(tag, multiple=True)
        count += MANY
    channel.cancel()
    connection.close()
    return count


def on_tube(port: int, queue: str, seconds: float) -> int:
    count = 0
    deadline = time.perf_counter() + seconds
    with greenstalk.Client(("127.0.0.1", port), use=queue, watch=queue, encoding=None) as client:
        while time.perf_counter() < deadline:
            # Each of its jobs is synced by itself, so a whole batch would end late.
            for value in VALUES[:10]:
                client.put(value)
            for _ in range(10):
                job = client.reserve(timeout=30)
                assert job.body
                client.delete(job)
            count += 10
    return count


def in_group(port: int, queue: str, seconds: float) -> int:
    count = 0
    deadline = time.perf_counter() + seconds
    with redis.Redis(port=port) as client:
        client.xgroup_create(queue, GROUP, "0", mkstream=True)
        while time.perf_counter() < deadline:
            with client.pipeline(transaction=False) as pipe:
                for value in VALUES:
                    pipe.xadd(queue, {"v": value})
                pipe.execute()
            [(_, entries)] = client.xreadgroup(GROUP, "one", {queue: ">"}, count=MANY)
            ids = [entry_id for entry_id, _ in entries]
            with client.pipeline(transaction=False) as pipe:
                pipe.xack(queue, GROUP, *ids)
                pipe.xdel(queue, *ids)
                pipe.execute()
            count += len(ids)
        client.delete(queue)
    return count


def main() -> None:
    peer, port, queue, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    work = {
        "pika": by_callbacks,
        "pika-blocking": blocking,
        "greenstalk": on_tube,
        "redis": in_group,
    }[peer]
    started, spent_before = time.perf_counter(), time.process_time()
    count = work(port, queue, seconds)
    spent = time.perf_counter() - started
    working = time.process_time() - spent_before
    said = {"units": count, "seconds": spent, "cpu": time.process_time(), "cpu_sending": working}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
