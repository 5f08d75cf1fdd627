"""The ingest nodes, and where they are: an index into which each node enters itself.

bottomless:nodes      node ids, each with NUL and the address of its internal listener

An entry says where a node is and nothing of whether it lives: that is what its lease says
(`node_key`). A node enters itself when it takes its lease and takes itself out when it stops;
one that was killed, or ended since its directory was gone, stays in, without a lease, until it is back,
or until an operator has had it emptied. Nothing depends on an entry but who is asked: a wrong one costs
a question that nobody answers. What a node says of itself beside that (node_facts.py) is written and
removed with its entry, and so goes the mark of an operator who has it emptied.
"""

from typing import Final, NamedTuple

import orjson

from bottomless.errors import Corrupt
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.stores.node_facts import (
    NodeFacts,
    decode_facts,
    emptied_key,
    encode_facts,
    facts_key,
)
from bottomless_server.stores.streams import node_key

NODES_KEY: Final = "bottomless:nodes"
NODE_COUNT_MAX: Final = 1_000
"""Nodes that are ever looked at; some hundred bytes each."""


class KnownNode(NamedTuple):
    """A node that has entered itself, and what is known of it."""

    node_id: NodeId
    live: bool
    """Whether its lease is held."""
    emptied: bool
    """Whether an operator has it emptied."""
    facts: NodeFacts | None
    """What it says of itself; None of an older release, or if that is damaged."""
    url: str
    """The url of its internal listener."""
    left: int | None
    """How many streams are left on a node that is emptied, as its evacuation counted last; None before it has
    counted, and of a node that nobody has emptied."""

    @property
    def state(self) -> str:
        """What it is, in a word."""
        if not self.live:
            return "away"
        if not self.emptied:
            return "live"
        return "emptied" if self.left == 0 else "emptying"

    @property
    def is_usable(self) -> bool:
        """Whether streams may be put there."""
        return self.live and not self.emptied and self.facts is not None


class IngestNode(NamedTuple):
    node_id: NodeId
    url: str
    """The url of its internal listener."""

    def member(self) -> bytes:
        return f"{self.node_id}\0{self.url}".encode()


def _parse(member: bytes) -> IngestNode:
    node_id, _, url = member.decode().partition("\0")
    return IngestNode(NodeId(node_id), url)


async def announce(
    coordination: Coordination, node: IngestNode, facts: NodeFacts | None = None
) -> None:
    """Enter a node, with its facts, in place of what was said of it before. Idempotent.

    Without facts it is nobody to whom logs are sent.

    Raises:
        CoordinationUnavailable, CoordinationUnknown, CoordinationConflict
    """
    await _enter(coordination, node.node_id, node, facts)


async def withdraw(coordination: Coordination, node_id: NodeId) -> None:
    """Take a node out. Idempotent.

    Raises:
        As `announce`.
    """
    await _enter(coordination, node_id, None, None)


async def forget(coordination: Coordination, node_id: NodeId) -> None:
    """Take a node out that has no lease, and was killed for good; of one that lives nothing is changed.

    The mark of an operator stays: should the node come back, it enters itself again, and is emptied still.
    Idempotent.

    Raises:
        As `announce`.
    """
    before, lease = f"{node_id}\0".encode(), node_key(node_id)
    found = await coordination.members(NODES_KEY, before, 2)
    members = [Member(NODES_KEY, one, False) for one in found if one.startswith(before)]

    def out(values: Values) -> tuple[Changes, None]:
        gone = values[lease] is None
        return (Changes({facts_key(node_id): None}, members=members) if gone else Changes()), None

    await coordination.transact([lease], out)


async def live_nodes(coordination: Coordination) -> list[IngestNode]:
    """The nodes whose lease is live.

    Raises:
        CoordinationUnavailable
    """
    members = await coordination.members(NODES_KEY, b"", NODE_COUNT_MAX)
    nodes = [_parse(member) for member in members]
    held = await coordination.get_many([node_key(node.node_id) for node in nodes])
    return [node for node, value in zip(nodes, held, strict=True) if value is not None]


async def claiming_nodes(coordination: Coordination) -> list[IngestNode]:
    """The nodes that may be asked for a stream that no node has: those whose lease is live, without
    those that are emptied as long as there are others.

    Raises:
        CoordinationUnavailable
    """
    nodes = await live_nodes(coordination)
    marks = await coordination.get_many([emptied_key(node.node_id) for node in nodes])
    return [node for node, mark in zip(nodes, marks, strict=True) if mark is None] or nodes


