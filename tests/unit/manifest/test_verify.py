"""Verification finds what is missing or damaged, says where, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.manifest import STREAM, ManifestHarness
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


async def real(harness: ManifestHarness, count: int) -> tuple[Committer, list[FragmentInfo]]:
    """A stream of real fragments of ten records each."""
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", [n * 10 for n in range(count)])
    fragments = [
        await harness.put_fragment(uid, n * 10, timestamp=1_000 + n) for n, uid in enumerate(uids)
    ]
    await committer.register("s1", fragments)
    await committer.flush()
    return committer, fragments


async def begin(
    harness: ManifestHarness, *, checksums: bool = False
) -> tuple[Operations, Operation]:
    operations = Operations(harness.context)
    register_verify(operations)
    begun = await operations.begin(
        VERIFY, tenant="default", stream_id=STREAM, arguments={"checksums": checksums}
    )
    return operations, begun


async def report(harness: ManifestHarness, *, checksums: bool = False) -> dict[str, Any]:
    operations, begun = await begin(harness, checksums=checksums)
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


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def test_a_sound_stream_is_sound_at_any_depth_and_after_cuts() -> None:
    harness = ManifestHarness()
    committer, fragments = await real(harness, 21)

    for before in (0, 10, 50, 90, 120, 200):
        await trim(harness.context, committer, before, allow_empty=False)
        found = await report(harness, checksums=True)
        assert places(found) == []
        assert found["fragments"] == 21 - before // 10
        assert found["bytes"] == sum(one.size for one in fragments[before // 10 :])
        assert found["version"] == committer.record.version
    assert (await report(harness))["bytes"] == 0


async def test_a_group_of_groups_that_were_cut_is_sound() -> None:
    """Its object has what was live when it was made, and not all that its subtree names."""
    harness = ManifestHarness()
    committer, _ = await real(harness, 9)
    await trim(harness.context, committer, 30, allow_empty=False)
    uids = await intend(harness.context, committer, "s1", [n * 10 for n in range(9, 30)])
    more = [
        await harness.put_fragment(uid, n * 10, timestamp=1_000 + n)
        for n, uid in zip(range(9, 30), uids, strict=True)
    ]
    await committer.register("s1", more)
    await committer.flush()
    assert places(await report(harness)) == []
    await trim(harness.context, committer, 50, allow_empty=False)
    assert places(await report(harness)) == []
    await harness.leaves()


async def test_missing_and_truncated_fragments_are_named() -> None:
    harness = ManifestHarness()
    _, fragments = await real(harness, 12)
    gone, short = fragments[1], fragments[10]
    await harness.drive.delete([fragment_key(STREAM, gone.first_offset, gone.uid)])
    key = fragment_key(STREAM, short.first_offset, short.uid)
    harness.drive.damage(key, (await harness.drive.get(key))[:-1])

    found = await report(harness)

    assert places(found) == [("fragment-missing", 10, 19), ("fragment-size", 100, 109)]
    assert [one["id"] for one in found["faults"]] == [gone.fragment_id, short.fragment_id]
    assert found["fragments"] == 12


async def test_a_flipped_byte_is_found_where_all_bytes_are_read() -> None:
    harness = ManifestHarness()
    _, fragments = await real(harness, 6)
    key = fragment_key(STREAM, 30, fragments[3].uid)
    harness.drive.damage(key, flipped(await harness.drive.get(key), 100))

    assert places(await report(harness)) == []
    assert places(await report(harness, checksums=True)) == [("fragment-checksum", 30, 39)]


async def test_missing_and_damaged_groups_are_named_and_the_rest_is_walked() -> None:
    harness = ManifestHarness()
    committer, _ = await real(harness, 16)
    entries = committer.keeper.root.entries
    groups = [facts.object_key async for facts in harness.drive.list() if ".g" in facts.object_key]
    top = next(key for key in groups if key.endswith(f".g{int(entries['height'][0])}"))
    end = int(entries["next_offset"][0])
    harness.drive.damage(top, flipped(await harness.drive.get(top), 40))
    found = await report(harness)
    assert places(found) == [("group-corrupt", 0, end - 1)]
    assert found["fragments"] == 16 - end // 10

    await harness.drive.delete([top])
    assert places(await report(harness)) == [("group-missing", 0, end - 1)]


async def rewrite_root(harness: ManifestHarness, root: Node) -> None:
    """A root that says something else, sealed and named like any other."""
    record = await harness.record()
    assert record.root is not None
    data = encode_node(root)
    pointer = replace(record.root, size=len(data), crc=crc32c(data))
    harness.drive.damage(root_object_key(record), data)
    await harness.streams.update(STREAM, lambda record: replace(record, root=pointer))


@pytest.mark.parametrize("before", [0, 30])
async def test_sums_that_do_not_hold_are_found_with_and_without_a_cut(before: int) -> None:
    harness = ManifestHarness()
    committer, _ = await real(harness, 16)
    await trim(harness.context, committer, before, allow_empty=False)
    root = committer.keeper.root
    entries = root.entries.copy()
    entries["byte_size"][0] += np.uint64(1)
    await rewrite_root(harness, replace(root, entries=entries))

    first, end = int(entries["first_offset"][0]), int(entries["next_offset"][0])
    assert places(await report(harness)) == [("group-sums", first, end - 1)]


async def test_a_missing_root_is_a_fault_and_not_a_failure() -> None:
    harness = ManifestHarness()
    committer, _ = await real(harness, 2)
    await harness.drive.delete([root_object_key(committer.record)])
    found = await report(harness)
    assert [kind for kind, _, _ in places(found)] == ["root-missing"]


async def test_an_empty_stream_is_sound() -> None:
    harness = ManifestHarness()
    committer, _ = await real(harness, 2)
    await trim(harness.context, committer, 20, allow_empty=True)
    assert places(await report(harness)) == []


async def test_what_is_trimmed_and_written_during_a_verification_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ManifestHarness(manifest_fanout=50)
    monkeypatch.setattr(verify, "STEP_COUNT", 3)
    committer, fragments = await real(harness, 20)
    asked: list[str] = []
    head = harness.drive.head

    async def slow(object_key: str, *, checksum: bool = False) -> Any:
        asked.append(object_key)
        if len(asked) == 4:
            await cut_and_delete(harness, committer, fragments)
        return await head(object_key, checksum=checksum)

    monkeypatch.setattr(harness.drive, "head", slow)
    found = await report(harness)

    assert places(found) == []
    assert len(asked) < 20


async def cut_and_delete(
    harness: ManifestHarness, committer: Committer, fragments: Sequence[FragmentInfo]
) -> None:
    await trim(harness.context, committer, 100, allow_empty=False)
    await harness.drive.delete([fragment_key(STREAM, n * 10, fragments[n].uid) for n in range(10)])


async def test_the_report_names_a_bounded_number_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ManifestHarness()
    monkeypatch.setattr(verify, "FAULT_COUNT_MAX", 3)
    _, fragments = await real(harness, 8)
    await harness.drive.delete(
        [fragment_key(STREAM, one.first_offset, one.uid) for one in fragments[:5]]
    )
    found = await report(harness)
    assert (found["fault_count"], len(found["faults"]), found["sound"]) == (5, 3, False)
