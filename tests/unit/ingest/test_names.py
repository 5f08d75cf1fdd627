"""Names that ingest remembers where nothing tells whether any was freed: asked for again before their
answers are too old, many at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.waiting import eventually

from bottomless.errors import Code, NotFound, Outcome, Unavailable
from bottomless.model.names import FullName, StreamName
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.ingest.front import names
from bottomless_server.ingest.front.names import NamedStream, StreamNames
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.stores.streams import name_key
from unit.ingest.asking import COUNT, KEEP_MS, NAMES, PAGES_COUNT, Asking


@pytest.fixture
async def asking(request: pytest.FixtureRequest) -> AsyncIterator[Asking]:
    made = Asking(getattr(request, "param", COUNT))
    await made.set_up()
    yield made
    await made.names.aclose()


@pytest.mark.parametrize("asking", [PAGES_COUNT], indirect=True)
async def test_names_in_use_are_asked_for_by_the_thousand_and_nobody_waits(asking: Asking) -> None:
    asking.time.advance(KEEP_MS // 2)
    await asking.find_all()
    assert asking.manifest.questions == 0, "the old answers are good, and nobody waited"
    await eventually(asking.refreshed)

    assert [len(names) for names in asking.manifest.asked_together] == [1_000, 500]
    asking.manifest.questions = 0
    asking.time.advance(KEEP_MS // 2 - 1)
    await asking.find_all()
    assert asking.refreshed(), "all answers are young"
    asking.time.advance(KEEP_MS // 2 + 1)
    await asking.names.find(NAMES[0])
    assert asking.manifest.questions == 1, "this one had grown too old to go by"


async def test_a_stream_that_is_being_deleted_is_known_no_more(asking: Asking) -> None:
    await asking.end(NAMES[3])
    asking.time.advance(KEEP_MS // 2)
    await asking.find_all()
    await eventually(asking.refreshed)

    with pytest.raises(NotFound):
        await asking.names.find(NAMES[3])
    assert await asking.names.find(NAMES[4])


async def test_an_answer_does_not_take_the_place_of_a_newer_one(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = NAMES[0]
    old, new = await asking.names.find(name), await asking.names.find(NAMES[1])
    answer = asking.manifest.call

    async def answer_late(method: str, path: str, **rest: Any) -> PeerAnswer:
        said = await answer(method, path, **rest)
        if method == "POST":
            # The name is another stream's now, and an append has found out.
            asking.time.advance(1)
            asking.coordination.write(Changes({name_key(name): new.stream_id.encode()}))
            assert await asking.names.find_other(name, old) == new
        return said

    monkeypatch.setattr(asking.manifest, "call", answer_late)
    asking.time.advance(KEEP_MS // 2)
    assert await asking.names.find(name) == old
    await eventually(asking.refreshed)

    assert await asking.names.find(name) == new


@pytest.fixture(params=["it is away", "it hangs"])
async def alone(
    asking: Asking, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Asking:
    """Without manifest from here on."""
    if request.param == "it is away":
        asking.manifest.is_away = True
        return asking

    async def hang(*_: Any, **__: Any) -> PeerAnswer:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(names, "MANIFEST_SECONDS", 0.01)
    monkeypatch.setattr(names, "STRANGER_SECONDS", 0.01)
    monkeypatch.setattr(asking.manifest, "call", hang)
    return asking


async def test_names_in_use_go_on_without_manifest(alone: Asking) -> None:
    """They ended with their old answers, some seconds after manifest: nobody had looked at what
    goes on without it, and for how long."""
    before = await alone.names.find(NAMES[0])
    for _ in range(3):
        alone.time.advance(KEEP_MS // 2)
        assert await alone.names.find(NAMES[0]) == before
        await eventually(alone.refreshed)
    alone.time.advance(KEEP_MS * 10)
    assert await alone.names.find(NAMES[0]) == before, "also one that was silent for long"


async def test_what_ended_or_is_not_known_waits_for_manifest(alone: Asking) -> None:
    ended, renamed = NAMES[3], NAMES[4]
    await alone.end(ended)
    other = await alone.streams.find(NAMES[5])
    alone.coordination.write(Changes({name_key(renamed): other.encode()}))
    alone.time.advance(KEEP_MS)
    for name in (ended, renamed, FullName("default", StreamName("never-heard-of"))):
        with pytest.raises(Unavailable) as caught:
            await alone.names.find(name)
        assert caught.value.code is Code.PEER_UNAVAILABLE
    assert await alone.names.find(NAMES[0])


async def test_old_answers_are_good_until_their_end_where_nobody_answers(
    alone: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> list[bytes | None]:
        raise CoordinationUnavailable("the coordination store does not answer")

    monkeypatch.setattr(alone.coordination, "get_many", away)
    alone.time.advance(KEEP_MS - 1)
    assert await alone.names.find(NAMES[0])
    await eventually(alone.refreshed)

    assert await alone.names.find(NAMES[0])
    alone.time.advance(1)
    with pytest.raises(Unavailable):
        await alone.names.find(NAMES[0])


async def test_nobody_waits_long_for_a_name_where_nobody_says_anything(
    alone: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> list[bytes | None]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(names, "CONFIRM_SECONDS", 0.01)
    monkeypatch.setattr(alone.coordination, "get_many", silent)
    alone.time.advance(KEEP_MS)
    for name in (NAMES[0], FullName("default", StreamName("never-heard-of"))):
        with pytest.raises(Unavailable) as caught:
            await asyncio.wait_for(alone.names.find(name), 240)
        assert (caught.value.code, caught.value.outcome) == (Code.PEER_UNAVAILABLE, Outcome.NONE)


async def test_a_store_that_went_back_confirms_nothing(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest answers, and says that what the store has is not to be believed."""

    async def regressed(*_: Any, **__: Any) -> PeerAnswer:
        raise Unavailable("the store went back", code=Code.COORDINATION_REGRESSED)

    monkeypatch.setattr(asking.manifest, "call", regressed)
    asking.time.advance(KEEP_MS)
    with pytest.raises(Unavailable) as caught:
        await asking.names.find(NAMES[0])
    assert caught.value.code is Code.COORDINATION_REGRESSED


