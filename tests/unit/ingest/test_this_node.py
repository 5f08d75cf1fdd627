"""What a node that follows a stream finds out before it throws its log away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.guards import remove

from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.replicas.this_node import ThisNode
from bottomless_server.node.owner import Owner
from bottomless_server.stores.streams import Streams, stream_key
from unit.ingest.harness import STREAM, IngestHarness


async def nobody(_: StreamId) -> None: ...


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    harness = await IngestHarness(tmp_path / "ingest").declare()
    yield await harness.start()
    await harness.aclose()


async def lands_late(node: IngestHarness) -> bool:
    """Whether an admission lands that was on its way when its node found out that it is not in sync."""
    owner = Owner(node.coordination, node.service.lease, nobody)
    here, key = ThisNode(node.service.streams, owner), stream_key(STREAM)
    late = node.coordination.watch([key])
    assert not await here.is_in_sync(STREAM)
    assert node.coordination.peek(key) == late.values[key]
    return node.coordination.execute(late, Changes({key: late.values[key]}))


async def test_what_was_asked_for_before_a_log_is_thrown_away_does_not_land(
    node: IngestHarness,
) -> None:
    assert not await lands_late(node)


async def test_without_a_write_a_node_may_be_counted_on_whose_log_is_gone(
    node: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "a write before a log is thrown away", Streams.load)
    assert await lands_late(node)
