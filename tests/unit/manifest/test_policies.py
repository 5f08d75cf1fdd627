"""The policy of a stream, which says on what drives its fragments belong: said over HTTP, and kept."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.drives import a_table, register
from support.manifest import ManifestHarness
from support.object_keys import registry_key
from unit.manifest.test_manifest_api import Service, running

from bottomless.formats.checks import crc32c
from bottomless.formats.drive_objects import drives_key
from bottomless.formats.stream_record import TIERS, decode_registry
from bottomless.model.names import StreamId

STREAM = "/v1/streams/orders"
POLICY = [{"drive": "default", "max_age": "7D"}, {"drive": "d7"}]
KEPT = [
    {"drive": "default", "max_age": "7D", "max_bytes": None, "promote_after_reads": None},
    {"drive": "d7", "max_age": None, "max_bytes": None, "promote_after_reads": None},
]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A manifest with a drive that is registered, d7, and one that is not, d8."""
    harness = ManifestHarness()
    harness.use_drives(await a_table(harness.drive, 7, 8))
    await register(harness.drive, 7)
    async with running(harness) as started:
        yield started


async def put(service: Service, tiers: Any, **more: Any) -> httpx.Response:
    return await service.public.put(STREAM, json={"tiers": tiers, **more})


async def patch(service: Service, tiers: Any) -> httpx.Response:
    headers = {"If-Match": "*"}
    return await service.public.patch(STREAM, json={"tiers": tiers}, headers=headers)


@pytest.mark.parametrize("profile", ["local", "leaderless"])
async def test_a_stream_is_created_with_tiers_and_described_with_them(
    service: Service, profile: str
) -> None:
    created = await put(service, POLICY, profile=profile)
    assert created.status_code == 201, created.text
    assert created.json()["tiers"] == KEPT
    again = await put(service, POLICY, profile=profile)
    assert again.status_code == 200
    assert (await service.public.get(STREAM)).json() == created.json()
    (listed,) = (await service.public.get("/v1/streams")).json()["items"]
    assert listed["tiers"] == KEPT


async def test_the_registry_object_has_the_policy(service: Service) -> None:
    stream_id = StreamId((await put(service, POLICY)).json()["stream_id"])
    key = registry_key(stream_id, 1)
    read = decode_registry(bytes(await service.harness.drive.get(key)))
    assert [tier.drive for tier in read.config.tiers] == ["default", "d7"]


async def test_another_policy_is_another_configuration(service: Service) -> None:
    await put(service, POLICY)
    for other in ([], [{"drive": "d7"}]):
        answer = await put(service, other)
        assert (answer.status_code, answer.json()["differences"]) == (409, ["/tiers"])


async def test_a_policy_is_given_changed_and_taken_away(service: Service) -> None:
    assert "tiers" not in (await service.public.put(STREAM)).json()
    assert (await patch(service, POLICY)).json()["tiers"] == KEPT
    assert (await patch(service, POLICY[1:])).json()["tiers"] == KEPT[1:]
    assert "tiers" not in (await patch(service, None)).json()


async def test_a_drive_that_is_not_registered_is_unknown(service: Service) -> None:
    await service.public.put(STREAM)
    unknown = [POLICY[0], {"drive": "d8"}]
    for answer in (await put(service, unknown), await patch(service, unknown)):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "drive-unknown")
        assert [fault["pointer"] for fault in problem["errors"]] == ["/tiers/1/drive"]
    assert "tiers" not in (await service.public.get(STREAM)).json()


async def test_what_a_patch_does_not_touch_is_not_looked_up(service: Service) -> None:
    """A drive may have been retired since: labels can be changed all the same."""
    await put(service, POLICY)
    await service.harness.drive.put(drives_key(2), [b"damaged"], crc32c(b"damaged"))
    assert (await patch(service, POLICY)).status_code == 502
    answer = await service.public.patch(
        STREAM, json={"labels": {"a": "b"}}, headers={"If-Match": "*"}
    )
    assert (answer.status_code, answer.json()["tiers"]) == (200, KEPT)


@pytest.mark.parametrize(
    "tiers",
    [
        [{"drive": "default"}, {"drive": "d7"}],
        [{"drive": "d7", "max_bytes": 1}],
        [{"drive": "d7", "max_bytes": 1}, {"drive": "d7"}],
        [{"drive": f"d{number}", "max_bytes": 1} for number in range(8)] + [{"drive": "default"}],
    ],
    ids=["no limit", "a limit at the end", "a drive twice", "nine"],
)
async def test_what_is_no_policy_is_refused(service: Service, tiers: Any) -> None:
    answer = await put(service, tiers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "validation-failed")
    assert [fault["pointer"] for fault in problem["errors"]] == ["/tiers"]


async def test_a_service_without_tiers_takes_no_policy(service: Service) -> None:
    harness = ManifestHarness(service.harness.context.served - {TIERS})
    async with running(harness) as other:
        assert (await put(other, POLICY)).status_code == 422
        body = {"partitions": 2, "tiers": POLICY}
        assert (await other.public.put("/v1/super-streams/events", json=body)).status_code == 422