class Held:
    """Holds back the next answer of manifest, which was given before it was let go."""

    def __init__(self, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given, self._go = asyncio.Event(), asyncio.Event()
        answer = asking.manifest.call

        async def call(method: str, path: str, **rest: Any) -> PeerAnswer:
            monkeypatch.setattr(asking.manifest, "call", answer)
            try:
                return await answer(method, path, **rest)
            finally:
                self.given.set()
                await self._go.wait()

        monkeypatch.setattr(asking.manifest, "call", call)

    async def found(
        self, *finding: "asyncio.Task[NamedStream]"
    ) -> list[NamedStream | BaseException]:
        """What they find when the answer is let go."""
        await asyncio.sleep(0)
        self._go.set()
        return await asyncio.gather(*finding, return_exceptions=True)


async def test_whoever_asks_after_a_creation_is_not_told_what_was_so_before(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question of another was joined that was older than the stream, so that an append which was
    sent after the creation was answered got 404. Each test asked alone."""
    name, held = FullName("default", StreamName("born")), Held(asking, monkeypatch)
    before = asyncio.create_task(asking.names.find(name))
    await held.given.wait()
    created = await asking.create(name, COUNT)
    after = asyncio.create_task(asking.names.find(name))

    assert isinstance((await held.found(before))[0], NotFound)
    assert await after == created


async def test_whoever_found_a_stream_gone_is_not_told_of_it_by_an_older_question(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = NAMES[0]
    gone = await asking.names.find(name)
    asking.time.advance(KEEP_MS)
    held = Held(asking, monkeypatch)
    before = asyncio.create_task(asking.names.find(name))
    await held.given.wait()
    await asking.delete(name)
    other = await asking.create(name, COUNT)
    after = asyncio.create_task(asking.names.find_other(name, gone))

    assert await held.found(before) == [gone], "as old as what is remembered may be"
    assert await after == other


async def test_an_answer_that_is_too_old_when_it_comes_is_not_gone_by(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases may be shorter than manifest is waited for. No test let time pass while it answered."""
    name = NAMES[0]
    gone = await asking.names.find(name)
    asking.time.advance(KEEP_MS)
    held = Held(asking, monkeypatch)
    asked = asyncio.create_task(asking.names.find(name))
    await held.given.wait()
    await asking.delete(name)
    other = await asking.create(name, COUNT)
    asking.time.advance(KEEP_MS)

    assert other != gone
    assert await held.found(asked) == [other]


async def test_where_every_answer_comes_too_late_that_is_said(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asking.manifest.call

    async def answer_late(method: str, path: str, **rest: Any) -> PeerAnswer:
        said = await answer(method, path, **rest)
        asking.time.advance(KEEP_MS)
        return said

    monkeypatch.setattr(asking.manifest, "call", answer_late)
    asking.time.advance(KEEP_MS)
    with pytest.raises(Unavailable) as caught:
        await asking.names.find(NAMES[0])
    assert (caught.value.code, asking.manifest.questions) == (Code.PEER_UNAVAILABLE, 3)


async def test_a_table_that_is_full_forgets_one_name_for_each_that_comes(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were forgotten at once when it was full, and all were asked for again at once."""
    monkeypatch.setattr(names, "NAME_COUNT_MAX", 10)
    few = StreamNames(asking.manifest, asking.streams, asking.time.clocks(), KEEP_MS)
    for name in NAMES[:10]:
        await few.find(name)
    await few.find(NAMES[0])
    await few.find(NAMES[10])
    asking.manifest.questions = 0
    for name in (NAMES[0], *NAMES[2:11]):
        await few.find(name)
    assert asking.manifest.questions == 0, "only the name that was unused for longest is gone"
    await few.find(NAMES[1])
    assert asking.manifest.questions == 1
    await few.aclose()
