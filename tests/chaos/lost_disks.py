"""Disks of ingest nodes that are lost for good, never more at a time than docs/replicas.md promises.

A disk goes with the process that uses it, and comes back empty: whoever starts on it is another node.
One is taken only where of each stream that has something unpublished another node is in sync, and the
disks of all of those are there. Now and then two go at once: all nodes were in sync, and the third one
has become the owner of everything, so that nothing of the two that is still under way counts.

Nobody helps afterwards. Owners take in who came in place of the lost, once these have no lease for
long (`BOTTOMLESS_INGEST_REPLICA_REPLACE_MS`), and until then nothing more is lost.
"""

import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from redis.exceptions import RedisError
from support.valkey import another_client
from support.waiting import until

from bottomless.formats.stream_record import decode_record
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.stores.streams import stream_key
from chaos.deployment import ChaosDeployment
from chaos.ledger import Ledger

HEAL_SECONDS: Final = 240.0
PAIR_EVERY: Final = 4
"""Of so many losses one is of two disks at once."""


class LostDisks:
    """Takes a disk along with every so many kills of services."""

    def __init__(
        self, deployment: ChaosDeployment, ledgers: Sequence[Ledger], every: int, seed: int
    ) -> None:
        self.count = 0
        """Disks that were lost."""
        self._deployment = deployment
        self._ledgers = ledgers
        self._every = every
        self._chance = random.Random(f"{seed} disks")
        self._kills = 0
        self._losses = 0
        self._healed = True

    @property
    def is_due(self) -> bool:
        """Whether the next kill of an ingest node is to take its disk along."""
        return self._healed and self._kills >= self._every

    def choose(self, victims: Sequence[str]) -> list[str]:
        """Whom a strike is to kill: these, and an ingest node among them where a disk is due, or two
        of those alone."""
        ingests = self._deployment.ingests
        if not self.is_due:
            return [*victims]
        if self._is_pair_due:
            return self._chance.sample(ingests, 2)
        if any(one in ingests for one in victims):
            return [*victims]
        return [*victims, self._chance.choice(ingests)]

    def take(self, killed: Mapping[str, int]) -> list[str]:
        """Hear of kills; returns the nodes whose disks are gone, if any was taken.

        Raises:
            AssertionError: the only node that was left alive does not become the owner.
        """
        self._kills += sum(killed.values())
        if not self.is_due:
            return []
        victims = [name for name in self._deployment.ingests if killed.get(name)]
        lost = self._pair(victims) or self._one(victims)
        for name in lost:
            _empty(self._deployment.data_dir(name))
        if lost:
            self._kills -= self._every * len(lost)
            self.count += len(lost)
            self._losses += 1
            self._healed = False
        return lost

    def heal(self) -> None:
        """Return when living nodes hold each stream again. All of them run, and nothing is in the way.

        They may not all be in sync yet, except where the next disk is due.
        """
        if not self._healed:
            for ledger in self._ledgers:
                until(
                    lambda ledger=ledger: (
                        set(record_of(self._deployment, ledger).members)  # type: ignore[misc]
                        == self._living()
                    ),
                    HEAL_SECONDS,
                    f"all nodes that live to be the members of {ledger.name}",
                )
            self._healed = True
        if self.is_due:
            for ledger in self._ledgers:
                until(
                    lambda ledger=ledger: (
                        set(record_of(self._deployment, ledger).in_sync)  # type: ignore[misc]
                        == self._living()
                    ),
                    HEAL_SECONDS,
                    f"all nodes to be in sync of {ledger.name}",
                )

    @property
    def _is_pair_due(self) -> bool:
        # Where nothing else is in the way: a node that lives becomes the owner.
        return self._losses % PAIR_EVERY == PAIR_EVERY - 1 and not self._deployment.troubled

    def _pair(self, victims: Sequence[str]) -> list[str]:
        """Two whose disks may go at once, since the third node owns all that is unpublished."""
        left = [one for one in self._deployment.ingests if one not in victims]
        if not self._is_pair_due or len(victims) != 2 or not self._deployment.has_started(*left):
            return []
        heir = node_id(self._deployment, left[0])
        records = self._records()
        if any(record.dirty and heir not in record.in_sync for record in records):
            return []
        for ledger in self._ledgers:

            def is_taken(ledger: Ledger = ledger) -> bool:
                record = record_of(self._deployment, ledger)
                return record.home == heir or not record.dirty

            until(is_taken, HEAL_SECONDS, f"{left[0]} alone to own {ledger.name}")
        return [*victims]

    def _one(self, victims: Sequence[str]) -> list[str]:
        for name in self._chance.sample(victims, len(victims)):
            mine = node_id(self._deployment, name)
            others = self._living() - {mine}
            records = self._records() if mine is not None else []
            if records and all(_is_held(one, mine, others) for one in records if one.dirty):
                return [name]
        return []

    def _records(self) -> list[StreamRecord]:
        """Of all streams; none where coordination is away."""
        try:
            return [record_of(self._deployment, ledger) for ledger in self._ledgers]
        except (RedisError, OSError):
            return []

    def _living(self) -> set[NodeId | None]:
        """The nodes whose disks are there."""
        return {node_id(self._deployment, name) for name in self._deployment.ingests}


def _is_held(record: StreamRecord, mine: NodeId | None, others: set[NodeId | None]) -> bool:
    """Whether another disk has everything. Which one may change at any moment, for an eviction that was
    sent before a death may land after it: so all of those have to be there, and one of them stays."""
    rest = set(record.in_sync) - {mine}
    return bool(rest) and rest <= others and record.config.replication.least_in_sync > 1


def _empty(directory: Path) -> None:
    """It may be a file system of its own, which stays."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def node_id(deployment: ChaosDeployment, name: str) -> NodeId | None:
    """Which node has this disk; None before anybody has started there."""
    path = deployment.data_dir(name) / "ingest" / "node.json"
    return NodeId(orjson.loads(path.read_bytes())["node_id"]) if path.exists() else None


def record_of(deployment: ChaosDeployment, ledger: Ledger) -> StreamRecord:
    """What coordination says of a stream, past all services and links."""
    with another_client(deployment.coordination_url) as client:
        value: Any = client.get(stream_key(StreamId(ledger.stream_id)))
    return decode_record(value)
