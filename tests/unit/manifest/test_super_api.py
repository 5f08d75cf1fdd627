"""Super streams over HTTP: public and internal paths, without a socket."""

from collections.abc import AsyncIterator

import pytest
from support.manifest import ManifestHarness
from unit.manifest.test_manifest_api import Service, running

from bottomless_server.protocol.supers import decode_super_stream

EVENTS = "/v1/super-streams/events"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(ManifestHarness()) as started:
        yield started


async def test_a_super_stream_is_created_described_and_listed(service: Service) -> None:
    asked = {"partitions": 3, "retention": {"max_age": "7D"}}
    made = await service.public.put(EVENTS, json=asked)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == EVENTS
    body = made.json()
    assert (body["strategy"], body["hash"], body["state"]) == (
        "hash",
        "murmur3_32/104729",
        "active",
    )
    assert [(one["index"], one["stream"]) for one in body["partitions"]] == [
        (0, "events-0"),
        (1, "events-1"),
        (2, "events-2"),
    ]
    assert body["retention"]["max_age_seconds"] == 604_800
    assert made.headers["etag"] == body["etag"] == f'"{body["super_id"]}.c1.l1"'

    again = await service.public.put(EVENTS, json=asked)
    shown = await service.public.get(EVENTS)
    assert (again.status_code, shown.status_code) == (200, 200)
    assert again.json() == shown.json() == body
    unchanged = await service.public.get(EVENTS, headers={"if-none-match": body["etag"]})
    assert unchanged.status_code == 304

    listed = (await service.public.get("/v1/super-streams")).json()
    assert [one["name"] for one in listed["items"]] == ["events"]
    assert (listed["unreadable"], listed["next_page_token"]) == ([], None)
    streams = (await service.public.get("/v1/streams")).json()["items"]
    assert [one["name"] for one in streams] == ["events-0", "events-1", "events-2"]


async def test_a_list_of_super_streams_has_pages(service: Service) -> None:
    for name in ("b", "a", "c"):
        made = await service.public.put(f"/v1/super-streams/{name}", json={"partitions": 1})
        assert made.status_code == 201
    first = (await service.public.get("/v1/super-streams?limit=2")).json()
    token = first["next_page_token"]
    second = (await service.public.get(f"/v1/super-streams?limit=2&page_token={token}")).json()
    pages = [[one["name"] for one in page["items"]] for page in (first, second)]
    assert pages == [["a", "b"], ["c"]]
    assert second["next_page_token"] is None


async def test_other_services_are_told_how_records_are_divided(service: Service) -> None:
    made = await service.public.put(EVENTS, json={"binding_keys": ["amer", "emea"]})
    found = await service.internal.get("/internal/v1/super-streams/by-name/events")
    said = decode_super_stream(found.json())
    assert said.super_id == made.json()["super_id"]
    assert [one.binding_key for one in said.partitions] == ["amer", "emea"]
    by_id = await service.internal.get(f"/internal/v1/super-streams/{said.super_id}")
    assert by_id.json() == found.json()
    elsewhere = "/internal/v1/super-streams/by-name/events?tenant=acme"
    for path in (elsewhere, "/internal/v1/super-streams/by-name/events-0"):
        missing = await service.internal.get(path)
        assert (missing.status_code, missing.json()["code"]) == (404, "stream-not-found")
    as_stream = await service.internal.get("/internal/v1/streams/by-name/events")
    assert as_stream.status_code == 404


