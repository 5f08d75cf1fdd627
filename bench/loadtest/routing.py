"""Which ingest nodes an append may go to, and to which of them it goes. Pure.

Each stream has a set of nodes, its owners, which everybody computes from the names alone: those
with the highest weight of node and stream together (rendezvous hashing). So nobody has to be asked,
and a node that comes or goes changes only the sets that it is in. Inside the set an append goes to
the next node, or to the one with the least under way. A node that is away is left out of the sets
that it is in; no other node takes its place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple


class Policy(StrEnum):
    """How an append chooses among the owners of its stream."""

    ROUND_ROBIN = "round_robin"
    LEAST_IN_FLIGHT = "least_in_flight"


class Remap(NamedTuple):
    """The nodes that a stream's appends go to have changed."""

    stream: str
    owners: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Always some of the owners; without any, appends wait."""


def owners_of(stream: str, nodes: Iterable[str], count: int) -> tuple[str, ...]:
    """The owner set of a stream, the heaviest node first."""

    def weight(node: str) -> tuple[bytes, str]:
        return blake2b(f"{node}\0{stream}".encode(), digest_size=8).digest(), node

    return tuple(sorted(nodes, key=weight, reverse=True)[:count])


class Router:
    """Chooses a node for each append, and remembers who is away."""

    def __init__(self, owners: Mapping[str, Sequence[str]], policy: Policy) -> None:
        """`owners` are the owner sets by the name of the stream."""
        self._owners = {stream: tuple(nodes) for stream, nodes in owners.items()}
        self._policy = policy
        self._away: set[str] = set()
        self._turns = Counter[str]()
        self.under_way = Counter[str]()
        """Appends by node that were chosen and have not ended."""

    @property
    def away(self) -> frozenset[str]:
        return frozenset(self._away)

    def usable(self, stream: str) -> tuple[str, ...]:
        """The owners of a stream that are there."""
        return tuple(node for node in self._owners[stream] if node not in self._away)

    def choose(self, stream: str) -> str | None:
        """The node for one append, which counts as under way there until `end`; None: all are away."""
        usable = self.usable(stream)
        if not usable:
            return None
        turn = self._turns[stream]
        self._turns[stream] += 1
        in_turn = [usable[(turn + step) % len(usable)] for step in range(len(usable))]
        node = in_turn[0]
        if self._policy is Policy.LEAST_IN_FLIGHT:
            # The first of those with the least, so that equals take turns.
            node = min(in_turn, key=self.under_way.__getitem__)
        self.under_way[node] += 1
        return node

    def end(self, node: str) -> None:
        """An append that was chosen for this node has its answer, or will never have one."""
        assert self.under_way[node] > 0
        self.under_way[node] -= 1

    def leave(self, node: str) -> list[Remap]:
        """A node is away from now on; which streams that concerns."""
        return self._change(node, away=True)

    def join(self, node: str) -> list[Remap]:
        """A node is there again; which streams that concerns."""
        return self._change(node, away=False)

    def _change(self, node: str, *, away: bool) -> list[Remap]:
        if (node in self._away) == away:
            return []
        concerned = {name: nodes for name, nodes in self._owners.items() if node in nodes}
        before = {stream: self.usable(stream) for stream in concerned}
        (self._away.add if away else self._away.discard)(node)
        return [
            Remap(stream, owners, before[stream], self.usable(stream))
            for stream, owners in concerned.items()
        ]
