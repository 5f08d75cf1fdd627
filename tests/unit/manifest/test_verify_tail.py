"""Verification of a leaderless stream looks at its tail too, and finds what is missing or damaged."""

from typing import Any

import pytest
from support.leaderless import (
    WalWriter,
    a_leaderless_harness,
    a_leaderless_stream,
    publish_all,
)
from support.manifest import STREAM, ManifestHarness
from unit.manifest.test_verify import places, report

from bottomless.formats.keys import wal_key
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.manifest.leaderless import tail_check
from bottomless_server.stores.tail_keys import tail_index_key, tail_key


async def three_flushes() -> tuple[ManifestHarness, WalWriter]:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    for _ in range(3):
        await writer.flush(STREAM, count=5)
    return harness, writer


@pytest.mark.parametrize("checksums", [False, True])
async def test_a_sound_tail_has_no_fault(checksums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_check, "PAGE_COUNT", 2)
    harness, _ = await three_flushes()
    found = await report(harness, checksums=checksums)
    assert (found["sound"], found["tail_entries"]) == (True, 3)


@pytest.mark.parametrize(("checksums", "kind"), [(False, "wal-missing"), (True, "wal-missing")])
async def test_an_object_that_is_gone(checksums: bool, kind: str) -> None:
    harness, writer = await three_flushes()
    await harness.drive.delete([wal_key(writer.instance, 1)])
    found = await report(harness, checksums=checksums)
    assert places(found) == [(kind, 10, 19)]


async def test_an_object_that_is_cut_short() -> None:
    harness, writer = await three_flushes()
    key = wal_key(writer.instance, 1)
    harness.drive.damage(key, bytes(await harness.drive.get(key))[:-8])
    assert places(await report(harness)) == [("wal-size", 10, 19)]


async def test_a_piece_that_is_damaged_is_found_by_its_checksum() -> None:
    harness, writer = await three_flushes()
    harness.drive.flip(wal_key(writer.instance, 2), 300)
    assert (await report(harness))["sound"]
    assert places(await report(harness, checksums=True)) == [("wal-checksum", 20, 29)]


@pytest.mark.parametrize(("missing", "hole"), [(0, (0, 9)), (1, (10, 19)), (2, (20, 29))])
async def test_an_entry_that_is_missing_is_a_hole(missing: int, hole: tuple[int, int]) -> None:
    harness, _ = await three_flushes()
    index = tail_index_key(STREAM)
    member = harness.coordination.peek_members(index)[missing]
    harness.coordination.write(Changes(members=[Member(index, member, False)]))
    assert places(await report(harness)) == [("tail-hole", *hole)]


@pytest.mark.parametrize(("value", "kind"), [(None, "tail-missing"), (b"damaged", "tail-corrupt")])
async def test_a_tail_that_is_missing_or_cannot_be_read(value: Any, kind: str) -> None:
    harness, _ = await three_flushes()
    harness.coordination.write(Changes({tail_key(STREAM): value}))
    assert places(await report(harness)) == [(kind, 0, 0)]


async def test_what_is_compacted_while_it_looks_is_no_fault() -> None:
    harness, writer = await three_flushes()
    await harness.drive.delete([wal_key(writer.instance, 0)])
    head = harness.drive.head

    async def compacted(key: str) -> Any:
        await publish_all(harness)
        return await head(key)

    harness.drive.head = compacted  # type: ignore[assignment, method-assign]
    assert (await report(harness))["sound"]
