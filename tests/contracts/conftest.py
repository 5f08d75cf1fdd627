"""Every implementation of a port, under one name each: a new one joins the tables below."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.valkey import another_client, running_valkey

from bottomless.coordination.base import Changes, Coordination
from bottomless.coordination.embedded import EmbeddedValkey
from bottomless.coordination.memory import MemoryCoordination
from bottomless.coordination.redis import RedisCoordination
from bottomless.drives.base import Drive
from bottomless.drives.local import LocalDrive
from bottomless.drives.memory import MemoryDrive

DRIVES: dict[str, Callable[[Path], Drive]] = {
    "local": lambda directory: LocalDrive(directory / "store"),
    "memory": lambda _: MemoryDrive(),
}


@pytest.fixture(params=sorted(DRIVES))
async def drive(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Drive]:
    made = DRIVES[request.param](tmp_path)
    yield made
    await made.aclose()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with running_valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture
def valkey_url(valkey: EmbeddedValkey) -> str:
    """A Valkey that holds nothing."""
    with another_client(valkey.url) as client:
        client.flushall()
    return valkey.url


@dataclass
class Shared:
    """A coordination, and ways to reach what it is kept in as somebody else would."""

    coordination: Coordination
    interfere: Callable[[str, bytes], None]
    """Write a value from outside, at once, in the middle of whatever is going on."""
    expire: Callable[[str], None]
    """Let a lease's time pass."""


def _memory(_: pytest.FixtureRequest, __: ExitStack) -> Shared:
    now = [1_700_000_000_000]

    def expire(redis_key: str) -> None:
        now[0] += 60_000

    coordination = MemoryCoordination(lambda: now[0])
    return Shared(
        coordination, lambda key, value: coordination.write(Changes({key: value})), expire
    )


def _redis(request: pytest.FixtureRequest, stack: ExitStack) -> Shared:
    url: str = request.getfixturevalue("valkey_url")
    client = stack.enter_context(another_client(url))
    return Shared(
        RedisCoordination.connect(url),
        lambda key, value: _done(client.set(key, value)),
        # The server's own way of running out, without waiting for it.
        lambda key: _done(client.pexpireat(key, 1)),
    )


def _done(answer: object) -> None:
    assert answer


COORDINATIONS = {"memory": _memory, "redis": _redis}


@pytest.fixture(params=sorted(COORDINATIONS))
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Shared]:
    with ExitStack() as stack:
        made = COORDINATIONS[request.param](request, stack)
        yield made
        await made.coordination.aclose()
