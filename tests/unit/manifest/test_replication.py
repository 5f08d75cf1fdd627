"""On how many nodes the tail of a stream lies: said over HTTP, and kept."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.manifest import ManifestHarness
from unit.formats.examples import REPLICATED_RECORD
from unit.manifest.test_manifest_api import Service, running

from bottomless.model.names import NodeId
from bottomless.model.stream import NOBODY
from bottomless_server.manifest.tree.core.rebuild_decision import record_before

STREAM = "/v1/streams/orders"
ONE = {"replicas": 1, "min_in_sync": None}
THREE = {"replicas": 3, "min_in_sync": None}


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(ManifestHarness()) as started:
        yield started


async def patched(service: Service, replication: Any) -> dict[str, Any]:
    answer = await service.public.patch(
        STREAM, json={"replication": replication}, headers={"If-Match": "*"}
    )
    assert answer.status_code == 200, answer.text
    members: dict[str, Any] = answer.json()
    return members


async def test_a_stream_is_created_with_replicas_and_described_with_them(service: Service) -> None:
    created = await service.public.put(STREAM, json={"replication": {"replicas": 3}})
    assert (created.status_code, created.json()["replication"]) == (201, THREE)
    assert (await service.public.get(STREAM)).json()["replication"] == THREE
    for same in ({}, {"replication": {"replicas": 3}}):
        assert (await service.public.put(STREAM, json=same)).status_code == 200
    other = await service.public.put(STREAM, json={"replication": {"replicas": 2}})
    assert (other.status_code, other.json()["differences"]) == (409, ["/replication/replicas"])


async def test_a_patch_changes_how_many_there_are_and_takes_them_away(service: Service) -> None:
    assert (await service.public.put(STREAM)).json()["replication"] == ONE
    assert (await patched(service, {"replicas": 3}))["replication"] == THREE
    floor = await patched(service, {"min_in_sync": 1})
    assert floor["replication"] == {"replicas": 3, "min_in_sync": 1}
    assert (await patched(service, None))["replication"] == ONE


async def test_a_leaderless_stream_has_none(service: Service) -> None:
    asked = {"profile": "leaderless", "replication": {"replicas": 3}}
    refused = await service.public.put(STREAM, json=asked)
    assert refused.status_code == 422
    assert [fault["pointer"] for fault in refused.json()["errors"]] == ["/replication"]


async def test_the_server_says_how_many_where_a_request_does_not() -> None:
    async with running(ManifestHarness(manifest_replicas=2)) as service:
        created = await service.public.put(STREAM)
        assert created.json()["replication"] == {"replicas": 2, "min_in_sync": None}
        alone = await service.public.put(f"{STREAM}-alone", json={"replication": {"replicas": 1}})
        assert alone.json()["replication"] == ONE
        asked = {"profile": "leaderless"}
        leaderless = await service.public.put(f"{STREAM}-leaderless", json=asked)
        assert "replication" not in leaderless.json()


def test_after_a_rebuild_the_home_alone_counts_as_in_sync() -> None:
    registry = replace(REPLICATED_RECORD, in_sync=())
    before = record_before(registry, None, 7)
    assert (before.members, before.in_sync) == (REPLICATED_RECORD.members, (before.home,))
    nobody = replace(registry, home=None, owner_url=None, dirty=False)
    assert record_before(nobody, None, 7).in_sync == ()
    assert NodeId(str(before.home)) in before.members


def test_after_a_rebuild_nobody_is_in_sync_where_an_operator_gave_all_of_them_up() -> None:
    """Seed 73 of a super stream with replicas: a rebuild named as in sync who is nobody, and never ended."""
    given_up = replace(REPLICATED_RECORD, home=NOBODY, owner_url=None, in_sync=())
    before = record_before(given_up, None, 7)
    assert (before.members, before.in_sync) == (REPLICATED_RECORD.members, ())
