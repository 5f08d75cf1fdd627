"""Many objects are looked for in a manifest at once, and each is found where it would be found alone."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.manifest import ManifestHarness

from bottomless.errors import StoreError
from bottomless.formats.keys import group_key
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.manifest.common.lookup import Found, Sought, entries_of, entry_of
from bottomless_server.manifest.tree.resolver import load_root

TENANT = "default"
COUNT = 23


class Tree:
    """A manifest with fragments of ten records each, below groups of two."""

    def __init__(self, harness: ManifestHarness, root: Node) -> None:
        self.harness = harness
        self.root = root
        self.sought: dict[str, Sought] = {}
        """All that it names, and what it does not."""
        self.ways: dict[str, list[str]] = {}
        """The keys of the groups on the way to each of these."""
        self.reads: Counter[str] = Counter()

    async def find_all(self) -> None:
        await self._find(self.root, [])
        named = [*self.sought.items()]
        for name, one in named:
            way = self.ways[name]
            self.sought[f"another in place of {name}"] = one._replace(uid=Uid("e" * 32))
            self.ways[f"another in place of {name}"] = way
        for offset in (10 * COUNT, 10 * COUNT + 500):
            self.sought[f"beyond, at {offset}"] = Sought(offset, Uid("f" * 32), 0)
            self.ways[f"beyond, at {offset}"] = []

    async def _find(self, node: Node, way: list[str]) -> None:
        for entry in node.entries:
            first, height = int(entry["first_offset"]), int(entry["height"])
            uid = uid_from_bytes(entry["uid"].tobytes())
            name = f"{height} at {first}"
            self.sought[name] = Sought(first + 1, uid, height)
            self.ways[name] = way
            if entry["kind"] == EntryKind.GROUP:
                below = await self.harness.context.groups.load(TENANT, node.stream_id, entry)
                key = group_key(node.stream_id, first, uid, height, TENANT)
                await self._find(below, [*way, key])

    async def found(self) -> Mapping[str, Found]:
        return await entries_of(self.harness.drive, TENANT, self.root, self.sought)

    def count_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        get = self.harness.drive.get

        async def counted(object_key: str, *more: Any) -> bytes:
            self.reads[object_key] += 1
            return await get(object_key, *more)

        monkeypatch.setattr(self.harness.drive, "get", counted)


async def a_tree() -> Tree:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(COUNT)))
    await committer.flush()
    _, root = await load_root(harness.context, await harness.record())
    tree = Tree(harness, root)
    await tree.find_all()
    return tree


def uid_of(found: Found) -> Uid | None:
    assert found is None or isinstance(found, np.void)
    return None if found is None else uid_from_bytes(found["uid"].tobytes())


async def test_each_is_found_where_it_is_found_alone() -> None:
    tree = await a_tree()
    found = await tree.found()
    for name, one in tree.sought.items():
        alone = await entry_of(tree.harness.drive, TENANT, tree.root, one.offset, one.uid)
        assert uid_of(found[name]) == uid_of(alone)
        assert (uid_of(alone) is not None) == name[0].isdigit()
    assert len([one for one in found.values() if one is not None]) > COUNT


async def test_each_group_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = await a_tree()
    tree.count_reads(monkeypatch)
    await tree.found()
    assert dict(tree.reads) == {key: 1 for way in tree.ways.values() for key in way}
    assert len(tree.reads) > COUNT / 2


async def test_a_group_that_is_damaged_keeps_from_telling_what_is_below_it_alone() -> None:
    tree = await a_tree()
    deepest = max(tree.ways.values(), key=len)
    # One that has others above and below it.
    damaged = deepest[1]
    await tree.harness.drive.delete([damaged])
    found = await tree.found()
    untold = {name for name, one in found.items() if isinstance(one, StoreError)}
    assert untold == {name for name, way in tree.ways.items() if damaged in way}
    assert 0 < len(untold) < len(found)
