"""A rebuild from the bucket brings back what the manifest knew of filter values, and so what is skipped."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from support.manifest import NODE, STREAM, ManifestHarness, a_record
from support.object_keys import fragment_key, group_key
from support.rebuilding import put_registry, rebuild
from unit.manifest.test_verify_filters import VALUES, chunks_at, with_filters

from bottomless.formats.filter import AskedHashes, asked_hashes
from bottomless.formats.fragment import pack_fragment
from bottomless.model.config import parse_stored_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.core.filter_making import make_filters
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.nodes import load_node
from bottomless_server.tree.filters import entries_to_read

COUNT = 11
"""Fragments of ten records; the values are v0, v10, v20, …"""


@pytest.fixture
async def harness() -> ManifestHarness:
    made = ManifestHarness(manifest_fanout=2)
    made.streams.generation = await check_generation(made.drive, made.coordination)
    config = parse_stored_config({"filter": {"index": "values"}})
    record = a_record(home=NODE, config=config)
    await made.streams.create(record)
    await put_registry(made, record)
    await with_filters(made, COUNT)
    return made


async def put_more(harness: ManifestHarness, offset: int, *, indexed: bool = True) -> FragmentInfo:
    """A fragment that the manifest does not know of yet, as a crash leaves it."""
    data, uid = chunks_at(offset), Uid(f"{offset + 0xF000:032x}")
    tables = make_filters(data, MIB, VALUES) if indexed else ()
    packed = pack_fragment(STREAM, uid, data, tables)
    await harness.drive.put(fragment_key(STREAM, offset, uid), packed.parts, packed.info.crc)
    return packed.info


async def known(harness: ManifestHarness) -> list[FragmentInfo]:
    """What the committed manifest has of every fragment, filters included."""
    _, root = await load_root(harness.context, await harness.record())
    return [info async for info in _fragments(harness, root, None)]


async def looked_into(harness: ManifestHarness, value: str) -> list[int]:
    """First offsets of the fragments that a read with this filter goes to."""
    _, root = await load_root(harness.context, await harness.record())
    asked = asked_hashes([value.encode()])
    return [info.first_offset async for info in _fragments(harness, root, asked)]


async def _fragments(
    harness: ManifestHarness, node: Node, asked: AskedHashes | None
) -> AsyncIterator[FragmentInfo]:
    floor = (await harness.record()).condemned_next
    for number in _numbers(node, asked):
        entry = node.entries[number]
        if entry["next_offset"] <= floor or entry["kind"] == EntryKind.GAP:
            continue
        if entry["kind"] == EntryKind.FRAGMENT:
            yield fragment_info(entry, node.filters)
            continue
        uid = uid_from_bytes(entry["uid"].tobytes())
        key = group_key(STREAM, int(entry["first_offset"]), uid, int(entry["height"]))
        group = await load_node(
            harness.drive, key, int(entry["object_size"]), int(entry["object_crc"])
        )
        async for info in _fragments(harness, group, asked):
            yield info


def _numbers(node: Node, asked: AskedHashes | None) -> Iterator[int]:
    wanted = None if asked is None else entries_to_read(node, asked)
    yield from (n for n in range(len(node.entries)) if wanted is None or wanted[n])


async def test_filters_of_entries_are_there_again(harness: ManifestHarness) -> None:
    before = await known(harness)
    asked = [f"v{10 * number}" for number in range(COUNT)] + ["nowhere"]
    went = [await looked_into(harness, value) for value in asked]
    assert went[3] == [30], "or nothing was skipped before"
    harness.coordination.lose()

    await rebuild(harness)

    assert (await harness.record()).config.filter == VALUES
    assert await known(harness) == before
    assert [await looked_into(harness, value) for value in asked] == went


async def test_what_is_adopted_brings_its_filters_and_says_nothing_where_it_has_none(
    harness: ManifestHarness,
) -> None:
    after = [await put_more(harness, 10 * COUNT), await put_more(harness, 10 * COUNT + 10)]
    bare = await put_more(harness, 10 * COUNT + 20, indexed=False)
    harness.coordination.lose()

    assert (await rebuild(harness))["adopted_fragments"] == 3

    # Copies, under uids of their own.
    found = [
        info._replace(uid=wanted.uid, crc=wanted.crc)
        for info, wanted in zip((await known(harness))[COUNT:], [*after, bare], strict=True)
    ]
    assert found == [*after, bare]
    assert after[0].filters_size > 0, "it is read with the index"
    of_first = await looked_into(harness, f"v{10 * COUNT}")
    assert of_first == [10 * COUNT, bare.first_offset]


async def test_what_was_trimmed_before_does_not_come_back(harness: ManifestHarness) -> None:
    committer = await harness.open("s2")
    await trim(harness.context, committer, 50, allow_empty=False)
    before = [await looked_into(harness, value) for value in ("v30", "v70")]
    assert before[1] == [70]
    assert [one for one in before[0] if one >= 50] == []
    harness.coordination.lose()

    await rebuild(harness)

    assert await looked_into(harness, "v70") == [70]
    assert [info for info in await known(harness) if info.next_offset <= 50] == []


async def test_a_rebuilt_manifest_goes_on_with_an_index_that_was_turned_off(
    harness: ManifestHarness,
) -> None:
    """Its registry object says so, and filters of before stay in nodes and fragments."""
    record = await harness.streams.update(
        STREAM, lambda one: replace(one, config=a_record().config, registry_version=2)
    )
    await put_registry(harness, record)
    late = await put_more(harness, 10 * COUNT, indexed=False)
    harness.coordination.lose()

    await rebuild(harness)

    assert (await harness.record()).config.filter.index is None
    assert await looked_into(harness, "v20") == [20, late.first_offset]
