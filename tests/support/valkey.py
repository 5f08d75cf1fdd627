"""A real Valkey for tests, and what a test needs to look behind the port."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from bottomless_server.coordination.embedded import EmbeddedValkey


@contextmanager
def running_valkey(data_dir: Path) -> Iterator[EmbeddedValkey]:
    """Start one on `data_dir`; call from the main thread only."""
    valkey = EmbeddedValkey(data_dir)
    valkey.start()
    try:
        yield valkey
    finally:
        valkey.stop()


@contextmanager
def another_client(url: str) -> Iterator["redis.Redis"]:
    """A client that knows nothing of our ports, and blocks."""
    client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()


def command(client: "redis.Redis", *words: str) -> None:
    """Send what the client has no typed method for."""
    client.execute_command(*words)  # type: ignore[no-untyped-call]
