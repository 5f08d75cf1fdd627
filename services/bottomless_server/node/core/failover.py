"""Decide when a node that follows a stream becomes its owner.

Only `ingest/replicas/failover.py` calls this. An owner that has something to say of a stream is heard each half
second, and one of an idle stream is not: so a silent stream asks coordination about the lease of its
home, one question for all streams of that home, and its record is read when that lease is gone.

A node stops following before it reads its own end and claims, so that nothing comes after that end. A
claim without a reply may have been done, or land late. As long as it may, the stream is not followed:
what an old owner would send lies after the end that was claimed. It is settled by another claim, or by
a record and a lease that are not those of the claim, since its EXEC watches both.

Times are milliseconds of the monotonic clock.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from heapq import nsmallest
from typing import Final

from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import NOBODY, StreamRecord, StreamState

SILENT_MS: Final = 3_000
"""After so long without a word of its owner a stream is looked at."""
LOOK_MS: Final = 1_000
"""How often leases are looked at, and streams of which something is to be found out."""
REST_MS: Final = 10_000
"""How often the record of a silent stream is read although nothing is wrong with its home: it may
have another one by now, that died before it was heard."""
DIED_MS: Final = 2_000
"""After so long the record of a stream is read, one of whose other nodes has lost its lease."""
RANK_MS: Final = 200
"""How long a node that may claim waits for each one whose turn is before."""
LOOK_COUNT_MAX: Final = 256
"""Records that are read in one look."""
CLAIM_COUNT_MAX: Final = 16
"""Claims at once."""
_PAUSE_MS_MAX: Final = 5_000


class Standing(StrEnum):
    """What a record says of a stream to a node that follows it."""

    OURS = "ours"
    """Its home is this node, to which it was given, or whose claim had no reply."""
    HEIR = "heir"
    """Its home has lost its lease, and this node may claim it."""
    LED = "led"
    """Its home lives."""
    CLOSED = "closed"
    """There is nothing to be claimed for: it is clean, or this node may not."""
    GONE = "gone"
    """It is not this node's to follow."""


class Outcome(StrEnum):
    """How a claim ended."""

    OWNED = "owned"
    REFUSED = "refused"
    """Nothing was written: it was refused before its EXEC, or by it."""
    UNKNOWN = "unknown"
    """It may have been written, or may be yet."""


def standing(record: StreamRecord, mine: NodeId, *, home_live: bool) -> Standing:
    """What a record says to a node; `home_live`: whether the lease of its home is held, as it was
    read after the record."""
    if record.state is not StreamState.ACTIVE or mine not in record.members:
        return Standing.GONE
    if not record.dirty or record.home in (None, NOBODY):
        return Standing.CLOSED
    if record.home == mine:
        return Standing.OURS
    if home_live:
        return Standing.LED
    return Standing.HEIR if mine in record.in_sync else Standing.CLOSED


def heirs(record: StreamRecord) -> list[NodeId]:
    """The nodes beside its home that may own a stream, in the order in which they go on with it.

    By a hash of stream and node: of a thousand streams that one home leaves, each other node has its
    part.
    """
    others = [node for node in record.in_sync if node != record.home]
    return sorted(others, key=lambda node: _hash(record.stream_id, node))


def rank(record: StreamRecord, mine: NodeId) -> int:
    """The turn of a node in sync, from 0, among those that may claim a stream from its home."""
    return heirs(record).index(mine)


@dataclass(slots=True)
class _Watched:
    heard_at: int
    looked_at: int | None = None
    home: NodeId | None = None
    """The node whose lease keeps this one from claiming; None: it is not known."""
    others: frozenset[NodeId] = frozenset()
    """The other nodes that hold the stream: one of them may be the home by now."""
    look_at: int | None = None
    """When it is to be looked at, whoever lives; None: by what is usual."""
    claim_at: int | None = None
    claiming: bool = False
    undecided: bool = False
    """Whether a claim may land that had no reply."""
    failures: int = 0

    def next_look(self) -> int:
        if self.look_at is not None:
            return self.look_at
        silent = self.heard_at + SILENT_MS
        return silent if self.looked_at is None else max(silent, self.looked_at + REST_MS)


