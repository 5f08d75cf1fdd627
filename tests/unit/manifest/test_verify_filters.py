"""A full verification finds a filter in which a value is missing, wherever it stands."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from golden.regenerate import a_filtered_group
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key
from unit.manifest.test_verify import places, report
from unit.uploader.test_upload_filters import Row, chunk

from bottomless.formats.filter import build, hash_values
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.fragment_filters import FilterTable
from bottomless.model.config import FilterConfig
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.limits import MIB
from bottomless_server.core.filter_making import make_filters
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import intend
from bottomless_server.tree.filters import GroupFilter, group_filter, says_enough

VALUES = FilterConfig(index="values")


def chunks_at(offset: int) -> list[bytes]:
    """Two chunks of five records each."""
    rows: list[Row] = [(f"v{offset}", None), *[(None, None)] * 4]
    return [chunk(rows, offset), chunk(rows, offset + 5)]


async def with_filters(
    harness: ManifestHarness, count: int, lies: Sequence[FilterTable] | None = None
) -> list[FragmentInfo]:
    """A stream of fragments with filters; those of the last one may lie."""
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", [n * 10 for n in range(count)])
    infos = []
    for number, uid in enumerate(uids):
        data = chunks_at(10 * number)
        tables: Sequence[FilterTable] = make_filters(data, MIB, VALUES)
        if lies is not None and number == count - 1:
            tables = lies
        packed = pack_fragment(STREAM, uid, data, tables)
        key = fragment_key(STREAM, packed.info.first_offset, uid)
        await harness.drive.put(key, packed.parts, packed.info.crc)
        infos.append(packed.info)
    await committer.register("s1", infos)
    await committer.flush()
    return infos


async def test_a_sound_stream_with_filters_is_sound_and_after_cuts() -> None:
    harness = ManifestHarness()
    infos = await with_filters(harness, 21)
    committer = await harness.open()
    assert committer.keeper.root.entries["filter_presence"].min() > 0, "groups know it too"
    for before in (0, 50, 120):
        await trim(harness.context, committer, before, allow_empty=False)
        found = await report(harness, checksums=True)
        assert places(found) == []
        assert found["fragments"] == len(infos) - before // 10


@pytest.mark.parametrize("part", ["fragment", "chunk", "presence"])
async def test_a_value_that_is_missing_from_a_filter_is_found(part: str) -> None:
    [good] = make_filters(chunks_at(20), MIB, VALUES)
    other = build(hash_values([b"another"]), 1)
    lines = good.lines.copy()
    lines["presence"] = [Presence.SOME | Presence.NONE, Presence.SOME]
    lie = {
        "fragment": replace(good, blocks=other),
        "chunk": replace(good, chunk_blocks=good.chunk_blocks * 0),
        "presence": replace(good, lines=lines),
    }[part]
    harness = ManifestHarness()
    await with_filters(harness, 3, [lie])
    assert places(await report(harness)) == [], "only bytes show it"
    assert places(await report(harness, checksums=True)) == [("fragment-filter", 20, 29)]


async def test_a_manifest_that_says_another_filter_than_the_fragment_is_found() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", [0])
    data = chunks_at(0)
    packed = pack_fragment(STREAM, uids[0], data, make_filters(data, MIB, VALUES))
    await harness.drive.put(fragment_key(STREAM, 0, uids[0]), packed.parts, packed.info.crc)
    lie = packed.info._replace(filter_blocks=bytes(32))
    await committer.register("s1", [lie])
    await committer.flush()
    assert places(await report(harness, checksums=True)) == [("fragment-filter", 0, 9)]


def test_an_entry_says_no_less_than_its_group() -> None:
    node = a_filtered_group()
    said = group_filter(node)
    assert says_enough(said, node)
    assert says_enough(GroupFilter(Presence(0), said.blocks[:0]), node), "it says nothing"
    assert says_enough(said._replace(blocks=said.blocks[:0]), node), "any value may be there"
    assert says_enough(said._replace(blocks=said.blocks | np.uint32(1)), node)
    assert not says_enough(said._replace(blocks=said.blocks & np.uint32(1)), node)
    assert not says_enough(said._replace(presence=Presence.KNOWN | Presence.SOME), node)
    unknown = replace(node, entries=node.entries.copy(), filters=node.filters[:0])
    for name in ("filter_presence", "filter_blocks"):
        unknown.entries[name] = 0
    assert not says_enough(said, unknown)