async def known_nodes(coordination: Coordination) -> list[KnownNode]:
    """All nodes that have entered themselves and did not leave, whether they live or not.

    Raises:
        CoordinationUnavailable
    """
    members = await coordination.members(NODES_KEY, b"", NODE_COUNT_MAX)
    # After an address changed a node may stand there twice for a moment.
    urls = {one.node_id: one.url for one in map(_parse, members)}
    ids = list(urls)
    keys = [key(node) for key in (node_key, emptied_key, facts_key) for node in ids]
    values = await coordination.get_many(keys) if keys else []
    count = len(ids)
    return [
        KnownNode(
            node,
            live=values[number] is not None,
            emptied=values[count + number] is not None,
            facts=_facts_in(values[2 * count + number]),
            url=urls[node],
            left=_left_in(values[count + number]),
        )
        for number, node in enumerate(ids)
    ]


async def mark_emptied(coordination: Coordination, node_id: NodeId) -> None:
    """Have nothing put on a node any more, until it stops; how much is left there is not known yet.
    Idempotent.

    Raises:
        As `announce`.
    """
    key = emptied_key(node_id)

    def marked(values: Values) -> tuple[Changes, None]:
        return Changes({key: _encode_left(None, _additions_in(values[key]))}), None

    await coordination.transact([key], marked)


async def note_left_on(
    coordination: Coordination, node_id: NodeId, left: int, additions: int | None = None
) -> bool:
    """Note how many streams are left on a node that is emptied; nothing of one that has stopped. Idempotent.

    `additions` is what `additions_to` said before they were counted; returns false, and notes nothing, where
    the node was to hold one more stream since.

    Raises:
        As `announce`.
    """
    key = emptied_key(node_id)

    def noted(values: Values) -> tuple[Changes, bool]:
        if values[key] is None:
            return Changes(), True
        known = _additions_in(values[key])
        if additions not in (None, known):
            return Changes(), False
        return Changes({key: _encode_left(left, known)}), True

    return await coordination.transact([key], noted)


async def note_addition(coordination: Coordination, node_id: NodeId) -> None:
    """Note of a node that is emptied that it is to hold one more stream, so that what is left there is not
    known any more; nothing of another node.

    Raises:
        As `announce`.
    """
    key = emptied_key(node_id)

    def noted(values: Values) -> tuple[Changes, None]:
        if values[key] is None:
            return Changes(), None
        return Changes({key: _encode_left(None, _additions_in(values[key]) + 1)}), None

    await coordination.transact([key], noted)


async def additions_to(coordination: Coordination, node_id: NodeId) -> int:
    """How often it was noted of a node that is emptied that it is to hold one more stream.

    Raises:
        CoordinationUnavailable
    """
    return _additions_in(await coordination.get(emptied_key(node_id)))


def _encode_left(left: int | None, additions: int = 0) -> bytes:
    return orjson.dumps({"left": left, "additions": additions})


def _left_in(mark: bytes | None) -> int | None:
    left = _members_of(mark).get("left")
    return left if isinstance(left, int) else None


def _additions_in(mark: bytes | None) -> int:
    additions = _members_of(mark).get("additions")
    return additions if isinstance(additions, int) else 0


def _members_of(mark: bytes | None) -> dict[str, object]:
    # A release before this one wrote no more than that the mark is there.
    try:
        members = orjson.loads(mark or b"null")
    except orjson.JSONDecodeError:
        return {}
    return members if isinstance(members, dict) else {}


def _facts_in(value: bytes | None) -> NodeFacts | None:
    try:
        return None if value is None else decode_facts(value)
    except Corrupt:
        return None


async def _enter(
    coordination: Coordination, node_id: NodeId, node: IngestNode | None, facts: NodeFacts | None
) -> None:
    before = f"{node_id}\0".encode()
    # What sorts after it and begins with it: one, or two after an address changed.
    found = await coordination.members(NODES_KEY, before, 2)
    wanted = None if node is None else node.member()
    own = [member for member in found if member.startswith(before)]
    members = [Member(NODES_KEY, member, False) for member in own if member != wanted]
    if wanted is not None and wanted not in own:
        members.append(Member(NODES_KEY, wanted, True))
    said = None if facts is None else encode_facts(facts)
    if members or said != await coordination.get(facts_key(node_id)):
        # Nobody else enters this node: its directory is locked. So nothing is watched for.
        values = {facts_key(node_id): said}
        if node is None:
            values[emptied_key(node_id)] = None
        changes = Changes(values, members=members)
        await coordination.transact([node_key(node_id)], lambda _: (changes, None))