class Watch:
    """The streams that this node follows, and what it does about those whose owners are silent."""

    def __init__(self, mine: NodeId) -> None:
        self._mine = mine
        self._streams: dict[StreamId, _Watched] = {}
        self._dead: frozenset[NodeId] = frozenset()

    def __len__(self) -> int:
        return len(self._streams)

    def heard(self, stream_id: StreamId, at: int) -> None:
        """The owner of a stream spoke; one that was not watched is from now on."""
        one = self._streams.get(stream_id)
        if one is None or (at > one.heard_at and not self.is_held_back(stream_id)):
            self._streams[stream_id] = _Watched(at)

    def given(self, stream_id: StreamId, now: int) -> None:
        """Look at a stream at once: somebody says that it is this node's."""
        one = self._streams.setdefault(stream_id, _Watched(now))
        one.look_at = now

    def unsettled(self, stream_id: StreamId, now: int) -> None:
        """Note that a claim which was not begun here had no reply, and may land."""
        one = self._streams.setdefault(stream_id, _Watched(now))
        one.undecided = True
        if not one.claiming and one.claim_at is None:
            one.look_at = now + LOOK_MS

    def forget(self, stream_id: StreamId) -> None:
        """Watch a stream no more, unless a claim is under way or may land."""
        if not self.is_held_back(stream_id):
            self._streams.pop(stream_id, None)

    @guard("no following while a claim may land")
    def is_held_back(self, stream_id: StreamId) -> bool:
        """Whether a stream must not be followed: it is being claimed, or a claim of it may land."""
        one = self._streams.get(stream_id)
        return one is not None and (one.claiming or one.undecided)

    def nodes(self, now: int) -> set[NodeId]:
        """The nodes that hold silent streams whose homes live, whose leases are to be looked at now."""
        found = set[NodeId]()
        for one in self._streams.values():
            if one.home is not None and one.claim_at is None and now >= one.heard_at + SILENT_MS:
                found.add(one.home)
                found |= one.others
        return found

    def dead(self, nodes: Collection[NodeId], now: int) -> None:
        """Have the streams looked at whose homes have lost their leases.

        So are those that a node holds which has lost its lease just now: they may have been given to it,
        and nobody heard of that. They wait for a moment, since there are more of them, and most are well.
        """
        died = frozenset(nodes) - self._dead
        self._dead = frozenset(nodes)
        for one in self._streams.values():
            if one.claiming or one.claim_at is not None:
                continue
            if one.home in nodes:
                one.look_at = now
            elif not died.isdisjoint(one.others):
                one.look_at = min(one.next_look(), now + DIED_MS)

    def due(self, now: int) -> list[StreamId]:
        """The streams whose records are to be read now, those first that have waited longest."""
        waiting = (
            (at, stream_id)
            for stream_id, one in self._streams.items()
            if not one.claiming and one.claim_at is None and (at := one.next_look()) <= now
        )
        return [stream_id for _, stream_id in nsmallest(LOOK_COUNT_MAX, waiting)]

    def looked(
        self, stream_id: StreamId, record: StreamRecord | None, now: int, *, home_live: bool
    ) -> None:
        """Take up the record of a stream as it was read just now; None: there is none."""
        one = self._streams.get(stream_id)
        if one is None or one.claiming:
            return
        says = (
            Standing.GONE if record is None else standing(record, self._mine, home_live=home_live)
        )
        one.looked_at, one.look_at, one.home, one.others = now, None, None, frozenset()
        if record is None or says is Standing.GONE:
            del self._streams[stream_id]
            return
        if says in (Standing.OURS, Standing.HEIR):
            turn = 0 if says is Standing.OURS else rank(record, self._mine)
            one.claim_at = now + turn * RANK_MS
            return
        one.undecided, one.failures = False, 0
        if says is Standing.LED:
            one.home, one.others = record.home, frozenset(record.members) - {self._mine}

    def put_off(self, stream_id: StreamId, now: int) -> None:
        """Note that nothing could be found out of a stream."""
        one = self._streams.get(stream_id)
        if one is not None:
            one.looked_at, one.look_at = now, None

    def next_claim(self) -> int | None:
        """When the next claim is due; None if none is, or enough are under way."""
        if sum(one.claiming for one in self._streams.values()) >= CLAIM_COUNT_MAX:
            return None
        times = [one.claim_at for one in self._streams.values() if one.claim_at is not None]
        return min(times, default=None)

    def begin_claims(self, now: int) -> list[StreamId]:
        """The streams that are to be claimed now; they are not followed before `claimed`."""
        room = CLAIM_COUNT_MAX - sum(one.claiming for one in self._streams.values())
        waiting = (
            (one.claim_at, stream_id)
            for stream_id, one in self._streams.items()
            if one.claim_at is not None and one.claim_at <= now
        )
        begun = [stream_id for _, stream_id in nsmallest(room, waiting)]
        for stream_id in begun:
            one = self._streams[stream_id]
            one.claim_at, one.claiming = None, True
        return begun

    def claimed(self, stream_id: StreamId, outcome: Outcome, now: int) -> None:
        """Take up how a claim ended."""
        if outcome is Outcome.OWNED:
            del self._streams[stream_id]
            return
        one = self._streams[stream_id]
        one.claiming = False
        # What came before may still land: a later claim that was refused says nothing of it.
        one.undecided |= outcome is Outcome.UNKNOWN
        one.look_at = now + int(backoff(one.failures, LOOK_MS, _PAUSE_MS_MAX))
        one.failures += 1


def _hash(stream_id: StreamId, node: NodeId) -> bytes:
    return sha256(f"{stream_id}\0{node}".encode("ascii")).digest()
