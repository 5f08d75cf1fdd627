"""Verification finds what is missing or damaged, says where, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.manifest import STREAM, World
from support.object_keys import fragment_key

from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import encode_node
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.streams import verify
from bottomless_server.manifest.streams.verify import VERIFY, register_verify
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.stores.operations import Operation


async def real(world: World, count: int) -> tuple[Committer, list[FragmentInfo]]:
    """A stream of real fragments of ten records each."""
    committer = await world.open()
    uids = await intend(world.context, committer, "s1", [n * 10 for n in range(count)])
    fragments = [
        await world.put_fragment(uid, n * 10, timestamp=1_000 + n) for n, uid in enumerate(uids)
    ]
    await committer.register("s1", fragments)
    await committer.flush()
    return committer, fragments


async def begin(world: World, *, checksums: bool = False) -> tuple[Operations, Operation]:
    operations = Operations(world.context)
    register_verify(operations)
    begun = await operations.begin(
        VERIFY, tenant="default", stream_id=STREAM, arguments={"checksums": checksums}
    )
    return operations, begun


async def report(world: World, *, checksums: bool = False) -> dict[str, Any]:
    operations, begun = await begin(world, checksums=checksums)
    await operations.make_pass()
    await operations.settled()
    found = await operations.find(begun.operation_id)
    assert found.state == "succeeded", found
    assert found.result is not None
    return dict(found.result)


def places(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    assert found["fault_count"] == len(found["faults"])
    assert found["sound"] == (not found["faults"])
    return [(one["kind"], one["first_offset"], one["last_offset"]) for one in found["faults"]]


def damage(world: World, object_key: str, data: bytes) -> None:
    """As a disk would: behind the drive's back."""
    _, modified = world.drive._objects[object_key]
    world.drive._objects[object_key] = (data, modified)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def test_a_sound_stream_is_sound_at_any_depth_and_after_cuts() -> None:
    world = World()
    committer, fragments = await real(world, 21)

    for before in (0, 10, 50, 90, 120, 200):
        await trim(world.context, committer, before, allow_empty=False)
        found = await report(world, checksums=True)
        assert places(found) == []
        assert found["fragments"] == 21 - before // 10
        assert found["bytes"] == sum(one.size for one in fragments[before // 10 :])
        assert found["version"] == committer.record.version
    assert (await report(world))["bytes"] == 0


async def test_a_group_of_groups_that_were_cut_is_sound() -> None:
    """Its object has what was live when it was made, and not all that its subtree names."""
    world = World()
    committer, _ = await real(world, 9)
    await trim(world.context, committer, 30, allow_empty=False)
    uids = await intend(world.context, committer, "s1", [n * 10 for n in range(9, 30)])
    more = [
        await world.put_fragment(uid, n * 10, timestamp=1_000 + n)
        for n, uid in zip(range(9, 30), uids, strict=True)
    ]
    await committer.register("s1", more)
    await committer.flush()
    assert places(await report(world)) == []
    await trim(world.context, committer, 50, allow_empty=False)
    assert places(await report(world)) == []
    await world.leaves()


async def test_missing_and_truncated_fragments_are_named() -> None:
    world = World()
    _, fragments = await real(world, 12)
    gone, short = fragments[1], fragments[10]
    await world.drive.delete([fragment_key(STREAM, gone.first_offset, gone.uid)])
    key = fragment_key(STREAM, short.first_offset, short.uid)
    damage(world, key, (await world.drive.get(key))[:-1])

    found = await report(world)

    assert places(found) == [("fragment-missing", 10, 19), ("fragment-size", 100, 109)]
    assert [one["id"] for one in found["faults"]] == [gone.fragment_id, short.fragment_id]
    assert found["fragments"] == 12


async def test_a_flipped_byte_is_found_where_all_bytes_are_read() -> None:
    world = World()
    _, fragments = await real(world, 6)
    key = fragment_key(STREAM, 30, fragments[3].uid)
    damage(world, key, flipped(await world.drive.get(key), 100))

    assert places(await report(world)) == []
    assert places(await report(world, checksums=True)) == [("fragment-checksum", 30, 39)]


async def test_missing_and_damaged_groups_are_named_and_the_rest_is_walked() -> None:
    world = World()
    committer, _ = await real(world, 16)
    entries = committer.keeper.root.entries
    groups = [facts.object_key async for facts in world.drive.list() if ".g" in facts.object_key]
    top = next(key for key in groups if key.endswith(f".g{int(entries['height'][0])}"))
    end = int(entries["next_offset"][0])
    damage(world, top, flipped(await world.drive.get(top), 40))
    found = await report(world)
    assert places(found) == [("group-corrupt", 0, end - 1)]
    assert found["fragments"] == 16 - end // 10

    await world.drive.delete([top])
    assert places(await report(world)) == [("group-missing", 0, end - 1)]


async def rewrite_root(world: World, root: Node) -> None:
    """A root that says something else, sealed and named like any other."""
    record = await world.record()
    assert record.root is not None
    data = encode_node(root)
    pointer = replace(record.root, size=len(data), crc=crc32c(data))
    damage(world, root_object_key(record), data)
    await world.streams.update(STREAM, lambda record: replace(record, root=pointer))


@pytest.mark.parametrize("before", [0, 30])
async def test_sums_that_do_not_hold_are_found_with_and_without_a_cut(before: int) -> None:
    world = World()
    committer, _ = await real(world, 16)
    await trim(world.context, committer, before, allow_empty=False)
    root = committer.keeper.root
    entries = root.entries.copy()
    entries["byte_size"][0] += np.uint64(1)
    await rewrite_root(world, replace(root, entries=entries))

    first, end = int(entries["first_offset"][0]), int(entries["next_offset"][0])
    assert places(await report(world)) == [("group-sums", first, end - 1)]


async def test_a_missing_root_is_a_fault_and_not_a_failure() -> None:
    world = World()
    committer, _ = await real(world, 2)
    await world.drive.delete([root_object_key(committer.record)])
    found = await report(world)
    assert [kind for kind, _, _ in places(found)] == ["root-missing"]


async def test_an_empty_stream_is_sound() -> None:
    world = World()
    committer, _ = await real(world, 2)
    await trim(world.context, committer, 20, allow_empty=True)
    assert places(await report(world)) == []


async def test_what_is_trimmed_and_written_during_a_verification_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(manifest_fanout=50)
    monkeypatch.setattr(verify, "_STEP_COUNT", 3)
    committer, fragments = await real(world, 20)
    asked: list[str] = []
    head = world.drive.head

    async def slow(object_key: str, *, checksum: bool = False) -> Any:
        asked.append(object_key)
        if len(asked) == 4:
            await cut_and_delete(world, committer, fragments)
        return await head(object_key, checksum=checksum)

    monkeypatch.setattr(world.drive, "head", slow)
    found = await report(world)

    assert places(found) == []
    assert len(asked) < 20


async def cut_and_delete(
    world: World, committer: Committer, fragments: Sequence[FragmentInfo]
) -> None:
    await trim(world.context, committer, 100, allow_empty=False)
    await world.drive.delete([fragment_key(STREAM, n * 10, fragments[n].uid) for n in range(10)])


async def test_the_report_names_a_bounded_number_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(verify, "FAULT_COUNT_MAX", 3)
    _, fragments = await real(world, 8)
    await world.drive.delete(
        [fragment_key(STREAM, one.first_offset, one.uid) for one in fragments[:5]]
    )
    found = await report(world)
    assert (found["fault_count"], len(found["faults"]), found["sound"]) == (5, 3, False)
