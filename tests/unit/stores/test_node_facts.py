"""What a node says of itself."""

import pytest

from bottomless.errors import Corrupt
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.stores.ingest_nodes import IngestNode, announce, withdraw
from bottomless_server.stores.node_facts import NodeFacts, decode_facts, facts_key, facts_of

A = NodeId("a" * 32)
FACTS = NodeFacts("http://a:1", "north", "0.1.0")


async def test_facts_come_and_go_with_the_entry_of_a_node() -> None:
    coordination = MemoryCoordination(lambda: 0)
    assert await facts_of(coordination, A) is None
    for facts in (FACTS, FACTS._replace(zone="south"), FACTS):
        await announce(coordination, IngestNode(A, facts.url), facts)
        assert await facts_of(coordination, A) == facts
    await announce(coordination, IngestNode(A, FACTS.url))
    assert await facts_of(coordination, A) is None
    await announce(coordination, IngestNode(A, FACTS.url), FACTS)
    await withdraw(coordination, A)
    assert await facts_of(coordination, A) is None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"url":"http://a:1","zone":1,"release":"0.1.0"}']
)
async def test_other_bytes_are_no_facts(data: bytes) -> None:
    coordination = MemoryCoordination(lambda: 0)
    coordination.write(Changes({facts_key(A): data}))
    with pytest.raises(Corrupt):
        await facts_of(coordination, A)


def test_what_a_later_release_says_more_is_ignored() -> None:
    data = b'{"url":"http://a:1","zone":"north","release":"0.1.0","color":"red"}'
    assert decode_facts(data) == FACTS
