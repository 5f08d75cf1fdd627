"""A super stream whose partitions lie on three real nodes: one of them is lost in the middle of a request.

Nothing is uploaded, so what is read is on the disks of the nodes.
"""

import itertools
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from support.replicated import NODES, NOT_NOW, SLOW, ThreeServers, three_servers
from support.waiting import until

TEN: Final = [f"hello{number}" for number in range(1, 11)]
KEYS: Final = {"hello2", "hello5", "hello7", "hello9"}, {"hello1", "hello3", "hello8"}
"""Of partitions 0 and 1; all other keys are those of partition 2."""
EVENTS: Final = "/v1/super-streams/events"


def made(nodes: ThreeServers) -> None:
    config = {"partitions": 3, "fragment": SLOW, "replication": {"replicas": 3}}
    with nodes["first"].client() as client:

        def created() -> bool:
            answer = client.put(EVENTS, json=config)
            assert answer.status_code in (200, 201, 503), answer.text
            return answer.is_success

        until(created, what="a super stream")


def send(nodes: ThreeServers, name: str, first: int) -> httpx.Response:
    """A request of ten records with numbers, by way of a node."""
    records = [{"value": f"{key} {first + n}", "key": key} for n, key in enumerate(TEN)]
    headers = {"producer-id": "p", "producer-seq": str(first)}
    with nodes[name].client() as client:
        return client.post(f"{EVENTS}/records", json={"records": records}, headers=headers)


def stored(nodes: ThreeServers, first: int, *names: str) -> None:
    """Have a request stored, by nodes in turn, sent as it is each time."""
    way = itertools.cycle(names)

    def is_stored() -> bool:
        answer = send(nodes, next(way), first)
        assert answer.status_code in (200, 207, *NOT_NOW), answer.text
        return answer.status_code == 200

    until(is_stored, what=f"the request from {first} on")


def replicas(nodes: ThreeServers, name: str, index: int) -> dict[str, Any]:
    """Which nodes hold a partition, as a node says it."""
    with nodes[name].client() as client:

        def asked() -> httpx.Response | None:
            answer = client.get(f"/v1/streams/events-{index}/replicas")
            assert answer.status_code in (200, 503), answer.text
            return answer if answer.is_success else None

        told: dict[str, Any] = until(asked, what="the nodes of a partition").json()
        return told


def owner(nodes: ThreeServers, name: str, index: int) -> str | None:
    """Who owns a partition, of the nodes that live."""
    ids = {nodes.node_id(one): one for one in NODES}
    found = [one["node"] for one in replicas(nodes, name, index)["nodes"] if one["role"] == "owner"]
    return ids.get(found[0]) if found else None


def all_in_sync(nodes: ThreeServers) -> bool:
    told = [replicas(nodes, "first", index)["nodes"] for index in range(3)]
    return all(sum(one["in_sync"] for one in held) == 3 for held in told)


def page(nodes: ThreeServers, name: str, index: int, offset: int) -> dict[str, Any] | None:
    """Records of a partition; None while nobody owns it."""
    with nodes[name].client() as client:
        asked = {"offset": offset, "limit": 1_000}
        answer = client.get(f"/v1/streams/events-{index}/records", params=asked)
        assert answer.status_code in (200, 503), answer.text
        return answer.json() if answer.is_success else None


def values(nodes: ThreeServers, name: str, index: int) -> list[str]:
    """Of all records of a partition, as a node shows them."""
    found: list[str] = []
    while True:
        got = until(partial(page, nodes, name, index, len(found)), what="a page")
        found += [one["value"] for one in got["records"]]
        if got["up_to_date"]:
            return found


def test_each_record_is_there_once_when_an_owner_is_lost_in_a_request(tmp_path: Path) -> None:
    with three_servers(tmp_path, {"BOTTOMLESS_FAULT_POINTS": "1"}) as nodes:
        made(nodes)
        stored(nodes, 0, "first")
        until(lambda: all_in_sync(nodes), what="three nodes in sync in each partition")
        lost = until(lambda: owner(nodes, "first", 0), what="an owner of partition 0")
        alive = [name for name in NODES if name != lost]
        # It dies with parts of a request on disks, its own among them, and its disk goes too.
        nodes[lost].arm("ingest.super.before-complete")

        def is_dead() -> bool:
            with suppress(httpx.TransportError):
                assert send(nodes, lost, 10).status_code in (207, *NOT_NOW)
            return nodes[lost].is_dead

        until(is_dead, what="the death of an owner")
        nodes[lost].wait_dead_at_fault_point()
        shutil.rmtree(nodes[lost].data_dir)
        stored(nodes, 10, *alive)
        for first in range(20, 60, 10):
            stored(nodes, first, *alive)
        found = [values(nodes, alive[0], index) for index in range(3)]
        sent = [f"{key} {first + n}" for first in range(0, 60, 10) for n, key in enumerate(TEN)]
        by_partition: list[list[str]] = [[], [], []]
        for value in sent:
            key = value.split()[0]
            by_partition[0 if key in KEYS[0] else 1 if key in KEYS[1] else 2].append(value)
        assert found == by_partition
        heir = until(lambda: owner(nodes, alive[0], 0), what="an owner that lives")
        assert heir in alive
