"""Coordination comes back from a backup that has the bucket's generation.

The tests of a lost coordination emptied it, or gave it an older generation; a backup of an
installation that was never rebuilt has the same one, and only garbage collection looked further.
"""

from dataclasses import replace
from functools import partial

import pytest
from support.guards import remove
from support.manifest import NODE, STREAM, Crash, ManifestHarness
from support.rebuilding import a_harness, firsts, publish, rebuild
from unit.manifest.test_manifest_api import running

from bottomless.errors import Code, Unavailable
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.going_back import has_gone_back
from bottomless_server.stores.streams import Streams

OTHER = NodeId(NODE[::-1])


async def from_a_backup() -> ManifestHarness:
    """Two publishes, of which a coordination that came back from a backup knows nothing."""
    harness = await a_harness(0, 10)
    backup = harness.coordination.copy()
    await publish(harness, 20)
    await publish(harness, 30)
    harness.coordination.put_back(backup)
    return harness


async def test_a_stream_whose_record_is_older_than_its_roots_is_not_published_into() -> None:
    harness = await from_a_backup()

    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await publish(harness, 20)
        assert caught.value.code is Code.COORDINATION_REGRESSED
        assert not caught.value.retryable


async def test_without_that_look_offsets_are_published_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def passes(*_: object) -> None:
        pass

    remove(monkeypatch, "the look at newer roots", passes)
    harness = await from_a_backup()

    await publish(harness, 20)

    assert await firsts(harness) == [0, 10, 20]


async def test_a_record_from_before_the_last_rebuild_is_believed_by_nobody() -> None:
    """Until a process has noticed that the store went back nothing else stops it: another node became the
    home of a stream, and the tail of its real home was set aside. What came back had always had the
    bucket's generation here."""
    harness = await a_harness(0, 10)
    backup = harness.coordination.copy()
    harness.coordination.lose()
    await rebuild(harness)
    assert harness.streams.generation == 1
    harness.coordination.put_back(backup)

    assert (await Streams(harness.coordination).load(STREAM)).generation == 0
    for believe in (
        partial(publish, harness, 20),
        partial(harness.streams.load, STREAM),
        partial(harness.streams.update, STREAM, lambda found: found),
    ):
        with pytest.raises(Unavailable) as caught:
            await believe()
        assert caught.value.code is Code.COORDINATION_REGRESSED
    assert list((await harness.streams.load_many([STREAM])).unreadable) == [STREAM]


async def test_without_the_generation_of_records_what_went_back_is_published_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def believe(_: Streams, record: StreamRecord) -> StreamRecord:
        return record

    remove(monkeypatch, "the generation of each record", believe)
    harness = await a_harness(0, 10)
    backup = harness.coordination.copy()
    harness.coordination.lose()
    await rebuild(harness)
    harness.coordination.put_back(backup)

    await publish(harness, 20)

    assert await firsts(harness) == [0, 10, 20]


async def test_no_node_that_claims_it_hears_that_the_bucket_knows() -> None:
    """A node acknowledges nothing of a stream that was not its own before it has heard that."""
    harness = await from_a_backup()
    await harness.streams.update(STREAM, lambda r: replace(r, home=OTHER, dirty=False))

    async with running(harness) as service:
        answer = await service.internal.put(f"/internal/v1/streams/{STREAM}/registry")

    assert (answer.status_code, answer.json()["code"]) == (503, "coordination-regressed")


async def test_an_attempt_that_was_cut_off_is_no_such_root() -> None:
    for left in range(100):
        harness = await a_harness(0, 10)
        harness.fuse.left = left
        try:
            await publish(harness, 20)
        except Crash:
            assert not await has_gone_back(harness.context, await harness.record())
            await Committer.open(harness.context, STREAM)
        else:
            assert left > 4
            return
    raise AssertionError("it never ends")


async def test_emptied_and_rebuilt_it_is_all_there() -> None:
    harness = await from_a_backup()
    harness.coordination.lose()

    await rebuild(harness)

    await publish(harness, 40)
    assert await firsts(harness) == [0, 10, 20, 30, 40]
