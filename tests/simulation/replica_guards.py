"""What it would be to do without guards of streams that several nodes hold, and the seeds that miss them."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.log.core.batcher import Round
from bottomless_server.ingest.log.rounds import RoundWriter
from bottomless_server.ingest.log.segments import Written
from bottomless_server.ingest.replicas.followed_log import FollowedLog
from bottomless_server.node.replica_records import Owned, ReplicaRecords


class ReplicaGuard(NamedTuple):
    """A guard of replicas, without which these seeds fail."""

    variant: Any
    """Stands in its place."""
    seeds: list[int]
    troubles: str = "crashes"


def _yes(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> None:
    pass


async def _at_once(*_: Any) -> None:
    pass


async def _let_go_in_secret(records: ReplicaRecords, owned: Owned, node: NodeId) -> StreamRecord:
    """An owner waits for a node no more, and the record counts on it."""
    record = await records.settle(owned)
    return replace(record, in_sync=tuple(one for one in record.in_sync if one != node))


async def _written_only(_: RoundWriter, local: FollowedLog, sealed: Round, elapsed: int) -> Written:
    """A follower answers for what it has not synced."""
    written = local.write(sealed, sealed.chunks[0].epoch, elapsed)
    return local.note_synced(written)


REPLICA_GUARDS: Final[dict[str, ReplicaGuard]] = {
    "all in sync before a round is shown": ReplicaGuard(_at_once, [1]),
    "waiting for all that are in sync": ReplicaGuard(_yes, [1]),
    "an eviction before a round goes on": ReplicaGuard(_let_go_in_secret, [2]),
    "the sync of a follower": ReplicaGuard(_written_only, [1]),
    "the in-sync set in a claim": ReplicaGuard(_yes, [4, 2, 1]),
    "the node that is meant": ReplicaGuard(_nothing, [2], "disks"),
    "what is known of producers, shown once all in sync have it": ReplicaGuard(
        _yes, [2, 3, 1], "cuts"
    ),
    "what was found at a claim, before it is said where a log ends": ReplicaGuard(_nothing, [1, 3]),
}