async def test_a_partition_is_a_stream_but_for_what_its_super_stream_does(service: Service) -> None:
    made = (await service.public.put(EVENTS, json={"partitions": 2})).json()
    partition = "/v1/streams/events-1"
    assert (await service.public.get(partition)).json()["stream_id"] == (
        made["partitions"][1]["stream_id"]
    )
    assert (await service.public.put(partition)).status_code == 200
    any_etag = {"if-match": "*"}
    for answer in (
        await service.public.patch(partition, json={"labels": {"a": "b"}}, headers=any_etag),
        await service.public.delete(partition),
        await service.public.get(f"{partition}/groups"),
        await service.public.post(f"{partition}/groups/g/members", json={"member": "m"}),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (409, "partition-of-super-stream")
        assert (problem["super_id"], problem["partition"]) == (made["super_id"], 1)


async def test_what_is_not_there_is_not_found(service: Service) -> None:
    await service.public.put("/v1/streams/orders")
    for path in (EVENTS, "/v1/super-streams/orders"):
        answer = await service.public.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "stream-not-found")
    taken = await service.public.put("/v1/super-streams/orders", json={"partitions": 1})
    assert (taken.status_code, taken.json()["code"]) == (409, "stream-exists")
    taken = await service.public.put("/v1/streams/events-2")
    assert taken.status_code == 201
    taken = await service.public.put(EVENTS, json={"partitions": 3})
    assert (taken.status_code, taken.json()["taken_partitions"]) == (409, [2])


async def test_a_key_is_routed_as_every_client_with_super_streams_routes_it(
    service: Service,
) -> None:
    """P1, P2."""
    await service.public.put(EVENTS, json={"partitions": 3})
    keys = [*(f"hello{number}" for number in range(1, 11)), "", "é", "日本", "😀"]
    found = []
    for key in keys:
        answer = await service.public.get(f"{EVENTS}/route", params={"key": key})
        [partition] = answer.json()["partitions"]
        found.append(partition["index"])
        assert partition["stream"] == f"events-{partition['index']}"
    assert found == [1, 0, 1, 2, 0, 2, 0, 1, 0, 2, 1, 1, 1, 0]
    same = await service.public.get(f"{EVENTS}/route?key_base64=aGVsbG8x")
    assert same.json()["partitions"][0]["index"] == 1
    for query in ("", "?key=a&key_base64=YQ", "?key_base64=*"):
        assert (await service.public.get(f"{EVENTS}/route{query}")).status_code == 400


async def test_a_binding_key_leads_to_its_partition_and_another_key_to_none(
    service: Service,
) -> None:
    """P8."""
    await service.public.put(EVENTS, json={"binding_keys": ["amer", "emea"]})
    found = (await service.public.get(f"{EVENTS}/route?key=emea")).json()["partitions"]
    assert [(one["index"], one["binding_key"]) for one in found] == [(1, "emea")]
    assert (await service.public.get(f"{EVENTS}/route?key=apac")).json() == {"partitions": []}


async def test_a_super_stream_is_changed_and_deleted_as_a_whole(service: Service) -> None:
    made = (await service.public.put(EVENTS, json={"partitions": 2})).json()
    patch = {"labels": {"team": "billing"}}
    assert (await service.public.patch(EVENTS, json=patch)).status_code == 428
    changed = await service.public.patch(EVENTS, json=patch, headers={"if-match": made["etag"]})
    assert changed.status_code == 200, changed.text
    assert changed.json()["labels"] == {"team": "billing"}
    assert (await service.public.get("/v1/streams/events-1")).json()["labels"] == patch["labels"]
    stale = {"if-match": made["etag"]}
    for answer in (
        await service.public.patch(EVENTS, json=patch, headers=stale),
        await service.public.delete(EVENTS, headers=stale),
    ):
        assert (answer.status_code, answer.json()["code"]) == (412, "etag-mismatch")
    refused = await service.public.patch(EVENTS, json={"profile": "x"}, headers={"if-match": "*"})
    assert refused.status_code == 422

    gone = await service.public.delete(EVENTS, headers={"if-match": "*"})
    assert gone.status_code == 202, gone.text
    assert gone.json()["super_id"] == made["super_id"]
    operation = await service.public.get(gone.headers["location"])
    assert operation.json()["kind"] == "delete-super-stream"
    for path in (EVENTS, "/v1/streams/events-0", "/v1/streams/events-1"):
        assert (await service.public.get(path)).status_code == 404
