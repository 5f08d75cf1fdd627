"""Consumer groups over the partitions of a super stream: each partition has one holder, and only it
stores an offset there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.guards import remove
from support.manifest import ManifestHarness
from unit.manifest.test_manifest_api import Service, running

from bottomless.model.names import Reference, StreamId
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.base import Member as Indexed
from bottomless_server.stores.groups import ConsumerGroups, group_key, groups_index, member_key

EVENTS = "/v1/super-streams/events"
GROUP = f"{EVENTS}/groups/billing"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(ManifestHarness()) as started:
        made = await started.public.put(EVENTS, json={"partitions": 3})
        assert made.status_code == 201
        yield started


class Member:
    """A program that is in the group."""

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self.name = name
        self.member_id = ""
        self.holding: dict[str, int] = {}

    async def join(self) -> "Member":
        joined = await self.service.public.post(f"{GROUP}/members", json={"member": self.name})
        assert joined.status_code == 201, joined.text
        self.member_id = joined.json()["member_id"]
        self._take(joined.json())
        return self

    async def beat(self) -> None:
        """Release what is revoked, and take what is given."""
        for _ in range(2):
            body: dict[str, Any] = {"holding": self.holding}
            path = f"{GROUP}/members/{self.member_id}/heartbeat"
            told = (await self.service.public.post(path, json=body)).json()
            released = {str(one["partition"]): one["generation"] for one in told["revoked"]}
            told = (await self.service.public.post(path, json={"released": released})).json()
            self._take(told)

    def _take(self, told: dict[str, Any]) -> None:
        self.holding = {str(one["partition"]): one["generation"] for one in told["assignments"]}

    async def commit(self, partition: int, generation: int | None = None) -> int:
        held = self.holding.get(str(partition), 1) if generation is None else generation
        body = {"next_offset": 0, "member_id": self.member_id, "generation": held}
        return await commit(self.service, partition, body)


async def commit(service: Service, partition: int, body: dict[str, Any]) -> int:
    path = f"/v1/streams/events-{partition}/consumers/billing/offset"
    answer = await service.public.put(path, json=body)
    assert answer.status_code == 200 or answer.json()["code"] == "consumer-fenced", answer.text
    return answer.status_code


async def two(service: Service) -> tuple[Member, Member]:
    """Members who share three partitions."""
    first = await Member(service, "a").join()
    assert set(first.holding) == {"0", "1", "2"}
    second = await Member(service, "b").join()
    for member in (first, second, first):
        await member.beat()
    return first, second


async def test_members_share_the_partitions_and_no_two_hold_one(service: Service) -> None:
    """G9."""
    first, second = await two(service)
    assert {*first.holding} | {*second.holding} == {"0", "1", "2"}
    assert not {*first.holding} & {*second.holding}
    shown = (await service.public.get(GROUP)).json()
    assert [(one["partition"], one["stream"]) for one in shown["partitions"]] == [
        (0, "events-0"),
        (1, "events-1"),
        (2, "events-2"),
    ]
    names = {one["partition"]: one["member"] for one in shown["partitions"]}
    assert all(names[int(index)] == "a" for index in first.holding)
    assert all(names[int(index)] == "b" for index in second.holding)
    listed = (await service.public.get(f"{EVENTS}/groups")).json()["items"]
    assert [(one["group"], one["partition_count"]) for one in listed] == [("billing", 3)]


async def test_only_who_holds_a_partition_stores_an_offset_there(service: Service) -> None:
    first, second = await two(service)
    for index in range(3):
        holder, other = (first, second) if str(index) in first.holding else (second, first)
        assert await holder.commit(index) == 200
        assert await other.commit(index) == 409
        assert await holder.commit(index, holder.holding[str(index)] - 1) == 409
        assert await commit(service, index, {"next_offset": 0}) == 409
    shown = (await service.public.get(GROUP)).json()
    assert [one["next_offset"] for one in shown["partitions"]] == [0, 0, 0]
    # Another consumer is in no group, and stores what it likes.
    path = "/v1/streams/events-0/consumers/other/offset"
    assert (await service.public.put(path, json={"next_offset": 0})).status_code == 200


async def test_without_the_guard_somebody_else_stores_an_offset_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(service)
    index = int(min(first.holding))
    assert await second.commit(index) == 409
    remove(monkeypatch, "the generation in the commit's EXEC", lambda *_: None)
    assert await second.commit(index) == 200


async def test_a_reader_is_told_who_holds_which_partition(service: Service) -> None:
    first, second = await two(service)
    made = (await service.public.get(EVENTS)).json()
    groups = ConsumerGroups(service.harness.coordination)
    for one in made["partitions"]:
        index, stream_id = str(one["index"]), StreamId(one["stream_id"])
        told = await groups.held([(stream_id, first.member_id), (stream_id, second.member_id)])
        assert told == [first.holding.get(index), second.holding.get(index)]


async def test_members_share_what_came_by_growth(service: Service) -> None:
    first, second = await two(service)
    more = {"partitions": 5, "accept_rehash": True}
    grown = await service.public.patch(EVENTS, json=more, headers={"if-match": "*"})
    assert grown.status_code == 200, grown.text
    for member in (first, second, first):
        await member.beat()
    assert {*first.holding} | {*second.holding} == {"0", "1", "2", "3", "4"}
    assert abs(len(first.holding) - len(second.holding)) == 1


async def test_a_group_is_told_what_came_by_growth_after_it_had_begun(service: Service) -> None:
    # The clock of coordination is that of the service, which goes by the time of the loop.
    service.harness.clock.now = int(asyncio.get_running_loop().time() * 1000)
    await Member(service, "a").join()
    await grow(service)
    joined = await service.public.post(f"{GROUP}/members", json={"member": "a"})
    told = {one["partition"]: one["source"] for one in joined.json()["assignments"]}
    assert told == {0: "none", 1: "none", 2: "none", 3: "growth", 4: "growth"}

    service.harness.clock.now += 3_600_000
    later = await service.public.post(f"{EVENTS}/groups/later/members", json={"member": "a"})
    assert {one["source"] for one in later.json()["assignments"]} == {"none"}


async def test_who_leaves_gives_over_and_a_group_ends_with_its_super_stream(
    service: Service,
) -> None:
    first, second = await two(service)
    assert (await service.public.delete(GROUP)).json()["code"] == "group-not-empty"
    left = await service.public.delete(f"{GROUP}/members/{first.member_id}")
    assert left.status_code == 204
    await second.beat()
    assert {*second.holding} == {"0", "1", "2"}
    wanted = {"partition": 1, "member": "b"}
    assert (await service.public.post(f"{GROUP}/activate", json=wanted)).status_code == 200
    await service.public.delete(EVENTS)
    missing = await service.public.post(f"{GROUP}/members", json={"member": "c"})
    assert missing.status_code == 404
    assert (await service.public.get(GROUP)).status_code == 404


async def test_a_heartbeat_that_waits_while_the_super_stream_grows_hears_of_the_new_partitions(
    service: Service,
) -> None:
    member = await Member(service, "a").join()
    path = f"{GROUP}/members/{member.member_id}/heartbeat?wait_ms=9000"
    waiting = asyncio.create_task(service.public.post(path, json={"holding": member.holding}))
    for _ in range(20):
        await asyncio.sleep(0.01)
    await grow(service)

    told = await waiting

    assert told.status_code == 200, told.text
    assert len(told.json()["assignments"]) > 3


async def test_a_group_that_cannot_be_read_keeps_no_other_from_new_partitions(
    service: Service,
) -> None:
    member = await Member(service, "a").join()
    lease = await groups_of(service).lease_of(member.member_id)
    assert lease is not None
    first, indexed = Reference("aaa"), Indexed(groups_index(lease.scope), b"aaa", True)
    unreadable = Changes({group_key(lease.scope, first): b'{"format":2}'}, members=[indexed])
    service.harness.coordination.write(unreadable)

    await grow(service)

    await member.beat()
    assert len(member.holding) == 5


async def test_a_lease_that_cannot_be_read_says_nothing_of_the_members_asked_about_with_it(
    service: Service,
) -> None:
    member = await Member(service, "a").join()
    place = (await service.public.get(EVENTS)).json()["partitions"][0]
    stream_id, later = StreamId(place["stream_id"]), "f" * 32
    unreadable = Changes({member_key(later): b'["s","g",1,"of a later release"]'})
    service.harness.coordination.write(unreadable)

    held = await groups_of(service).held([(stream_id, member.member_id), (stream_id, later)])

    assert held == [member.holding["0"], None]


async def grow(service: Service) -> None:
    asked = {"partitions": 5, "accept_rehash": True}
    grown = await service.public.patch(EVENTS, json=asked, headers={"if-match": "*"})
    assert grown.status_code == 200, grown.text


def groups_of(service: Service) -> ConsumerGroups:
    return ConsumerGroups(service.harness.coordination)
