"""Leaderless streams over HTTP, by a service that serves them: declared, described, changed.

The last tests say what one of a release answers that serves none.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.leaderless import WalWriter, a_leaderless_harness, a_leaderless_stream, tail_of
from support.manifest import SERVES_NONE, Fault, ManifestHarness
from support.object_keys import registry_key
from unit.manifest.test_manifest_api import Service, running

from bottomless.formats.stream_record import LEADERLESS, decode_registry
from bottomless.model.names import StreamId
from bottomless.model.stream import EpochStart
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.tail import TailState, first_epoch
from bottomless_server.stores.tail_keys import tail_key

LEADERLESS_BODY = {"profile": "leaderless"}


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(await a_leaderless_harness()) as started:
        yield started


@pytest.fixture
async def older() -> AsyncIterator[Service]:
    """A service of a release that serves no leaderless streams."""
    async with running(ManifestHarness(SERVES_NONE)) as started:
        yield started


async def a_stream(service: Service, **more: Any) -> StreamId:
    answer = await service.public.put("/v1/streams/orders", json={**LEADERLESS_BODY, **more})
    assert answer.status_code == 201, answer.text
    return StreamId(answer.json()["stream_id"])


async def patch(service: Service, body: Any, name: str = "orders") -> Any:
    found = await service.public.get(f"/v1/streams/{name}")
    headers = {"if-match": found.headers["etag"]}
    return await service.public.patch(f"/v1/streams/{name}", json=body, headers=headers)


async def test_it_is_created_with_a_tail_and_no_owner(service: Service) -> None:
    answer = await service.public.put("/v1/streams/orders", json=LEADERLESS_BODY)

    body = answer.json()
    assert answer.status_code == 201
    assert (body["profile"], body["fenced"]) == ("leaderless", False)
    assert body["fragment"]["max_age_ms"] == 600_000
    assert body["offsets"] == {"first": 0, "committed": None, "next": 0}
    assert body["tail"] == {"entries": 0, "bytes": 0, "first_offset": 0, "oldest_timestamp": None}
    stream_id = StreamId(body["stream_id"])
    record = await service.harness.streams.load(stream_id)
    epoch = first_epoch(0)
    assert (record.epoch, record.epochs) == (epoch, (EpochStart(epoch, 0),))
    tail = await tail_of(service.harness, stream_id)
    assert (tail.state, tail.epoch, tail.max_age_ms) == (TailState.OPEN, epoch, 600_000)
    stored = bytes(await service.harness.drive.get(registry_key(stream_id, 1)))
    assert decode_registry(stored, {LEADERLESS}).config.leaderless


async def test_the_same_put_again_finds_it_also_when_it_is_fenced(service: Service) -> None:
    await a_stream(service)
    await patch(service, {"fenced": True})

    again = await service.public.put("/v1/streams/orders", json=LEADERLESS_BODY)

    assert (again.status_code, again.json()["fenced"]) == (200, True)


@pytest.mark.parametrize("profiles", [("leaderless", "local"), ("local", "leaderless")])
async def test_another_profile_is_a_conflict(service: Service, profiles: tuple[str, str]) -> None:
    first, second = ({"profile": one} for one in profiles)
    await service.public.put("/v1/streams/orders", json=first)

    answer = await service.public.put("/v1/streams/orders", json=second)

    assert (answer.status_code, answer.json()["code"]) == (409, "stream-exists")
    assert answer.json()["differences"] == ["/profile"]
    stays = f"the stream exists, and is {profiles[0]}: the profile of a stream never changes"
    assert answer.json()["detail"] == stays


async def test_a_creation_whose_reply_is_lost_is_found_again(service: Service) -> None:
    service.harness.coordination.faults = [Fault.LOST_APPLIED]

    answer = await service.public.put("/v1/streams/orders", json=LEADERLESS_BODY)

    assert answer.status_code == 201
    await tail_of(service.harness, StreamId(answer.json()["stream_id"]))


@pytest.mark.parametrize("age", [9_999, 1_800_001])
async def test_the_age_of_fragments_has_bounds_of_its_own(service: Service, age: int) -> None:
    wanted = {"max_age_ms": age}
    refused = await service.public.put(
        "/v1/streams/orders", json={**LEADERLESS_BODY, "fragment": wanted}
    )
    local = await service.public.put("/v1/streams/locals", json={"fragment": wanted})
    assert (refused.status_code, local.status_code) == (422, 201)
    (fault,) = refused.json()["errors"]
    assert fault["pointer"] == "/fragment/max_age_ms"

    await a_stream(service)
    assert (await patch(service, {"fragment": wanted})).status_code == 422


async def test_a_patch_takes_the_age_back_to_the_default_of_the_profile(service: Service) -> None:
    stream_id = await a_stream(service, fragment={"max_age_ms": 20_000})
    assert (await tail_of(service.harness, stream_id)).max_age_ms == 20_000

    answer = await patch(service, {"fragment": {"max_age_ms": None}})

    assert answer.json()["fragment"]["max_age_ms"] == 600_000
    assert (await tail_of(service.harness, stream_id)).max_age_ms == 600_000


async def test_a_fence_is_in_record_tail_and_registry_object(service: Service) -> None:
    stream_id = await a_stream(service)

    answer = await patch(service, {"fenced": True})

    assert (answer.status_code, answer.json()["fenced"]) == (200, True)
    assert (await service.harness.streams.load(stream_id)).config.fenced
    assert (await tail_of(service.harness, stream_id)).state is TailState.FENCED
    stored = bytes(await service.harness.drive.get(registry_key(stream_id, 2)))
    assert decode_registry(stored, {LEADERLESS}).config.fenced

    assert (await patch(service, {"labels": {"team": "billing"}})).json()["fenced"] is True
    assert (await patch(service, {"fenced": None})).json()["fenced"] is False
    assert (await tail_of(service.harness, stream_id)).state is TailState.OPEN


async def test_a_fence_whose_reply_is_lost_is_answered(service: Service) -> None:
    stream_id = await a_stream(service)
    found = await service.public.get("/v1/streams/orders")
    service.harness.coordination.faults = [Fault.LOST_APPLIED]

    answer = await service.public.patch(
        "/v1/streams/orders", json={"fenced": True}, headers={"if-match": found.headers["etag"]}
    )

    assert (answer.status_code, answer.json()["config_version"]) == (200, 2)
    assert (await tail_of(service.harness, stream_id)).state is TailState.FENCED


@pytest.mark.parametrize(
    ("profile", "body", "pointer"),
    [
        ("leaderless", {"profile": "local"}, "/profile"),
        ("local", {"profile": "leaderless"}, "/profile"),
        ("local", {"fenced": True}, "/fenced"),
        ("local", {"fenced": False}, "/fenced"),
        ("leaderless", {"fenced": 1}, "/fenced"),
    ],
)
async def test_what_never_changes_is_refused(
    service: Service, profile: str, body: Any, pointer: str
) -> None:
    await service.public.put("/v1/streams/orders", json={"profile": profile})

    answer = await patch(service, body)

    assert (answer.status_code, answer.json()["code"]) == (422, "validation-failed")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


async def test_a_local_stream_has_no_tail_to_show(service: Service) -> None:
    body = (await service.public.put("/v1/streams/orders")).json()
    assert (body["profile"], body["fenced"], body["tail"]) == ("local", False, None)


async def test_what_waits_in_the_tail_is_shown() -> None:
    harness = await a_leaderless_harness()
    record = await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    await writer.flush(record.stream_id)
    harness.clock.now += 5_000
    await writer.flush(record.stream_id, record.stream_id)
    tail = await tail_of(harness)
    async with running(harness) as service:
        answer = await service.public.get("/v1/streams/orders")
        listed = (await service.public.get("/v1/streams")).json()["items"]

    body = answer.json()
    assert body["offsets"] == {"first": 0, "committed": 5, "next": 6}
    assert answer.headers["stream-next-offset"] == "6"
    shown = body["tail"]
    assert (shown["entries"], shown["bytes"], shown["first_offset"]) == (2, tail.log_end, 0)
    assert shown["oldest_timestamp"] == "1970-01-01T00:16:40.000Z"
    assert [item["profile"] for item in listed] == ["leaderless"]


async def test_a_tail_that_cannot_be_read_is_told(service: Service) -> None:
    stream_id = await a_stream(service)
    service.harness.coordination.write(Changes({tail_key(stream_id): b"damaged"}))

    answer = await service.public.get("/v1/streams/orders")

    assert (answer.status_code, answer.json()["code"]) == (502, "data-corrupt")


@pytest.mark.parametrize("body", [LEADERLESS_BODY, {"profile": "local"}, {"fenced": False}])
async def test_a_release_that_serves_none_knows_no_such_member(older: Service, body: Any) -> None:
    put = await older.public.put("/v1/streams/orders", json=body)
    assert (put.status_code, put.json()["errors"][0]["code"]) == (422, "unknown-member")

    created = (await older.public.put("/v1/streams/orders")).json()
    assert not {"profile", "fenced", "tail"} & created.keys()
    changed = await patch(older, body)
    assert (changed.status_code, changed.json()["errors"][0]["code"]) == (422, "unknown-member")
