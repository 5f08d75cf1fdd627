"""A broker whose queues are filled, stopped in two ways, and drained: the oracle of what it wrote.

The broker is Debian's `rabbitmq-server`, and `pika` speaks to it; neither is installed into the system.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psutil

from bench.place import CACHE, Missing
from bench.servers.rabbitmq import Node, Rabbit, running_rabbitmq
from support.waiting import until

GOLDEN: Final = Path(__file__).parents[1] / "golden/rabbitmq-queues"
UV: Final = Path(__file__).parents[2] / ".tool/bin/uv"
SECOND_VHOST: Final = "shop/eu"
NODE_NAME: Final = "golden"
STOP_SECONDS: Final = 120
EXPIRATION_MS: Final = 400 * 86_400_000
SMALL: Final = Node(
    NODE_NAME,
    (SECOND_VHOST,),
    # Small files, so that there are several of each kind, and that the message store compacts.
    "[{rabbit, [{msg_store_file_size_limit, 40000}, {queue_index_max_journal_entries, 40}, "
    "{queue_index_segment_entry_count, 16}, {classic_queue_index_v2_segment_entry_count, 16}]}].",
)
PROPERTIES: Final[dict[str, Any]] = {
    "content_encoding": "identity",
    "correlation_id": "c-7",
    "reply_to": "answers",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order.placed",
    "user_id": "guest",
    "app_id": "till",
}
HEADERS: Final[dict[str, Any]] = {
    "text": "größe",
    "yes": True,
    "small": -3,
    "large": 2**40,
    "ratio": Decimal("0.5"),
    "none": None,
    "nested": {"list": [1, "two", {"three": 3}]},
    "raw": b"\x00\xff",
}


@dataclass(frozen=True)
class Drained:
    """A message as a broker delivered it."""

    body: bytes
    properties: dict[str, Any]
    exchange: str
    routing_key: str


def pika() -> Any:
    """The client, from a directory of its own.

    Raises:
        Missing: it cannot be had.
    """
    target = CACHE / "pika"
    if not (target / "pika").exists():
        command: list[str | Path] = [UV, "pip", "install", "--quiet", "--require-hashes"]
        command += ["--python", sys.executable, "--target", target]
        command += ["-r", GOLDEN / "requirements.txt"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"pika cannot be had: {done.stderr.strip()[-300:]}")
    if str(target) not in sys.path:
        sys.path.append(str(target))
    return importlib.import_module("pika")


@contextmanager
def channel(rabbit: Rabbit, vhost: str) -> Iterator[Any]:
    """A channel whose publishes are confirmed."""
    parameters = pika().ConnectionParameters(
        "127.0.0.1", rabbit.amqp_port, vhost, connection_attempts=100, retry_delay=0.2, heartbeat=0
    )
    connection = pika().BlockingConnection(parameters)
    try:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened
    finally:
        connection.close()


QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain-1": {"x-queue-version": 1},
    "plain-2": {"x-queue-version": 2},
    "lazy-1": {"x-queue-version": 1, "x-queue-mode": "lazy"},
    "lazy-2": {"x-queue-version": 2, "x-queue-mode": "lazy"},
    "urgent-1": {"x-queue-version": 1, "x-max-priority": 10},
    "urgent-2": {"x-queue-version": 2, "x-max-priority": 3},
    "fan-a": {"x-queue-version": 1},
    "fan-b": {"x-queue-version": 2},
    "fan-c": {"x-queue-version": 1, "x-queue-mode": "lazy"},
    "dead letters": {"x-queue-version": 1},
    "dies": {
        "x-queue-version": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead letters",
    },
    "empty": {},
}


def fill(
    rabbit: Rabbit,
    vhost: str,
    sizes: Sequence[int],
    fan_sizes: Sequence[int],
    churn_count: int,
) -> None:
    """Everything that a queue may hold; a third of most queues is acknowledged out of order."""
    with channel(rabbit, vhost) as it:
        it.exchange_declare("news", "fanout", durable=True)
        for name, arguments in QUEUES.items():
            it.queue_declare(name, durable=True, arguments=arguments)
            if name.startswith("fan-"):
                it.queue_bind(name, "news")
        it.queue_declare("temporary", durable=False)
        for name in ("plain-1", "plain-2", "lazy-1", "lazy-2", "urgent-1", "urgent-2"):
            for number, size in enumerate(sizes):
                publish(it, name, body(f"{vhost} {name}", number, size), priority=number % 12)
        for number in range(20):
            for name in ("plain-1", "plain-2"):
                publish(it, name, b'{"n":%d}' % number, content_type="application/json")
        publish(
            it, "plain-1", b"everything", content_type="text/plain", headers=HEADERS, **PROPERTIES
        )
        publish(
            it, "plain-2", b"everything", content_type="text/plain", headers=HEADERS, **PROPERTIES
        )
        for name in ("plain-1", "plain-2", "lazy-1"):
            publish(it, name, b"for a year", expiration=str(EXPIRATION_MS))
            publish(it, name, b"transient", delivery_mode=1)
        publish(it, "temporary", b"gone")
        for number, size in enumerate(fan_sizes):
            publish(it, "", body(f"{vhost} fan", number, size), exchange="news")
        publish(it, "dies", b"rejected", headers={"why": "test"})
        (method, _, _) = it.basic_get("dies")
        it.basic_reject(method.delivery_tag, requeue=False)
        # Nobody confirms a dead letter: what is confirmed after it in its queue has it before it.
        until(lambda: it.queue_declare("dead letters", passive=True).method.message_count == 1)
        publish(it, "dead letters", b"after the dead one")
        for name in QUEUES:
            if name not in ("dead letters", "empty", "dies"):
                _acknowledge_a_third(it, name)
        if churn_count:
            _let_it_compact(it, vhost, churn_count)


def publish(it: Any, queue: str, content: bytes, exchange: str = "", **properties: Any) -> None:
    properties.setdefault("delivery_mode", 2)
    it.basic_publish(exchange, queue, content, pika().BasicProperties(**properties))


def body(name: str, number: int, size: int) -> bytes:
    """Bytes that say whose they are, over and over."""
    line = f"{name} {number}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def _acknowledge_a_third(it: Any, queue: str) -> None:
    tags = []
    while True:
        method, _, _ = it.basic_get(queue)
        if method is None:
            break
        tags.append(method.delivery_tag)
    for tag in reversed(tags[1::3]):
        it.basic_ack(tag)
    for tag in tags:
        if tag not in tags[1::3]:
            it.basic_nack(tag, requeue=True)


def _let_it_compact(it: Any, vhost: str, count: int) -> None:
    """Most of many messages are acknowledged, a few of each file stay."""
    it.queue_declare("churn", durable=True, arguments={"x-queue-version": 1})
    for number in range(count):
        publish(it, "churn", body(f"{vhost} churn", number, 5_000))
    got = [it.basic_get("churn")[0].delivery_tag for _ in range(count)]
    for number, tag in enumerate(got):
        if number % 12:
            it.basic_ack(tag)
        else:
            it.basic_nack(tag, requeue=True)
    # Files are looked at when another one is full.
    for number in range(5):
        publish(it, "churn", body(f"{vhost} later", number, 5_000))
        method, _, _ = it.basic_get("churn")
        it.basic_ack(method.delivery_tag)


def drain(rabbit: Rabbit, vhost: str) -> dict[str, list[Drained]]:
    """All messages of all durable queues, in the order of their delivery."""
    found: dict[str, list[Drained]] = {}
    with channel(rabbit, vhost) as it:
        it.queue_declare("churn", durable=True, arguments={"x-queue-version": 1})
        for name in (*QUEUES, "churn"):
            got = found[name] = []
            while True:
                method, properties, content = it.basic_get(name)
                if method is None:
                    break
                there = {key: value for key, value in vars(properties).items() if value is not None}
                got.append(Drained(content, there, method.exchange, method.routing_key))
    return found


def stop(rabbit: Rabbit, number: signal.Signals) -> None:
    """Let it end by a signal to its virtual machine, and wait until it has."""
    [pid] = rabbit.tree.pids
    machines = [one for one in psutil.Process(pid).children(recursive=True) if "beam" in one.name()]
    assert machines, "there is no beam"
    for machine in machines:
        os.kill(machine.pid, number)
    psutil.wait_procs(machines, timeout=STOP_SECONDS)


def store_of(node: Path) -> Path:
    """The directory with the vhosts' message stores."""
    [found] = node.glob("data/*/msg_stores/vhosts")
    return found


