"""Bounds that are counts, over every coordination store, while many requests of two processes come
at once.

The tests of the bounds had one request after another, where a count before the EXEC is right.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.api_keys import create
from support.guards import remove
from support.manifest import STREAM, ManifestHarness, a_record

from bottomless.errors import Code, Overloaded, Unavailable
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, Reference, StreamName
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import CoordinationConflict, Room
from bottomless_server.manifest.common import lines
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.quotas import Quotas
from bottomless_server.manifest.consumers.consumer_commits import ConsumerCommits
from bottomless_server.manifest.consumers.core.consumers import Commit
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.stores.consumers import consumers_index
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.keys import keys_index
from bottomless_server.stores.streams import Streams, names_key
from contracts.conftest import Shared

_BOUND = 12
"""Below the sixteen attempts of a transaction: who meets a conflict meets one that entered, so
nobody runs out of attempts, however unluckily the two processes take turns."""
_ASKED = 64

Enter = Callable[[int], Awaitable[object]]


class Two:
    """Two manifest processes of one coordination store and one bucket."""

    def __init__(self, shared: Shared) -> None:
        harness = ManifestHarness(
            manifest_tenant_stream_count_max=_BOUND,
            manifest_tenant_key_count_max=_BOUND,
            manifest_consumer_count_max=_BOUND,
        )
        self.harness, self.coordination = harness, shared.coordination
        self.streams = Streams(shared.coordination)
        self.contexts: list[Context] = [
            replace(harness.context, coordination=shared.coordination, streams=self.streams)
            for _ in range(2)
        ]

    async def kinds(self) -> dict[str, tuple[str, list[Enter]]]:
        """Index of each bound, and for each process how one more comes."""
        generation = await check_generation(self.harness.drive, self.coordination)
        self.streams.generation = generation
        record = replace(a_record(), generation=generation, tenant="globex")
        await self.streams.create(record)

        def stream(context: Context) -> Enter:
            registry = Registry(context)
            registry.generation = generation
            return lambda number: registry.declare(
                FullName("acme", StreamName(f"s{number}")), StreamConfig()
            )

        def key(context: Context) -> Enter:
            keys = Keys(context)
            return lambda _: create(keys)

        def consumer(context: Context) -> Enter:
            commits = ConsumerCommits(context)
            return lambda number: commits.commit(record, Commit(Reference(f"c{number}"), 0))

        return {
            "streams": (names_key(StreamState.ACTIVE, "acme"), [*map(stream, self.contexts)]),
            "keys": (keys_index("acme"), [*map(key, self.contexts)]),
            "consumers": (consumers_index(STREAM), [*map(consumer, self.contexts)]),
        }


async def answers(entering: list[Enter]) -> list[object]:
    async def one(number: int) -> object:
        try:
            await entering[number % len(entering)](number)
        except Overloaded as error:
            return error.code, error.facts
        except CoordinationConflict:
            # Where more may enter than there are attempts, one may meet others at each of them.
            return "outrun"
        return None

    return list(await asyncio.gather(*map(one, range(_ASKED))))


@pytest.mark.parametrize("kind", ["streams", "keys", "consumers"])
async def test_of_many_at_once_as_many_enter_as_there_may_be(shared: Shared, kind: str) -> None:
    two = Two(shared)
    index, entering = (await two.kinds())[kind]

    told = await answers(entering)

    refused = (Code.QUOTA_EXCEEDED, {"limit": _BOUND})
    assert (told.count(None), told.count(refused)) == (_BOUND, _ASKED - _BOUND)
    assert await two.coordination.member_count(index) == _BOUND
    assert [len(context.quotas) for context in two.contexts] == [0, 0], "a line stays for nobody"


@pytest.mark.parametrize("kind", ["streams", "keys", "consumers"])
async def test_without_the_count_in_the_exec_too_many_enter(
    shared: Shared, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the count of an index in the EXEC that enters it", lambda *_: None)
    two = Two(shared)
    index, entering = (await two.kinds())[kind]

    await answers(entering)

    assert await two.coordination.member_count(index) > _BOUND


async def test_who_is_known_commits_while_the_bound_is_reached(shared: Shared) -> None:
    two = Two(shared)
    _, (enter, other) = (await two.kinds())["consumers"]
    for number in range(_BOUND):
        await enter(number)
    with pytest.raises(Overloaded):
        await other(_BOUND)
    for number in range(_BOUND):
        await other(number)


async def test_who_stands_in_line_for_too_long_is_told_so(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first in line may wait for a store that hangs."""
    monkeypatch.setattr(lines, "TURN_SECONDS", 0.01)
    line = Quotas(shared.coordination)
    room = Room("index", b"m", 1)
    async with line.entering(room, "full"):
        with pytest.raises(Unavailable) as caught:
            async with line.entering(room, "full"):
                raise AssertionError("it is the turn of another one")
        async with line.entering(Room("another", b"m", 1), "full"):
            pass
    assert caught.value.code is Code.COORDINATION_UNAVAILABLE
    assert len(line) == 0
