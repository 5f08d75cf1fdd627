"""A stream that cannot take its pieces is refused alone, and what is of before a rebuild is nobody's.

The tests had streams that are refused for a reason that was thought of. Whatever else one of them
raised came out of the EXEC of all, which is tried again and meets the same: nothing of that node was
committed any more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from unit.formats.examples import UID
from unit.stores.test_tails import BOUNDS, GENERATION, IDS, LOADER, TRACKED, Stores

from bottomless.errors import Code, Corrupt, StoreError, Unavailable
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.decided import Decided, NewKnown
from bottomless_server.leaderless.tail import UNSEEN
from bottomless_server.leaderless.tail_changes import Accepted, Committed, Refusal
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores import tails
from bottomless_server.stores.streams import Streams
from bottomless_server.stores.tail_commits import Asked, Commit, change_known, commit
from bottomless_server.stores.tail_keys import known_key, tail_key

ALONE = "what one stream of a commit raises, kept from the others"
OWN = "the generation of tail and record in each change of both"
PIECE = Accepted(UID, 0, 0, 1_024, 64, 2, 0)


def _raising(error: Exception) -> Callable[..., Decided]:
    def decide(*_: object) -> Decided:
        raise error

    return decide


BAD: dict[str, Callable[..., Decided]] = {
    "a bug of who decides": _raising(KeyError("loader-7")),
    "an assertion": _raising(AssertionError("never")),
    "a value that nobody reads": _raising(Corrupt("damaged")),
    "an error with a code": _raising(StoreError("odd")),
    "a producer of which nothing is known": lambda *_: Decided([PIECE], {LOADER: NewKnown([], 1)}),
    "a piece that is not padded": lambda *_: Decided([PIECE._replace(size=63)], {}),
    "a piece too large for its number": lambda *_: Decided([PIECE._replace(sequence=2**70)], {}),
}


async def commit_of_three(stores: Stores, odd: Callable[..., Decided]) -> Commit:
    """Of three streams the second is odd."""

    def good(place: int) -> Callable[..., Decided]:
        piece = PIECE._replace(number=place, position=1_024 + 64 * place)
        return lambda *_: Decided([piece], {})

    decides = [good(0), odd, good(2)]
    done = await commit(
        stores.coordination,
        stores.numbers,
        [Asked(IDS[n], [LOADER], UNSEEN, decide) for n, decide in enumerate(decides)],
        sequence=0,
        clock=5_000,
        settled=1,
        next_sequence=1,
        bounds=BOUNDS,
    )
    assert isinstance(done, Commit)
    return done


@pytest.fixture
async def stores() -> Stores:
    made = Stores()
    await made.open(count=3)
    return made


@pytest.mark.parametrize("which", BAD)
async def test_what_one_stream_raises_is_not_of_the_others(stores: Stores, which: str) -> None:
    before = await stores.tail(1)

    done = await commit_of_three(stores, BAD[which])

    assert done.streams[IDS[1]] is Refusal.DAMAGED
    assert await stores.tail(1) == before
    for number in (0, 2):
        assert isinstance(done.streams[IDS[number]], Committed)
        assert (await stores.tail(number)).next_offset == 2


async def test_without_that_nothing_is_committed_of_any(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, ALONE, lambda _, decide: decide())

    with pytest.raises(KeyError):
        await commit_of_three(stores, BAD["a bug of who decides"])
    assert (await stores.tail(0)).next_offset == 0


async def test_that_nothing_can_be_committed_now_is_told_for_all(stores: Stores) -> None:
    with pytest.raises(Unavailable):
        await commit_of_three(stores, _raising(Unavailable("not now")))


@pytest.mark.parametrize(("left", "taken"), [(2, True), (1, False)])
async def test_a_stream_that_has_no_offset_left_is_refused_alone(
    stores: Stores, left: int, taken: bool
) -> None:
    end = OFFSET_MAX + 1 - left
    tail = (await stores.tail(1))._replace(
        next_offset=end, pruned_next=end, published_next=end, last_chunk_offset=end
    )
    stores.coordination.write(Changes({tail_key(IDS[1]): encode_tail(tail)}))

    done = await commit_of_three(stores, lambda *_: Decided([PIECE._replace(number=1)], {}))

    if taken:
        assert isinstance(done.streams[IDS[1]], Committed)
    else:
        assert done.streams[IDS[1]] is Refusal.ENDED
    assert (await stores.tail(0)).next_offset == 2


async def test_a_count_that_has_drifted_ends_at_nothing(stores: Stores) -> None:
    """It could not be encoded, so nothing of the stream was ever forgotten."""
    await stores.commit(0, known={LOADER: NewKnown([TRACKED], 1)})
    tail = (await stores.tail())._replace(producer_count=0)
    stores.coordination.write(Changes({tail_key(IDS[0]): encode_tail(tail)}))

    await change_known(stores.coordination, IDS[0], LOADER, GENERATION, lambda *_: None)

    assert (await stores.tail()).producer_count == 0
    assert stores.coordination.peek(known_key(IDS[0], LOADER)) is None


async def test_a_prune_by_a_record_of_a_lower_version_is_refused(stores: Stores) -> None:
    await stores.commit(0)
    await stores.publish(2)
    await tails.prune(stores.coordination, IDS[0], GENERATION)
    await stores.streams.update(IDS[0], lambda record: replace(record, version=0))

    with pytest.raises(Unavailable) as raised:
        await tails.prune(stores.coordination, IDS[0], GENERATION)
    assert raised.value.code is Code.COORDINATION_REGRESSED


@pytest.mark.parametrize("what", ["tail", "record"])
@pytest.mark.parametrize("change", ["configure", "prune"])
async def test_what_is_of_before_the_last_rebuild_is_not_changed(
    stores: Stores, what: str, change: str
) -> None:
    before = await _half_restored(stores, what)

    with pytest.raises(Unavailable) as raised:
        await _changed(stores, change)
    assert raised.value.code is Code.COORDINATION_REGRESSED
    assert stores.coordination.copy() == before


async def test_without_that_it_is_changed(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, OWN, lambda *_: None)
    before = await _half_restored(stores, "record")

    await _changed(stores, "configure")
    assert stores.coordination.copy() != before


async def _half_restored(stores: Stores, what: str) -> Any:
    """Of a stream's record and its tail one is of the generation before."""
    await stores.commit(0)
    later = GENERATION + 1
    if what == "record":
        tail = (await stores.tail())._replace(generation=later)
        stores.coordination.write(Changes({tail_key(IDS[0]): encode_tail(tail)}))
    else:
        anybody = Streams(stores.coordination, frozenset({"leaderless"}))
        await anybody.update(IDS[0], lambda one: replace(one, generation=later))
    stores.generation(later)
    return stores.coordination.copy()


async def _changed(stores: Stores, change: str) -> None:
    later = GENERATION + 1
    if change == "prune":
        await tails.prune(stores.coordination, IDS[0], later)
    else:
        await tails.configure(stores.coordination, IDS[0], later, lambda one: replace(one, epoch=9))
