"""Names that the reader remembers: one question tells of all of them whether any was freed."""

import asyncio
from typing import Any

import pytest
from support.peers import SilentPeer
from unit.reader.harness import ReaderHarness, shown
from unit.reader.protocol import ORDERS

from bottomless.errors import Code, InvalidRequest, NotFound, Unavailable
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.protocol.registry import (
    NAMES,
    by_name,
    encode_names_shown,
    encode_stream,
)
from bottomless_server.reader.manifest_calls import ManifestAway
from bottomless_server.reader.streams import StreamFacts, Streams

KEEP_MS = 2_000
COUNT = 20
ALL = [FullName("default", StreamName(f"orders-{number}")) for number in range(COUNT)]


class Registry(SilentPeer):
    """A manifest that says what it is told to, and counts."""

    def __init__(self) -> None:
        self.ids = {name: self._id(number) for number, name in enumerate(ALL)}
        self.epoch = 1
        self.generation: int | None = 0
        self.mark: str | None = None
        self.knows_marks = True
        self.is_away = False
        self.asked: list[str] = []

    @staticmethod
    def _id(number: int) -> StreamId:
        return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")

    def free(self, name: FullName, other: int | None = None) -> None:
        del self.ids[name]
        self.mark = f"{self.mark} and {name.name}"
        if other is not None:
            self.ids[name] = self._id(other)

    async def call(self, method: str, path: str, /, **_: Any) -> PeerAnswer:
        assert method == "GET"
        self.asked.append(path)
        if self.is_away:
            raise ManifestAway("the manifest service does not answer")
        if path == NAMES:
            if not self.knows_marks:
                raise InvalidRequest("this path has no such method", code=Code.METHOD_NOT_ALLOWED)
            return PeerAnswer(200, {}, encode_names_shown(self.generation, self.mark))
        for name, stream_id in self.ids.items():
            if path == by_name(name):
                record = StreamRecord(
                    stream_id, name.name, name.tenant, StreamState.ACTIVE, 0, StreamConfig()
                )
                return PeerAnswer(200, {}, encode_stream(record) | {"epoch": self.epoch})
        raise NotFound("there is no such stream")


class Reading:
    def __init__(self) -> None:
        self.now = 10_000
        self.manifest = Registry()
        self.streams = Streams(self.manifest, KEEP_MS, lambda: self.now)

    async def find(self, name: FullName) -> StreamFacts:
        return (await self.streams.find(name)).stream

    async def asked_for_all(self) -> list[str]:
        """What manifest is asked when all names are used."""
        self.manifest.asked.clear()
        for name in ALL:
            await self.find(name)
        return list(self.manifest.asked)


@pytest.fixture
async def reading() -> Reading:
    """All names are known, and so is the mark."""
    made = Reading()
    await made.asked_for_all()
    made.now += KEEP_MS
    # No mark was heard before these were asked for.
    await made.asked_for_all()
    return made


async def test_as_long_as_no_name_is_freed_one_question_is_enough_for_all(
    reading: Reading,
) -> None:
    """Each name was asked for alone whenever it was used after two seconds."""
    for _ in range(10):
        reading.now += KEEP_MS - 1
        assert await reading.asked_for_all() == []
        reading.now += 30_000
        assert await reading.asked_for_all() == [NAMES]


async def test_a_freed_name_is_believed_for_no_longer_than_before(reading: Reading) -> None:
    freed, reborn = ALL[3], ALL[4]
    reading.now += KEEP_MS
    await reading.asked_for_all()
    before = await reading.find(reborn)
    reading.manifest.free(freed)
    reading.manifest.free(reborn, COUNT)
    reading.now += KEEP_MS - 1
    assert await reading.find(reborn) == before

    reading.now += 1
    with pytest.raises(NotFound):
        await reading.find(freed)
    assert (await reading.find(reborn)).stream_id != before.stream_id
    reading.manifest.free(reborn)
    assert (await reading.find(ALL[5])).stream_id == reading.manifest.ids[ALL[5]]


@pytest.mark.parametrize("said", ["nothing of marks", "no generation"])
async def test_where_nobody_tells_names_are_asked_for_one_by_one(
    reading: Reading, said: str
) -> None:
    """As of a manifest of the release before, or one whose coordination store was lost."""
    reading.manifest.knows_marks = said != "nothing of marks"
    reading.manifest.generation = None
    for _ in range(3):
        reading.now += KEEP_MS
        asked = await reading.asked_for_all()
        assert asked[-COUNT:] == [by_name(name) for name in ALL]
        assert asked[:-COUNT] == [NAMES]
        reading.now += KEEP_MS - 1
        assert await reading.asked_for_all() == []


