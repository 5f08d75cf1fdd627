"""Names that ingest remembers while no name is freed, by the mark that each renewal reads."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.waiting import eventually

from bottomless.errors import NotFound
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.ingest.front.names import ERA_MS_MAX
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.stores.streams import FREED_KEY, GENERATION_KEY, name_key
from unit.ingest.asking import COUNT, KEEP_MS, NAMES, PAGES_COUNT, RENEW_MS, Asking


@pytest.fixture
async def renewing(request: pytest.FixtureRequest) -> AsyncIterator[Asking]:
    """With a lease that has just been renewed, and all names asked for since."""
    asking = Asking(getattr(request, "param", COUNT))
    await asking.set_up()
    await asking.renew()
    asking.time.advance(1)
    await asking.pass_time(KEEP_MS)
    await asking.find_all()
    asking.manifest.questions = 0
    yield asking
    await asking.names.aclose()


async def test_streams_that_are_appended_to_seldom_ask_nobody(renewing: Asking) -> None:
    """Each asked manifest alone for each append, at intervals of more than 8 s. The check of names
    in use looked every 4 s, and the benchmarks did so more often."""
    for _ in range(5):
        await renewing.pass_time(30_000)
        await renewing.find_all()
        assert renewing.refreshed()
    assert renewing.manifest.questions == 0


async def test_of_many_names_only_one_that_was_freed_is_asked_for(renewing: Asking) -> None:
    await renewing.delete(NAMES[3])
    await renewing.pass_time(30_000)
    with pytest.raises(NotFound):
        await renewing.names.find(NAMES[3])
    assert renewing.manifest.questions == 1

    for name in NAMES:
        if name != NAMES[3]:
            await renewing.names.find(name)
    assert renewing.manifest.questions == 1


async def test_a_name_of_another_stream_by_now_leads_there_after_the_next_renewal(
    renewing: Asking,
) -> None:
    before = await renewing.names.find(NAMES[3])
    await renewing.delete(NAMES[3])
    other = await renewing.create(NAMES[3], COUNT)
    assert await renewing.names.find(NAMES[3]) == before, "nobody has told this node yet"

    await renewing.pass_time(RENEW_MS)
    assert await renewing.names.find(NAMES[3]) == other


async def test_a_freed_name_is_good_for_as_long_as_the_lease_at_most(
    renewing: Asking,
) -> None:
    """Renewals fail from the deletion on: the belief in the last one ends as that in the lease."""
    before = await renewing.names.find(NAMES[3])
    await renewing.renew()
    await renewing.delete(NAMES[3])
    renewing.time.advance(KEEP_MS - 1)
    assert await renewing.names.find(NAMES[3]) == before
    await eventually(renewing.refreshed)
    with pytest.raises(NotFound):
        await renewing.names.find(NAMES[3])

    await renewing.create(NAMES[3], COUNT)
    renewing.time.advance(1)
    assert await renewing.names.find(NAMES[3]) != before


async def test_a_machine_that_slept_asks_again(renewing: Asking) -> None:
    """Its monotonic clock stood still, and so did the age of what it knew."""
    before = await renewing.names.find(NAMES[3])
    await renewing.delete(NAMES[3])
    await renewing.create(NAMES[3], COUNT)
    renewing.time.sleep(KEEP_MS)
    assert await renewing.names.find(NAMES[3]) != before


async def test_an_answer_that_is_under_way_over_a_deletion_is_not_believed_for_longer(
    renewing: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = NAMES[3]
    renewing.names._known.forget(name)
    answer = renewing.manifest.call

    async def answer_late(method: str, path: str, **rest: Any) -> PeerAnswer:
        said = await answer(method, path, **rest)
        monkeypatch.setattr(renewing.manifest, "call", answer)
        await renewing.delete(name)
        await renewing.pass_time(RENEW_MS)
        return said

    monkeypatch.setattr(renewing.manifest, "call", answer_late)
    asked_at = renewing.time.elapsed
    assert await renewing.names.find(name)
    await renewing.pass_time(asked_at + KEEP_MS - renewing.time.elapsed)
    with pytest.raises(NotFound):
        await renewing.names.find(name)


@pytest.mark.parametrize("lost", ["the mark", "the generation"])
async def test_where_what_is_shown_is_lost_names_grow_old_as_without_it(
    renewing: Asking, lost: str
) -> None:
    before = await renewing.names.find(NAMES[0])
    await renewing.delete(NAMES[1])
    await renewing.pass_time(RENEW_MS)
    if lost == "the mark":
        renewing.coordination.write(Changes({FREED_KEY: None}))
    else:
        renewing.coordination.write(Changes({GENERATION_KEY: None}))
    # What the mark would have told is not told by anybody.
    renewing.coordination.write(
        Changes({name_key(NAMES[0]): b"0198d2a4-5b1e-7c3a-9a51-000000000002"})
    )
    await renewing.pass_time(KEEP_MS)
    assert await renewing.names.find(NAMES[0]) != before


async def test_a_stream_that_coordination_lost_between_two_renewals_is_believed_until_the_next(
    renewing: Asking,
) -> None:
    """It was created, and asked for, after the last renewal; then a store that lacks that took the
    place of the other. The mark is the same before and after, so the stream was believed for a minute:
    checks of lost marks had a renewal in between."""
    before = renewing.coordination.copy()
    lost = FullName("default", StreamName("lost"))
    stream_id = await renewing.create(lost, COUNT)
    assert await renewing.names.find(lost) == stream_id

    renewing.coordination.put_back(before)
    await renewing.pass_time(RENEW_MS)

    with pytest.raises(NotFound):
        await renewing.names.find(lost)
    renewing.manifest.questions = 0
    await renewing.find_all()
    assert renewing.manifest.questions == 0, "all others were found to mean the same"


@pytest.mark.parametrize("renewing", [PAGES_COUNT], indirect=True)
async def test_after_a_rebuild_names_are_looked_up_though_the_mark_is_the_same(
    renewing: Asking,
) -> None:
    other = await renewing.create(FullName("default", StreamName("other")), PAGES_COUNT)
    renewing.coordination.write(
        Changes(
            {
                GENERATION_KEY: b'{"generation":1,"bucket":true}',
                name_key(NAMES[0]): other.stream_id.encode(),
            }
        )
    )
    await renewing.pass_time(RENEW_MS)
    assert await renewing.names.find(NAMES[0]) == other
    assert renewing.manifest.questions == 1, "all others were found to mean the same"


async def test_who_frees_names_without_the_mark_is_noticed_within_a_minute(
    renewing: Asking,
) -> None:
    """A manifest of the release before does not know of the mark."""
    name = NAMES[3]
    renewing.coordination.write(Changes({name_key(name): None}))
    await renewing.pass_time(ERA_MS_MAX + RENEW_MS)
    with pytest.raises(NotFound):
        await renewing.names.find(name)


async def test_names_that_nobody_uses_are_not_looked_up(
    renewing: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[FullName] = []
    real = renewing.streams.find_many

    async def find_many(names: Sequence[FullName]) -> dict[FullName, StreamId]:
        looked_up.extend(names)
        return await real(names)

    monkeypatch.setattr(renewing.streams, "find_many", find_many)
    await renewing.pass_time(600_000)
    looked_up.clear()
    await renewing.names.find(NAMES[7])
    await renewing.delete(NAMES[3])
    await renewing.pass_time(RENEW_MS)
    assert looked_up == [NAMES[7]]


async def test_where_the_store_does_not_answer_names_in_use_are_asked_of_manifest(
    renewing: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> dict[FullName, StreamId]:
        raise CoordinationUnavailable("the coordination store does not answer")

    await renewing.delete(NAMES[3])
    monkeypatch.setattr(renewing.streams, "find_many", away)
    renewing.time.advance(RENEW_MS)
    await renewing.renew()
    monkeypatch.undo()
    renewing.time.advance(1_000)
    assert await renewing.names.find(NAMES[0])
    assert renewing.manifest.questions == 0, "the old answer is good, and nobody waited"
    await eventually(renewing.refreshed)
    assert renewing.manifest.asked_together[-1] == [NAMES[0]]
