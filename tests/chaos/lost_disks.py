"""Disks of ingest nodes that are lost for good, never more at a time than docs/replicas.md promises.

A disk goes with the process that uses it, and comes back empty: whoever starts on it is another node.
It is taken only where each stream that has something unpublished has enough other nodes in sync whose
disks are there, so that one may go on and the next append needs nobody back. What was lost before has
been replaced by then, as an operator would do it.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
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

HEAL_SECONDS = 240.0


class LostDisks:
    """Takes a disk along with every so many kills of ingest nodes."""

    def __init__(self, deployment: ChaosDeployment, ledgers: Sequence[Ledger], every: int) -> None:
        self.count = 0
        self._deployment = deployment
        self._ledgers = ledgers
        self._every = every
        self._kills = 0
        self._healed = True

    def take(self, killed: Mapping[str, int]) -> str | None:
        """Hear of kills; returns the node whose disk is gone, if one was taken."""
        victims = [name for name in self._deployment.ingests if killed.get(name)]
        self._kills += len(victims)
        if self._kills < self._every or not self._healed:
            return None
        for name in victims:
            if self._is_held_elsewhere(name):
                _empty(self._deployment.data_dir(name))
                self._kills -= self._every
                self.count += 1
                self._healed = False
                return name
        return None

    def heal(self) -> None:
        """Have living nodes hold each stream again. All of them run, and nothing is in the way.

        They may not all be in sync yet; whether enough are is looked at before the next loss.
        """
        if not self._healed:
            for ledger in self._ledgers:
                self._replace(ledger)
            self._healed = True

    def _is_held_elsewhere(self, name: str) -> bool:
        mine = node_id(self._deployment, name)
        others = {node_id(self._deployment, one) for one in self._deployment.ingests if one != name}
        if mine is None:
            return False
        try:
            records = [record_of(self._deployment, ledger) for ledger in self._ledgers]
        except (RedisError, OSError):
            return False
        return all(not record.dirty or _has_enough(record, mine, others) for record in records)

    def _replace(self, ledger: Ledger) -> None:
        """By fewer replicas and then as many as before: who goes is who is not in sync."""
        living = {node_id(self._deployment, name) for name in self._deployment.ingests}
        replicas = record_of(self._deployment, ledger).config.replication.replicas

        def lost() -> set[NodeId]:
            return set(record_of(self._deployment, ledger).members) - living

        def is_let_go() -> bool:
            return not lost() & set(record_of(self._deployment, ledger).in_sync)

        def is_whole() -> bool:
            return set(record_of(self._deployment, ledger).members) == living

        if lost():
            until(is_let_go, HEAL_SECONDS, f"a lost node of {ledger.name} to be evicted")
            self._configure(ledger, replicas - 1)
            until(lambda: not lost(), HEAL_SECONDS, f"a lost node of {ledger.name} to go")
            self._configure(ledger, replicas)
        until(is_whole, HEAL_SECONDS, f"all nodes to be members of {ledger.name}")

    def _configure(self, ledger: Ledger, replicas: int) -> None:
        config = {"replication": {"replicas": replicas}}
        self._deployment.retried(partial(_patch, ledger.path, config))


def _patch(path: str, config: Any, client: httpx.Client) -> httpx.Response:
    return client.patch(path, json=config, headers={"if-match": "*"})


def _has_enough(record: StreamRecord, mine: NodeId, others: set[NodeId | None]) -> bool:
    rest = set(record.in_sync) - {mine}
    return rest <= others and len(rest) >= record.config.replication.least_in_sync


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
