"""Commands of beanstalkd as bytes. What it calls a tube is a queue, and a job a message."""

import socket
from collections.abc import Sequence
from typing import Final

from bench.pump import Request, connect

PRIORITY: Final = 100
SECONDS_TO_RUN: Final = 60
"""A job that is not deleted within so long is given out again."""
WAIT_SECONDS: Final = 30


def put(values: Sequence[bytes]) -> Request:
    """Each value as a job of its own, all of them sent at once; each is answered."""
    parts = [
        b"put %d 0 %d %d\r\n%s\r\n" % (PRIORITY, SECONDS_TO_RUN, len(value), value)
        for value in values
    ]
    return Request(b"".join(parts), units=len(values), replies=len(values))


def reserve(count: int) -> Request:
    """So many jobs."""
    content = b"reserve-with-timeout %d\r\n" % WAIT_SECONDS * count
    return Request(content, units=count, replies=count)


def connection(port: int, tube: str) -> socket.socket:
    """A connection that puts into one tube and takes out of it alone."""
    made = connect(port)
    made.sendall(b"use %s\r\nwatch %s\r\nignore default\r\n" % ((tube.encode(),) * 2))
    answers = b""
    while answers.count(b"\r\n") < 3:
        got = made.recv(256)
        if not got:
            raise ConnectionError("beanstalkd hung up")
        answers += got
    if not answers.startswith(b"USING"):
        raise RuntimeError(f"beanstalkd answers {answers!r}")
    return made
