"""What lies in the bucket: counted by a collection of garbage, told by every process."""

import pytest
from support.manifest import STREAM, ManifestHarness
from support.metrics import samples
from support.object_keys import group_key
from unit.manifest.test_garbage import HOUR, STRAY, collect, grown, put

from bottomless.formats.keys import api_key_key, generation_key, wal_key
from bottomless.model.api_key import KeyId
from bottomless.model.limits import GIB
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.core.store_prices import StorePrices
from bottomless_server.manifest.common.metrics import stored_metrics
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.removal.core.orphan_tally import stored_kind
from bottomless_server.manifest.removal.garbage_timer import GarbageTimer
from bottomless_server.stores.stored_sizes import (
    STORED_KEY,
    StoredOfKind,
    StoredSizes,
    load_stored,
    note_stored,
)

NAME = "bottomless_manifest_stored"
SIZES = StoredSizes(1_000, {"wal": StoredOfKind(3, GIB), "root": StoredOfKind(0, 0)})


async def counted(harness: ManifestHarness) -> dict[str, StoredOfKind]:
    """What the bucket holds, by one look at all of it."""
    found: dict[str, StoredOfKind] = {}
    async for facts in harness.drive.list():
        kind = stored_kind(facts.object_key)
        count, size = found.get(kind, (0, 0))
        found[kind] = StoredOfKind(count + 1, size + facts.size)
    return found


async def test_a_collection_of_everything_counts_what_there_is_by_kind() -> None:
    harness = ManifestHarness()
    await grown(harness, 12)
    instance = Uid("0" * 32)
    others = (wal_key(instance, 1), api_key_key(KeyId("0" * 24), 1, 1), generation_key(2))
    for object_key in (*others, "somebody's/object"):
        await put(harness, object_key, b"12345")
    expected = await counted(harness)
    harness.clock.now += 2 * HOUR

    # In pages that are far smaller than all of it; nothing is old enough to be looked at.
    await collect(harness, dry_run=True, minimum_age_ms=10**12, page_count=3)

    assert await load_stored(harness.coordination) == (harness.clock.now, expected)
    assert harness.context.counts.stored == (harness.clock.now, expected)
    assert expected.keys() >= {"fragment", "root", "registry", "wal", "key", "system", "unknown"}
    assert (expected["wal"], expected["unknown"]) == ((1, 5), (1, 5))


async def test_a_collection_of_one_stream_says_nothing_of_the_bucket() -> None:
    harness = ManifestHarness()
    await grown(harness, 4)
    await note_stored(harness.coordination, SIZES)
    await put(harness, group_key(STREAM, 0, STRAY, 1))
    await collect(harness, dry_run=True, stream_id=STREAM)
    assert await load_stored(harness.coordination) == SIZES
    assert harness.context.counts.stored is None


async def test_each_process_tells_what_another_one_has_counted() -> None:
    harness = ManifestHarness()
    await note_stored(harness.coordination, SIZES)
    await GarbageTimer(harness.context, Operations(harness.context)).look()
    assert harness.context.counts.stored == SIZES


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"at":1,"kinds":[]}', b'{"at":1,"kinds":{"wal":[1]}}', b'{"at"']
)
async def test_what_cannot_be_read_is_not_told(value: bytes) -> None:
    harness = ManifestHarness()
    harness.coordination.write(Changes({STORED_KEY: value}))
    assert await load_stored(harness.coordination) is None


def test_bytes_are_priced_by_the_month_and_as_old_as_they_are() -> None:
    shown = samples(stored_metrics(SIZES, StorePrices(month=0.5), now=61_000))
    assert shown[f"{NAME}_objects", ("kind", "wal")] == 3
    assert shown[f"{NAME}_bytes", ("kind", "wal")] == GIB
    assert shown[f"{NAME}_dollars_per_month", ("kind", "wal")] == 0.5
    assert shown[f"{NAME}_dollars_per_month", ("kind", "root")] == 0
    assert shown[(f"{NAME}_age_seconds",)] == 60


def test_before_anybody_has_looked_nothing_is_told() -> None:
    assert samples(stored_metrics(None, StorePrices(), now=1)) == {}
