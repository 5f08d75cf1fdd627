"""The first uploads of a stream, and a loss of coordination between any two of their steps.

Uploads end in any order, and some never do. So before anything of a stream is published its bucket
may have any of its fragments. All checks of rebuilds began with streams of which something was
published, or whose first fragment was there: the model imagined no loss before the first publish,
and in the simulation that time is short. One seed met it by chance.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest
from support.chunks import a_chunk
from support.guards import remove
from support.manifest import STREAM, Crash, Fault, ManifestHarness
from support.object_keys import fragment_key
from support.rebuilding import a_harness, doomed, firsts, publish, rebuild

from bottomless.errors import Fenced, StoreError, Unavailable
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.keys import parse_root_key, root_prefix
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.node.core.ownership import LocalView, claim

FIRSTS = (0, 10, 20)
CRASHES = range(20)
"""More changes of the stores than the first uploads of a stream make."""


def subsets(of: Sequence[int]) -> list[tuple[int, ...]]:
    return [chosen for count in range(len(of) + 1) for chosen in combinations(of, count)]


async def upload(
    harness: ManifestHarness, session: str, stored: Iterable[int], count: int = 10
) -> None:
    """A session asks for uids one after the other, as it cuts; only some of its puts arrive."""
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, session)
    for first in FIRSTS:
        (uid,) = await intend(harness.context, committer, session, [first])
        if first in stored:
            await put(harness, uid, first, count)


async def put(harness: ManifestHarness, uid: Uid, first: int, count: int = 10) -> FragmentInfo:
    """Put a fragment of so many records."""
    packed = pack_fragment(STREAM, uid, [a_chunk(first, count, timestamp=1_000 + first)])
    key = fragment_key(STREAM, first, uid)
    await harness.drive.put(key, packed.parts, packed.info.crc)
    return packed.info


async def lose_and_go_on(harness: ManifestHarness) -> list[int]:
    """Coordination is lost and rebuilt, and the home uploads all that it has; returns what the
    rebuild had found."""
    harness.coordination.lose()
    result = await rebuild(harness)
    assert result["unreadable_streams"] == 0, "its manifest was never lost"
    assert result["damaged_streams"] == 0
    found = await firsts(harness)
    record = await harness.record()
    local = LocalView(next_offset=40, empty=False, epoch=1, version=0, published_next=0)

    def own(record: StreamRecord) -> StreamRecord:
        return claim(record, _home(record), "unix:///owner.sock", local, home_held=False)

    await harness.streams.update(STREAM, own)
    committer, first = await harness.open("home"), record.published_next
    (uid,) = await intend(harness.context, committer, "home", [first])
    info = await put(harness, uid, first, 40 - first)
    assert await committer.register("home", [info]) == ()
    await committer.flush()
    assert (await harness.record()).published_next == 40
    return found


def _home(record: StreamRecord) -> Any:
    assert record.home is not None
    return record.home


async def look_at_all(harness: ManifestHarness) -> None:
    """What was to be deleted goes; then coordination is lost once more."""
    harness.clock.now += 25 * 3_600_000
    await Deleter(harness.context).make_pass()
    for leaf in await harness.leaves():
        assert harness.drive.has(fragment_key(STREAM, leaf.first_offset, leaf.uid))
    before = await firsts(harness)
    harness.coordination.lose()
    assert (await rebuild(harness))["unreadable_streams"] == 0
    assert await firsts(harness) == before


@pytest.mark.parametrize("stored", subsets(FIRSTS))
async def test_whichever_first_uploads_arrived_a_rebuild_finds_a_readable_stream(
    stored: tuple[int, ...],
) -> None:
    harness = await a_harness()
    await upload(harness, "s1", stored)

    found = await lose_and_go_on(harness)

    assert found == [first for first in FIRSTS if set(range(0, first + 1, 10)) <= set(stored)]
    await look_at_all(harness)


@pytest.mark.parametrize("stored", subsets(FIRSTS))
@pytest.mark.parametrize("later", subsets(FIRSTS)[1:])
async def test_nor_does_it_matter_what_a_session_before_had_cut_otherwise(
    stored: tuple[int, ...], later: tuple[int, ...]
) -> None:
    """The owner does not answer, so the second session gives up what the first one has put, and
    cuts at the same places fragments that are shorter."""
    harness = await a_harness()
    await upload(harness, "s1", stored)
    await upload(harness, "s2", later, count=5)

    await lose_and_go_on(harness)

    await look_at_all(harness)


@pytest.mark.parametrize("left", CRASHES)
async def test_whenever_manifest_or_the_uploader_dies_no_fragment_is_there_without_a_root(
    left: int,
) -> None:
    harness = await a_harness()
    harness.fuse.left = left
    with suppress(Crash):
        await upload(harness, "s1", [10, 20])
    harness.fuse.left = None

    assert await lose_and_go_on(harness) == []
    await look_at_all(harness)


async def test_the_deaths_above_are_all_that_there_are() -> None:
    harness = await a_harness()
    harness.fuse.left = CRASHES[-1]

    await upload(harness, "s1", [10, 20])

    assert harness.fuse.left is not None, "the last of them comes after the end"


@pytest.mark.parametrize("left", range(8))
async def test_a_first_root_that_died_is_put_by_who_asks_next(left: int) -> None:
    harness = await a_harness()
    committer = await harness.open("s1")
    harness.fuse.left = left
    with suppress(Crash):
        await intend(harness.context, committer, "s1", [0])
    harness.fuse.left = None

    await upload(harness, "s2", [10])

    assert (await harness.record()).root is not None
    assert await lose_and_go_on(harness) == []


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.UNAVAILABLE],
        [Fault.LOST_APPLIED],
        [Fault.LOST_LATE],
        [Fault.LOST_APPLIED, Fault.UNAVAILABLE],
        [Fault.LOST_LATE, Fault.UNAVAILABLE],
        [Fault.UNAVAILABLE] * 4,
    ],
)
async def test_no_intent_is_written_while_nobody_knows_whether_the_root_is_named(
    faults: list[Fault],
) -> None:
    harness = await a_harness()
    committer = await harness.open("s1")
    harness.coordination.faults = list(faults)

    with suppress(Unavailable):
        await intend(harness.context, committer, "s1", [0, 10])
    record = await harness.record()
    assert record.root is not None or record.intents == ()
    harness.coordination.faults = []
    harness.coordination.arrive()

    await upload(harness, "s2", [10])
    assert await lose_and_go_on(harness) == []


async def test_two_processes_put_one_first_root_between_them() -> None:
    harness = await a_harness()
    one, other = await harness.open("s1"), await Committer.open(harness.context, STREAM)

    async def meanwhile() -> None:
        await intend(harness.context, other, "s1", [10])

    harness.drive.before_put = meanwhile
    await intend(harness.context, one, "s1", [0])

    record = await harness.record()
    assert [intent.first_offset for intent in record.intents] == [10, 0]
    assert record.version == 1
    uid = record.intents[1].uid
    await one.register("s1", [await put(harness, uid, 0)])
    await one.flush()
    assert await firsts(harness) == [0]
    # The root that was put in vain, and the one that was replaced.
    assert len([key for key in await doomed(harness) if "/root." in key]) == 2


async def test_a_session_of_the_past_puts_no_root() -> None:
    harness = await a_harness()
    old = await harness.open("s1")
    await begin(harness.context, await Committer.open(harness.context, STREAM), "s2")

    with pytest.raises(Fenced):
        await intend(harness.context, old, "s1", [0])

    assert await roots(harness) == 0


async def test_a_first_upload_costs_one_more_put_and_the_others_none() -> None:
    harness = await a_harness()
    for first in FIRSTS:
        before = len(harness.drive.calls)
        await publish(harness, first)
        assert len(harness.drive.calls) - before == (3 if first == 0 else 2)


async def test_a_put_that_lands_after_the_rebuild_makes_no_stream_unreadable() -> None:
    """It is of a session of before the loss, and lies after a hole, or at a place that was cut
    otherwise since."""
    harness = await a_harness()
    committer = await harness.open("s1")
    uids = await intend(harness.context, committer, "s1", FIRSTS)
    harness.coordination.lose()
    await rebuild(harness)

    for uid, first in zip(uids, FIRSTS, strict=True):
        if first != 10:
            await put(harness, uid, first, count=7)
    harness.coordination.lose()

    assert (await rebuild(harness))["unreadable_streams"] == 0
    assert await firsts(harness) == [0]


async def test_a_stream_that_an_earlier_release_left_with_intents_gets_its_root() -> None:
    harness = await a_harness()
    committer = await harness.open("s1")
    with pytest.MonkeyPatch.context() as patch:
        remove(patch, "a root before the first intent", _no_root)
        await intend(harness.context, committer, "s1", [0])
    assert await roots(harness) == 0

    (uid,) = await intend(harness.context, committer, "s1", [10])
    await put(harness, uid, 10)

    assert await lose_and_go_on(harness) == []


async def test_without_that_root_a_stream_is_unreadable_whose_records_are_all_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a root before the first intent", _no_root)
    harness = await a_harness()
    await upload(harness, "s1", [10])

    with pytest.raises(AssertionError, match="never lost"):
        await lose_and_go_on(harness)
    with pytest.raises(StoreError):
        await firsts(harness)


async def _no_root(*_: object) -> None:
    pass


async def roots(harness: ManifestHarness) -> int:
    listing = harness.drive.list(root_prefix(STREAM, TENANT_DEFAULT))
    return len([one async for one in listing if parse_root_key(one.object_key)])
