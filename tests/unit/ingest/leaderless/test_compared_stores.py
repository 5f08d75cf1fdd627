"""While the store is compared with the bucket nobody waits for longer than a commit may take."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.guards import remove
from support.wire import Passage

from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.leaderless.known_producers import KnownProducers
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.stores import tails
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import instance_key
from unit.ingest.leaderless.harness import BOUNDS, KNOWN, Stores, a_house, until
from unit.ingest.leaderless.making import IDS, an_append


def test_what_waits_while_the_bucket_is_slow_is_refused_in_time() -> None:
    stores, writer = a_house()
    assert isinstance(writer.append(0, an_append(b"a")), Appended)
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.connected_count += 1
    stores.trouble.next["drive.list"] = [Passage(there_seconds=300.0)]
    begun = stores.loop.now

    said = writer.append(0, an_append(b"b"))

    assert isinstance(said, StoreError)
    assert (said.code, said.outcome) == (Code.COORDINATION_UNAVAILABLE, Outcome.NONE)
    assert stores.loop.now - begun < BOUNDS.put_seconds + BOUNDS.commit_seconds
    stores.do(asyncio.sleep(300))
    assert isinstance(writer.append(0, an_append(b"c")), Appended)
    assert stores.values(0) == [b"a", b"c"]


def test_no_attempt_of_an_instance_comes_after_its_end() -> None:
    """The simulation found a record that went back: who ended the instance had taken its number before
    another attempt, and wrote it after that."""
    stores, process = a_house()
    run = process.writer.run
    assert run is not None
    key, attempts = instance_key(run.numbers.instance), list[int]()

    def note() -> None:
        value = stores.coordination.peek(key)
        if value is not None:
            attempts.append(decode_instance(value).attempt)

    stores.coordination.on_write = note
    stores.trouble.next["coordination.exec"] = [Passage(there_seconds=3.0)]
    process.writer.doubt()
    stores.do(asyncio.sleep(0.1))
    stores.do(process.writer.drain())
    stores.do(asyncio.sleep(5))
    assert attempts == sorted(attempts)
    assert len(attempts) > 1


async def next_generation(stores: Stores) -> None:
    """Coordination is lost, and rebuilt as generation 1 with one stream."""
    stores.coordination.lose()
    value = b'{"generation":1,"bucket":true}'
    await stores.objects.put(generation_key(1), [value], crc32c(value))
    stores.coordination.write(Changes({GENERATION_KEY: value}))
    stores.streams.generation = 1
    await tails.create(stores.streams, stores.record(IDS[0]))


@pytest.mark.parametrize("guarded", [True, False])
def test_without_its_guard_an_idle_writer_never_comes_to_the_next_generation(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each append is looked at before it is put in line, so nothing came to be committed any more."""
    if not guarded:
        remove(
            monkeypatch,
            "a writer with nothing to commit, looked at where coordination is another one",
            lambda _: None,
        )
    stores, process = a_house()
    producers = KnownProducers(stores.coordination, process.writer, KNOWN, stores.clock)
    stores.do(next_generation(stores))

    async def look() -> None:
        await producers.look(IDS[0])

    assert stores.do(is_answered_in_two_minutes(look)) is guarded


def test_a_node_that_is_only_asked_to_lock_writers_out_comes_to_the_next_generation() -> None:
    """Who begins to write locks earlier writers out first, and appends nothing before that is done."""
    stores, process = a_house()
    producers = KnownProducers(stores.coordination, process.writer, KNOWN, stores.clock)
    stores.do(next_generation(stores))

    async def lock_out() -> None:
        await producers.raise_epoch(IDS[0], "p")

    assert stores.do(is_answered_in_two_minutes(lock_out))


async def is_answered_in_two_minutes(ask: Callable[[], Awaitable[None]]) -> bool:
    for _ in range(120):
        try:
            await ask()
        except Unavailable:
            await asyncio.sleep(1)
        else:
            return True
    return False
