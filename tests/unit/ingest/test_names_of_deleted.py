"""Appends to a stream that is deleted while nobody can tell its owner so.

Manifest asks the owner to stop, and that ends appends at once. Where that question does not
arrive, the name ends them: the tests of names looked at names alone, so that nothing held what
an append does with them.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.ingest.front.forms import STAGED
from bottomless_server.stores import streams
from bottomless_server.stores.streams import name_key
from unit.ingest.harness import FULL_NAME, NAME, ROUTE, STREAM, IngestHarness, problem

OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c99")
BELIEF_MS = 8_000
"""Lease minus margin, as the settings have it."""


async def delete(harness: IngestHarness) -> None:
    await harness.streams.bury(
        STREAM,
        FULL_NAME,
        lambda record: replace(record, state=StreamState.DELETING, epoch=record.epoch + 1),
        Changes(),
    )


async def create_again(harness: IngestHarness) -> None:
    record = StreamRecord(OTHER, NAME, "default", StreamState.ACTIVE, 0, StreamConfig())
    await harness.streams.create(record)


async def advance(harness: IngestHarness, ms: int) -> None:
    await harness.advance(ms)
    looking = harness.service.names._looking
    await eventually(lambda: looking is None or looking.done())


async def test_a_deleted_stream_takes_nothing_after_the_next_renewal(
    harness: IngestHarness,
) -> None:
    assert (await harness.append("before")).status_code == 200
    await advance(harness, 30_000)
    harness.manifest.questions = 0
    assert (await harness.append("thirty seconds later")).status_code == 200
    assert harness.manifest.questions == 0, "nothing was deleted, so nobody was asked"
    await delete(harness)

    await advance(harness, 3_000)
    assert problem(await harness.append("too late")) == (404, "stream-not-found")
    assert harness.appender.log.committed_next == 2


async def test_its_name_leads_to_the_stream_that_has_it_by_then(harness: IngestHarness) -> None:
    await harness.append("to the first")
    await delete(harness)
    await create_again(harness)
    await advance(harness, 3_000)

    answer = await harness.append("to the second")
    assert (answer.status_code, answer.json()["first_offset"]) == (200, 0)
    assert harness.appender.log.committed_next == 1
    second = harness.service.streams.find(OTHER)
    assert second is not None
    assert second.log.committed_next == 1


async def test_where_no_renewal_succeeds_it_takes_nothing_after_the_lease(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.append("before")
    await advance(harness, 3_000)
    await delete(harness)

    async def away(*_: object) -> list[bytes | None]:
        raise CoordinationUnavailable("the coordination store does not answer")

    monkeypatch.setattr(harness.coordination, "get_many", away)
    harness.manifest.is_away = True
    await advance(harness, BELIEF_MS)
    assert problem(await harness.append("too late"))[0] == 503
    assert harness.appender.log.committed_next == 1


@dataclass
class Slow:
    """A request whose body is there only in part."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def body(self, whole: bytes) -> AsyncIterator[bytes]:
        yield whole[:10]
        self.begun.set()
        await self.go.wait()
        yield whole[10:]


_APPEND = b'{"records":[{"value":"late"}]}', {"content-type": "application/json"}
_COMMIT = (
    b'{"staged":["st_00000000000000000000000000000000"]}',
    {"content-type": STAGED, "producer-id": "job", "txn-number": "1"},
)


async def check_slow(
    harness: IngestHarness, request: tuple[bytes, dict[str, str]] = _APPEND
) -> None:
    """What began before the deletion is not stored after the bound either."""
    await harness.append("before")
    await advance(harness, 3_000)
    slow, (body, headers) = Slow(), request
    asked = asyncio.create_task(
        harness.client.post(ROUTE, content=slow.body(body), headers=headers)
    )
    await slow.begun.wait()
    await delete(harness)
    await create_again(harness)
    await advance(harness, 45_000)
    slow.go.set()

    assert problem(await asked) == (404, "stream-not-found")
    assert harness.appender.log.committed_next == 1


@pytest.mark.parametrize("request_", [_APPEND, _COMMIT], ids=["append", "commit"])
async def test_a_body_that_comes_slowly_over_a_deletion_is_not_stored(
    harness: IngestHarness, request_: tuple[bytes, dict[str, str]]
) -> None:
    """The name was looked at before the body came, and a minute may lie between. All bodies of the
    tests and of the simulation were there at once."""
    await check_slow(harness, request_)


async def test_without_the_second_look_at_the_name_a_slow_body_is_stored(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_at_nothing(*_: object) -> None:
        pass

    remove(monkeypatch, "the name, looked at again when the body is there", look_at_nothing)
    with pytest.raises(AssertionError):
        await check_slow(harness)


async def check_ended(harness: IngestHarness) -> None:
    """Nothing is taken any more when the belief in the renewal before the deletion is over."""
    await harness.append("before")
    await advance(harness, 3_000)
    await delete(harness)
    await advance(harness, BELIEF_MS)
    assert problem(await harness.append("too late")) == (404, "stream-not-found")


async def test_a_deleted_stream_takes_nothing_after_as_long_as_its_owners_lease(
    harness: IngestHarness,
) -> None:
    await check_ended(harness)


async def test_without_the_mark_in_the_exec_a_deleted_stream_goes_on(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "freeing", lambda name: Changes({name_key(name): None}))
    with pytest.raises(AssertionError):
        await check_ended(harness)
