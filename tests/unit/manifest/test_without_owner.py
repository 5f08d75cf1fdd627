"""Where the manifest asked an owner, or believed that there is one: streams that never have one.

A leaderless stream looks like one that anybody may claim: clean, without a home. Each of these places
would have gone wrong without an error.
"""

from dataclasses import replace

import pytest
from support.guards import remove
from support.leaderless import (
    WalWriter,
    a_leaderless_harness,
    a_leaderless_record,
    a_leaderless_stream,
    tail_of,
)
from support.manifest import NODE, STREAM, Fault, ManifestHarness
from unit.manifest.test_manifest_api import running

from bottomless.errors import Code, Unavailable
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.manifest.leaderless.pruning import prune_published
from bottomless_server.manifest.mutators.bounds import StreamBounds
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.registry.stream_description import known_committed_next
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.node.core.ownership import LocalView, claim
from bottomless_server.stores import tails
from bottomless_server.stores.tail_keys import entries_from, tail_index_key, tail_key

EPOCH = first_epoch(0)


async def a_stream_with(harness: ManifestHarness, chunk_count: int, flushes: int = 1) -> WalWriter:
    """A stream to which flushes were committed, of two records in each chunk."""
    await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    for _ in range(flushes):
        await writer.flush(STREAM, count=chunk_count)
    return writer


async def entry_count(harness: ManifestHarness) -> int:
    return len(await entries_from(harness.coordination, STREAM, 0))


async def publish_ten(harness: ManifestHarness, mutators: Mutators) -> None:
    """An uploader's session publishes the first ten records."""
    mutator = mutators.of(STREAM)
    await mutator.begin("s1")
    (uid,) = (await mutator.intend("s1", [0])).uids
    fragment = await harness.put_fragment(uid, 0, epoch=EPOCH)
    await mutator.register("s1", [fragment])
    await mutator.flush()


async def until_pruned(harness: ManifestHarness, mutators: Mutators) -> None:
    """Every change of the record is told, so the task has pruned when it waits for the next one."""
    while (await tail_of(harness)).pruned_next == 0:
        await mutators.of(STREAM).refresh()


NOTHING_HERE = LocalView(next_offset=0, empty=True)


def test_no_node_claims_it() -> None:
    with pytest.raises(Unavailable) as raised:
        claim(a_leaderless_record(), NODE, "unix:///x.sock", NOTHING_HERE, home_held=False)
    assert raised.value.code is Code.NOT_OWNER


def test_without_a_look_at_its_profile_a_node_claims_it(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "the profile of a stream that is claimed", lambda _: True)
    claimed = claim(a_leaderless_record(), NODE, "unix:///x.sock", NOTHING_HERE, home_held=False)
    assert claimed.home == NODE


def test_its_record_does_not_prove_where_it_ends() -> None:
    assert known_committed_next(a_leaderless_record()) is None


async def test_it_ends_where_its_tail_does() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5)
    bounds = StreamBounds(harness.context, Mutators(harness.context))

    assert await bounds.committed_next(await harness.record()) == 10

    harness.coordination.write(Changes({tail_key(STREAM): None}))
    assert await bounds.committed_next(await harness.record()) is None


async def test_what_a_session_left_is_adopted_up_to_the_end_of_the_tail() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5, flushes=2)
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s1")
    uids = await intend(harness.context, committer, "s1", [0, 10, 20])
    for number, uid in enumerate(uids):
        await harness.put_fragment(uid, 10 * number, epoch=EPOCH)

    record = await begin(harness.context, committer, "s2")

    assert [leaf.first_offset for leaf in await harness.leaves()] == [0, 10]
    # What the third one holds was never committed.
    assert [intent.uid for intent in record.quarantine] == [uids[2]]


async def test_of_a_stream_without_a_tail_nothing_is_adopted() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5)
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s1")
    (uid,) = await intend(harness.context, committer, "s1", [0])
    await harness.put_fragment(uid, 0, epoch=EPOCH)
    harness.coordination.write(Changes({tail_key(STREAM): None}))

    record = await begin(harness.context, committer, "s2")

    assert await harness.leaves() == []
    assert [intent.uid for intent in record.quarantine] == [uid]


async def test_a_fragment_of_another_epoch_is_given_up() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5)
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s1")
    (uid,) = await intend(harness.context, committer, "s1", [0])
    await harness.put_fragment(uid, 0, epoch=EPOCH + 1)

    await begin(harness.context, committer, "s2")

    assert await harness.leaves() == []


async def test_what_is_published_leaves_the_tail() -> None:
    """Nobody is told, since nobody owns it: the tail is pruned in the place of that."""
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5, flushes=2)
    mutators = Mutators(harness.context)

    await publish_ten(harness, mutators)
    await until_pruned(harness, mutators)

    tail = await tail_of(harness)
    assert (tail.pruned_next, tail.published_next, tail.next_offset) == (10, 10, 20)
    assert await entry_count(harness) == 1
    assert harness.owners.heard == []
    await mutators.aclose()


async def test_a_session_prunes_what_a_process_left_that_died_after_a_publish() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5, flushes=2)
    published = replace(await harness.record(), published_next=10)
    await harness.streams.update(STREAM, lambda _: published)
    committer = await Committer.open(harness.context, STREAM)
    assert await entry_count(harness) == 2

    await begin(harness.context, committer, "s1")

    assert await entry_count(harness) == 1


async def test_a_prune_goes_on_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "PRUNE_COUNT_MAX", 2)
    monkeypatch.setattr(tails.prune, "__defaults__", (2,))
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 1, flushes=5)
    record = replace(await harness.record(), published_next=10)
    await harness.streams.update(STREAM, lambda _: record)

    assert await prune_published(harness.context, record)

    assert await entry_count(harness) == 0


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_session_begins_also_where_nothing_can_be_pruned(fault: Fault) -> None:
    """The entries are harmless, and the next one prunes them."""
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5)
    record = replace(await harness.record(), published_next=10, uploader="s1")
    await harness.streams.update(STREAM, lambda _: record)
    committer = await Committer.open(harness.context, STREAM)
    harness.coordination.faults = [fault]

    assert await begin(harness.context, committer, "s1") == record
    assert harness.coordination.faults == []

    harness.coordination.arrive()
    assert await prune_published(harness.context, record)
    assert await entry_count(harness) == 0


async def test_a_damaged_entry_does_not_end_a_session() -> None:
    harness = await a_leaderless_harness()
    await a_stream_with(harness, 5)
    index = tail_index_key(STREAM)
    damaged = harness.coordination.peek_members(index)[0][:20]
    harness.coordination.write(Changes(members=[Member(index, damaged, True)]))
    committer = await Committer.open(harness.context, STREAM)

    assert (await begin(harness.context, committer, "s1")).uploader == "s1"


async def test_there_is_no_home_to_take_it_from() -> None:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    async with running(harness) as service:
        answer = await service.public.post(
            "/v1/admin/streams/orders/takeover", json={"accept_loss": True, "expect_home": NODE}
        )
    assert (answer.status_code, answer.json()["code"]) == (422, "validation-failed")
    assert [fault["code"] for fault in answer.json()["errors"]] == ["leaderless"]
