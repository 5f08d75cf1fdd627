"""Producers and keys of leaderless streams are forgotten when they are due, and never earlier."""

import pytest
from support.guards import remove
from support.leaderless import WalWriter, a_leaderless_harness, a_leaderless_stream, tail_of
from support.manifest import NEIGHBOUR, STREAM, Fault, ManifestHarness
from unit.stores.test_tails import KEY, LOADER, TRACKED

from bottomless.errors import Unavailable
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.leaderless.tail_format import decode_known
from bottomless_server.manifest.leaderless.forgetting import PAGE_COUNT, Forgetting
from bottomless_server.stores.tail_keys import (
    SILENT_KEY,
    known_index_key,
    known_key,
    silent,
    tail_key,
)

DUE = 2_000_000


async def a_stream_with_names() -> tuple[ManifestHarness, WalWriter]:
    """A stream that knows a producer, due at DUE, and a key that is due a second before."""
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    await hear(writer, STREAM, DUE)
    return harness, writer


async def hear(writer: WalWriter, stream_id: StreamId, due_at: int) -> None:
    known = {LOADER: NewKnown([TRACKED], due_at), KEY: NewKnown([TRACKED], due_at - 1_000)}
    await writer.commit(await writer.put(stream_id), known)


async def counts(harness: ManifestHarness) -> tuple[int, int]:
    tail = await tail_of(harness)
    return tail.producer_count, tail.key_count


async def queued(harness: ManifestHarness) -> list[Due]:
    return await harness.coordination.due(SILENT_KEY, 2**52, 100)


async def test_each_goes_at_its_time() -> None:
    harness, _ = await a_stream_with_names()
    forgetting = Forgetting(harness.context)

    harness.clock.now = DUE - 1_001
    assert await forgetting.look() == 0

    harness.clock.now = DUE - 1_000
    assert await forgetting.look() == 1
    assert await counts(harness) == (1, 0)
    assert harness.coordination.peek(known_key(STREAM, KEY)) is None
    assert harness.coordination.peek_members(known_index_key(STREAM)) == [LOADER.member]

    harness.clock.now = DUE
    assert await forgetting.look() == 1
    assert await counts(harness) == (0, 0)
    assert await queued(harness) == []


async def test_who_was_heard_of_again_stays() -> None:
    harness, writer = await a_stream_with_names()
    await hear(writer, STREAM, DUE + 5_000)

    harness.clock.now = DUE
    assert await Forgetting(harness.context).look() == 0
    assert await counts(harness) == (1, 1)


async def heard_meanwhile(harness: ManifestHarness, writer: WalWriter) -> None:
    """Both names are due, and are heard of just before the first is forgotten."""

    async def happen() -> None:
        await hear(writer, STREAM, DUE + 5_000)

    harness.clock.now = DUE
    harness.coordination.before_transact = happen
    await Forgetting(harness.context).look()


async def test_who_is_heard_of_at_that_moment_stays() -> None:
    harness, writer = await a_stream_with_names()

    await heard_meanwhile(harness, writer)

    assert await counts(harness) == (1, 1)
    value = harness.coordination.peek(known_key(STREAM, LOADER))
    assert value is not None
    assert decode_known(value).changed_at == 4
    assert {due.due_at for due in await queued(harness)} == {DUE + 4_000, DUE + 5_000}


async def test_without_a_look_at_the_value_who_is_heard_of_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "what was heard of a name since it was due", lambda *_: True)
    harness, writer = await a_stream_with_names()

    await heard_meanwhile(harness, writer)

    assert await counts(harness) == (1, 0)


async def test_what_the_queue_has_of_a_deleted_stream_goes() -> None:
    harness, _ = await a_stream_with_names()
    harness.coordination.write(Changes({tail_key(STREAM): None}))

    harness.clock.now = DUE
    await Forgetting(harness.context).look()
    assert await queued(harness) == []


async def test_what_cannot_be_read_keeps_nobodys_place() -> None:
    harness, writer = await a_stream_with_names()
    await a_leaderless_stream(harness, NEIGHBOUR, "neighbour")
    await hear(writer, NEIGHBOUR, DUE + 10)
    harness.coordination.write(
        Changes(
            {tail_key(STREAM): b"damaged"},
            queued=[Due(SILENT_KEY, b"%d" % number, 1) for number in range(PAGE_COUNT)],
        )
    )
    forgetting = Forgetting(harness.context)

    harness.clock.now = DUE + 10
    assert await forgetting.look() == PAGE_COUNT
    assert await forgetting.look() == 4
    assert await forgetting.look() == 0

    for name in (LOADER, KEY):
        assert harness.coordination.peek(known_key(STREAM, name)) is not None
        assert harness.coordination.peek(known_key(NEIGHBOUR, name)) is None


async def test_where_clocks_disagree_nothing_is_forgotten() -> None:
    harness, _ = await a_stream_with_names()
    harness.clock.skew_ms = 10 * DUE
    harness.clock.true_now += 1

    with pytest.raises(Unavailable):
        await Forgetting(harness.context).look()
    assert await counts(harness) == (1, 1)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_reply_that_is_lost_changes_nothing_of_the_end(fault: Fault) -> None:
    harness, _ = await a_stream_with_names()
    harness.clock.now = DUE
    harness.coordination.faults = [fault]
    forgetting = Forgetting(harness.context)

    with pytest.raises(Unavailable):
        await forgetting.look()
    await forgetting.look()
    harness.coordination.arrive()

    assert await counts(harness) == (0, 0)
    assert await queued(harness) == []


def test_a_name_has_one_place_in_the_queue() -> None:
    assert silent(STREAM, LOADER, 1).member == silent(STREAM, LOADER, 2).member
