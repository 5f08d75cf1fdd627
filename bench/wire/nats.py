"""The protocol of NATS and its JetStream, as far as a load needs it: lines of text.

Written from its public description. A publish with a reply subject is acknowledged by a
message; a pull of so many messages brings so many.
"""

import json
import socket
from collections.abc import Sequence
from typing import Any, Final

from bench.pump import Request, connect

INBOX: Final = "_INBOX.bench"
SUBJECT: Final = "bench"


def publish(
    values: Sequence[bytes], subject: str = SUBJECT, inbox: str = INBOX, tag: int = 0
) -> Request:
    """Each value as a message of its own, all of them sent at once; each is acknowledged.

    With a tag by a message to the inbox's subject with that tag after it.
    """
    inbox = f"{inbox}.{tag}" if tag else inbox
    parts = [
        b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(value), value)
        for value in values
    ]
    return Request(b"".join(parts), units=len(values), replies=len(values), tag=tag)


def publish_atomic(values: Sequence[bytes], subject: str, inbox: str, tag: int) -> Request:
    """All values as one batch that is kept whole or not at all, and acknowledged once."""
    parts = []
    for number, value in enumerate(values, 1):
        head = f"NATS/1.0\r\nNats-Batch-Id: {tag}\r\nNats-Batch-Sequence: {number}\r\n"
        last = number == len(values)
        head += "Nats-Batch-Commit: 1\r\n\r\n" if last else "\r\n"
        reply = f"{inbox}.{tag} " if last else ""
        line = f"HPUB {subject} {reply}{len(head)} {len(head) + len(value)}\r\n"
        parts.append(line.encode() + head.encode() + value + b"\r\n")
    return Request(b"".join(parts), units=len(values), replies=1, tag=tag)


def pull(consumer: str, count: int, subject: str = SUBJECT, inbox: str = INBOX) -> Request:
    asked = json.dumps({"batch": count, "expires": 30_000_000_000}).encode()
    head = f"PUB $JS.API.CONSUMER.MSG.NEXT.{subject}.{consumer} {inbox} {len(asked)}\r\n"
    return Request(head.encode() + asked + b"\r\n", units=count, replies=count)


class Connection:
    """A connection that has said who it is, with an inbox of its own.

    Whoever subscribes to a subject gets all that is sent to it, so no two may share one.
    """

    def __init__(self, port: int, inbox: str = INBOX) -> None:
        self.inbox = inbox
        self.socket: socket.socket = connect(port)
        self._line()
        hello = json.dumps({"verbose": False, "pedantic": False, "headers": True})
        self.socket.sendall(
            f"CONNECT {hello}\r\nSUB {inbox} 1\r\nSUB {inbox}.* 2\r\nPING\r\n".encode()
        )
        while self._line() != b"PONG":
            pass

    def ask(self, call: str, content: dict[str, Any]) -> dict[str, Any]:
        """A call of the JetStream API."""
        asked = json.dumps(content).encode()
        self.socket.sendall(
            f"PUB $JS.API.{call} {self.inbox} {len(asked)}\r\n".encode() + asked + b"\r\n"
        )
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")
        size = int(line.split()[-1])
        answer = b""
        while len(answer) < size + 2:
            answer += self.socket.recv(size + 2 - len(answer))
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise RuntimeError(f"NATS answers {found['error']}")
        return found

    def create(self, subject: str = SUBJECT, *, atomic: bool = False) -> None:
        """A stream of the same name as its subject, in files; `atomic`: it takes whole batches."""
        config = {"name": subject, "subjects": [subject], "storage": "file", "num_replicas": 1}
        self.ask(f"STREAM.CREATE.{subject}", {**config, "allow_atomic": atomic})

    def create_work_queue(self, subject: str, consumer: str) -> None:
        """A stream whose messages go when they are acknowledged, and its one consumer."""
        config = {"name": subject, "subjects": [subject], "storage": "file", "num_replicas": 1}
        self.ask(f"STREAM.CREATE.{subject}", {**config, "retention": "workqueue"})
        config = {"durable_name": consumer, "ack_policy": "explicit", "max_ack_pending": 10_000}
        asked = {"stream_name": subject, "config": config}
        self.ask(f"CONSUMER.DURABLE.CREATE.{subject}.{consumer}", asked)

    def delete(self, subject: str) -> None:
        self.ask(f"STREAM.DELETE.{subject}", {})

    def create_consumer(self, name: str) -> None:
        config = {"durable_name": name, "ack_policy": "none", "deliver_policy": "all"}
        asked = {"stream_name": SUBJECT, "config": config}
        self.ask(f"CONSUMER.DURABLE.CREATE.{SUBJECT}.{name}", asked)

    def _line(self) -> bytes:
        """One line; a byte at a time, since what follows belongs to somebody else."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            got = self.socket.recv(1)
            if not got:
                raise ConnectionError("NATS hung up")
            line += got
        return bytes(line[:-2])