async def test_another_generation_is_another_meaning_of_every_name(reading: Reading) -> None:
    reading.now += KEEP_MS
    reading.manifest.generation = 1
    assert len(await reading.asked_for_all()) == COUNT + 1


async def test_a_manifest_that_is_away_is_asked_once(reading: Reading) -> None:
    reading.now += KEEP_MS
    reading.manifest.is_away = True
    reading.manifest.asked.clear()
    with pytest.raises(Unavailable):
        await reading.find(ALL[0])
    assert reading.manifest.asked == [NAMES]


async def test_an_answer_that_is_under_way_over_a_deletion_is_not_believed_for_longer(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ALL[3]
    answer = reading.manifest.call

    async def answer_late(method: str, path: str, /, **rest: Any) -> PeerAnswer:
        said = await answer(method, path, **rest)
        if path == by_name(name):
            monkeypatch.setattr(reading.manifest, "call", answer)
            reading.manifest.free(name)
            reading.now += KEEP_MS
            await reading.find(ALL[0])
        return said

    reading.streams.forget(name)
    monkeypatch.setattr(reading.manifest, "call", answer_late)
    assert await reading.find(name)
    with pytest.raises(NotFound):
        await reading.find(name)


class Held:
    """Holds back the next answer of manifest, which was given before it was let go."""

    def __init__(self, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given, self.go = asyncio.Event(), asyncio.Event()
        answer = reading.manifest.call

        async def call(method: str, path: str, /, **rest: Any) -> PeerAnswer:
            monkeypatch.setattr(reading.manifest, "call", answer)
            said = await answer(method, path, **rest)
            self.given.set()
            await self.go.wait()
            return said

        monkeypatch.setattr(reading.manifest, "call", call)


async def test_an_answer_that_others_wait_for_is_not_gone_by_where_it_is_too_old(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest is waited for longer than a name is good for. Each test asked alone."""
    name = ALL[3]
    reading.streams.forget(name)
    held = Held(reading, monkeypatch)
    before = asyncio.create_task(reading.find(name))
    await held.given.wait()
    reading.manifest.free(name, COUNT)
    reading.now += KEEP_MS
    after = asyncio.create_task(reading.find(name))
    await asyncio.sleep(0)
    held.go.set()

    assert (await before).stream_id != (await after).stream_id == reading.manifest.ids[name]


async def test_an_owner_is_not_told_by_a_question_of_before_the_claim(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await reading.find(ALL[0])
    reading.streams.forget(ALL[0])
    held = Held(reading, monkeypatch)
    before = asyncio.create_task(reading.find(ALL[0]))
    await held.given.wait()
    reading.manifest.epoch = 2
    later = asyncio.create_task(reading.streams.under(stream, 2))
    await asyncio.sleep(0)
    held.go.set()

    assert ((await before).epoch, (await later).epoch) == (1, 2)


async def test_a_later_epoch_is_a_reason_to_ask_who_the_owner_is(reading: Reading) -> None:
    stream = await reading.find(ALL[0])
    assert await reading.streams.under(stream, stream.epoch) is stream
    reading.manifest.epoch = 2
    reading.manifest.asked.clear()

    assert (await reading.streams.under(stream, 2)).epoch == 2
    assert (await reading.find(ALL[0])).epoch == 2
    assert reading.manifest.asked == [by_name(ALL[0])]


async def test_a_name_that_is_another_streams_by_then_is_not_its_later_owner(
    reading: Reading,
) -> None:
    stream = await reading.find(ALL[0])
    reading.manifest.free(ALL[0], COUNT)
    with pytest.raises(NotFound):
        await reading.streams.under(stream, 2)


async def test_a_read_asks_who_the_owner_is_when_the_root_tells_of_another() -> None:
    """Owners were asked for every two seconds, whether there was another one or not. Nothing held
    what a reader does where it remembers an owner for longer."""
    harness = ReaderHarness(reader_root_ttl_ms=0, reader_name_ttl_ms=60_000)
    harness.fill(20)
    asking = by_name(ORDERS)
    for path in ("/records?offset=0", "/offsets", "/fragments"):
        await harness.get(path)
        harness.asked.clear()
        await harness.get(path)
        assert asking not in harness.asked

        harness.epoch += 1
        await harness.get(path)
        assert harness.asked.count(asking) == 1
    assert shown(await harness.read(0)) == harness.texts(0, 20)
    await harness.aclose()