def copied(node: Path, target: Path) -> Path:
    """What a node keeps, for another one of the same name to start on."""
    shutil.copytree(node / "data", target / "data")
    return target


def as_json(drained: dict[str, list[Drained]]) -> dict[str, list[dict[str, Any]]]:
    """What was delivered, as `drained.json` keeps it: of bodies their digests."""
    return {
        name: [
            {
                "sha256": hashlib.sha256(one.body).hexdigest(),
                "size": len(one.body),
                "exchange": one.exchange,
                "routing_key": one.routing_key,
                "properties": json.loads(json.dumps(one.properties, default=_plain)),
            }
            for one in messages
        ]
        for name, messages in drained.items()
        if messages
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return str(value)


def main(directory: Path) -> None:
    """Write the directory of a broker that was killed, and what it would have delivered."""
    vhosts = ("/", SECOND_VHOST)
    with tempfile.TemporaryDirectory() as scratch:
        node = Path(scratch) / "node"
        with running_rabbitmq(node, SMALL) as rabbit:
            fill(rabbit, "/", (0, 100, 4_095, 4_096, 10, 11), (70_000, 300, 4_096), 0)
            fill(rabbit, SECOND_VHOST, (0, 100), (300,), 24)
            stop(rabbit, signal.SIGKILL)
        other = copied(node, Path(scratch) / "oracle")
        with running_rabbitmq(other, SMALL) as rabbit:
            found = {vhost: as_json(drain(rabbit, vhost)) for vhost in vhosts}
        shutil.rmtree(directory / "node", ignore_errors=True)
        shutil.copytree(
            store_of(node),
            directory / "node/msg_stores/vhosts",
            ignore=shutil.ignore_patterns("msg_store_transient", "recovery.dets", "*.ets"),
        )
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    (directory / "drained.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
