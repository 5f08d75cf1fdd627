"""Every implementation of a port, under one name each: a new one joins the tables below."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from support.fault_coordination import FaultCoordination
from support.fault_drive import FaultDrive
from support.moto_server import running_moto
from support.s3 import BUCKET, CREDENTIALS, S3Server
from support.valkey import another_client, running_valkey
from support.wire import Wire

from bottomless.drives.base import Drive
from bottomless_server.coordination.base import Changes, Coordination
from bottomless_server.coordination.embedded import EmbeddedValkey
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.coordination.redis import RedisCoordination
from bottomless_server.drives.local import LocalDrive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.s3 import S3Drive
from bottomless_server.drives.s3_options import MIB, S3Options

DRIVES: dict[str, Callable[[pytest.FixtureRequest], Drive]] = {
    "faults-that-do-not-come": lambda _: FaultDrive(MemoryDrive(), Wire()),
    "local": lambda request: LocalDrive(request.getfixturevalue("tmp_path") / "store"),
    "memory": lambda _: MemoryDrive(),
    # Pages of two, so that every listing has several.
    "moto": lambda request: _s3_drive(request, "moto", listed_by_key=True, list_count=2),
    "seaweed": lambda request: _s3_drive(request, "seaweed", list_count=2),
    "seaweed-by-the-library": lambda request: _s3_drive(request, "seaweed", gets_in_place=False),
    "seaweed-in-parts": lambda request: _s3_drive(
        request, "seaweed", multipart_bytes=5 * MIB, part_bytes=5 * MIB
    ),
}


@pytest.fixture(params=sorted(DRIVES))
async def drive(request: pytest.FixtureRequest) -> AsyncIterator[Drive]:
    made = DRIVES[request.param](request)
    yield made
    await made.aclose()


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with running_moto() as running:
        yield running


def s3_options(server: S3Server, **options: Any) -> S3Options:
    """For a prefix of its own, which holds nothing."""
    return S3Options(BUCKET, f"tests/{secrets.token_hex(8)}", server.endpoint, **options)


def _s3_drive(request: pytest.FixtureRequest, server: str, **options: Any) -> Drive:
    environment: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in CREDENTIALS.items():
        environment.setenv(name, value)
    return S3Drive(s3_options(request.getfixturevalue(server), **options))


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
    fill: Callable[[float], None]
    """Give the store so much memory that this share of it is used, or no limit for 0."""


def _memory(
    _: pytest.FixtureRequest,
    __: ExitStack,
    made: Callable[[Callable[[], int]], MemoryCoordination] = MemoryCoordination,
) -> Shared:
    now = [1_700_000_000_000]

    def expire(redis_key: str) -> None:
        now[0] += 60_000

    def fill(share: float) -> None:
        coordination.used_share = share

    coordination = made(lambda: now[0])
    return Shared(
        coordination, lambda key, value: coordination.write(Changes({key: value})), expire, fill
    )


def _faulty(request: pytest.FixtureRequest, stack: ExitStack) -> Shared:
    return _memory(request, stack, lambda clock: FaultCoordination(clock, Wire()))


def _redis(request: pytest.FixtureRequest, stack: ExitStack) -> Shared:
    url: str = request.getfixturevalue("valkey_url")
    client = stack.enter_context(another_client(url))

    def fill(share: float) -> None:
        used = int(client.info("memory")["used_memory"])
        _done(client.config_set("maxmemory", int(used / share) if share else 0))

    stack.callback(fill, 0)
    return Shared(
        RedisCoordination.connect(url),
        lambda key, value: _done(client.set(key, value)),
        # The server's own way of running out, without waiting for it.
        lambda key: _done(client.pexpireat(key, 1)),
        fill,
    )


def _done(answer: object) -> None:
    assert answer


COORDINATIONS: dict[str, Callable[[pytest.FixtureRequest, ExitStack], Shared]] = {
    "faults-that-do-not-come": _faulty,
    "memory": _memory,
    "redis": _redis,
}


@pytest.fixture(params=sorted(COORDINATIONS))
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[Shared]:
    with ExitStack() as stack:
        made = COORDINATIONS[request.param](request, stack)
        yield made
        await made.coordination.aclose()
