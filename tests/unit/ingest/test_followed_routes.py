"""Three nodes behind their routes, and a reader's tail: a backlog comes from a node that follows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from support.peers import SilentPeer

from bottomless.errors import Unavailable
from bottomless.model.limits import MIB
from bottomless.model.names import TENANT_DEFAULT, FullName
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.protocol.registry import NODES, NodeSaid, encode_nodes
from bottomless_server.reader.follower_reads import FollowerReads
from bottomless_server.reader.nodes import IngestNodes
from bottomless_server.reader.owned_tail import OwnedTail
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.runtime.peers.peers import Peers
from unit.ingest.harness import NAME, STREAM
from unit.ingest.replica_services import Node, ThreeServices

VALUES: Final = ["a" * 700_000, "b" * 700_000, "c" * 700_000]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    made = await ThreeServices(tmp_path).start()
    yield made
    await made.aclose()


class Manifest(SilentPeer):
    """Knows where nodes are."""

    def __init__(self, three: ThreeServices) -> None:
        self._three = three

    async def call(self, _: str, path: str, /, **__: object) -> PeerAnswer:
        assert path == NODES
        nodes = [NodeSaid(one.node_id, url_of(one)) for one in self._three.nodes if one.renews]
        return PeerAnswer(200, {}, encode_nodes(nodes))


class Reader:
    """The tail of a reader, whose calls go over HTTP."""

    def __init__(self, three: ThreeServices) -> None:
        self._peers = Peers(name="ingest")
        nodes = IngestNodes(Manifest(three))
        self.reads = FollowerReads(self._peers, nodes)
        self.tail = OwnedTail(self._peers, self._peers, nodes, self.reads)

    async def data(self, owner: Node, offset: int) -> bytes:
        stream = StreamFacts(STREAM, FullName(TENANT_DEFAULT, NAME), 1, url_of(owner))
        answer = await self.tail.chunks(stream, offset, MIB)
        assert (answer.first_offset, answer.next_offset) == (offset, offset + 1)
        assert answer.bounds.committed_next >= len(VALUES)
        return bytes(answer.data)

    async def aclose(self) -> None:
        await self._peers.aclose()


def url_of(node: Node) -> str:
    return str(node.harness.settings["ingest_url"])


async def test_what_a_follower_gives_is_what_its_owner_gave(three: ThreeServices) -> None:
    owner, *others = three.nodes
    for offset, value in enumerate(VALUES):
        assert await three.append(owner, value) == offset
    await three.until_all_in_sync()
    reader = Reader(three)
    try:
        of_the_owner = await reader.data(owner, 0)

        async def has_answered() -> bool:
            # It may not have heard yet that this is committed; then its owner answered.
            assert await reader.data(owner, 0) == of_the_owner
            return reader.reads.run_count > 0

        await three.until(has_answered)
        # Without the followers, and then with another owner, under another epoch.
        for one in others:
            one.address.gone = True
        assert await reader.data(owner, 0) == of_the_owner
        for one in others:
            one.address.gone = False
        await three.cut_off(owner)
        heir = await three.until_owned_by(*others)

        async def is_shown() -> bool:
            # By the new owner once all in sync have what it found.
            try:
                return await reader.data(heir, 0) == of_the_owner
            except Unavailable:
                return False

        await three.until(is_shown)
    finally:
        await reader.aclose()
