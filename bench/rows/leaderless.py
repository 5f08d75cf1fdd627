"""What all rows of leaderless streams need.

Each side that needs settings of its own starts its server in its turn, so that no idle server is in
another's way. Requests are counted by the server itself; `./dev loadtest` holds these counters to what
S3 proxies saw.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from support.processes import internal_client

from bench.pump import Request
from bench.servers.ours import Ours, running_ours
from bench.wire import http
from bottomless_server.runtime.listener.listeners import internal_url

LEADERLESS: Final = {"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}
"""Nothing is compacted for its age while it is measured."""
RECORDS: Final = 10
"""Of an append: 1 KB."""
WAIT_SECONDS: Final = 300.0
STEP_SECONDS: Final = 0.1
numbers: Final = itertools.count()


def compact(ours: Ours) -> None:
    """Have a round of compaction done now."""
    with internal_client(internal_url(None, ours.data_dir, "uploader")) as client:
        client.timeout = httpx.Timeout(WAIT_SECONDS)
        client.post("/internal/v1/compact").raise_for_status()


def await_writer(url: str) -> None:
    """Return when a node stores leaderless appends: its writer looks into the bucket first."""
    name = f"{url}/v1/streams/writer-{next(numbers)}"
    httpx.put(name, json=LEADERLESS, timeout=60).raise_for_status()
    await_taken(name)


def await_taken(url: str) -> None:
    """Return when a node takes appends to this leaderless stream.

    Raises:
        RuntimeError: it does not.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    body = {"records": [{"value": "first"}]}
    while not httpx.post(f"{url}/records", json=body, timeout=60).is_success:
        if time.monotonic() > deadline:
            raise RuntimeError("no append to a leaderless stream is taken")
        # Its writer looks into the bucket first, and tells nobody when it has.
        time.sleep(STEP_SECONDS)


@contextmanager
def started(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Ours]:
    """A server of its own, which takes leaderless appends."""
    with running_ours(directory, settings) as ours:
        await_writer(ours.url)
        yield ours


def appends(streams: Sequence[str], records: int, count: int = 0) -> list[Request]:
    """An append to each of these streams in turn, `count` of them, or one to each."""
    body = http.arrow_body(records)
    made = [Request(http.append(one, http.ARROW, body), records) for one in streams]
    return list(itertools.islice(itertools.cycle(made), count or len(made)))
