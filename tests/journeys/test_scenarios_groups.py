"""Consumer groups over HTTP: scenarios G1 to G6 and G9 to G11; G7 and G8 are in
test_groups_come_and_go.py."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300",
    "BOTTOMLESS_MANIFEST_GROUP_CHECK_MS": "100",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
}
LEASE_MS = 10_000
LONG_LEASE_MS = 300_000
LAGS = ("lag_records", "lag_seconds", "lag_bytes")


@pytest.fixture
def stream(client: httpx.Client) -> Stream:
    made = new_stream(client, QUICK)
    made.append(*(f"r{number}" for number in range(20)))
    return made


class Member:
    """A program in a group, as it knows itself."""

    def __init__(self, stream: Stream, name: str, group: str = "billing", **more: Any) -> None:
        self.stream = stream
        self.name = name
        self.place = f"{stream.path}/groups/{group}"
        self.group = group
        answer = stream.client.post(f"{self.place}/members", json={"member": name, **more})
        assert answer.status_code == 201, answer.text
        self.joined: dict[str, Any] = answer.json()
        self.path = f"{self.place}/members/{self.joined['member_id']}"
        self.holding = {one["partition"]: one["generation"] for one in self.joined["assignments"]}

    @property
    def active(self) -> bool:
        return bool(self.holding)

    @property
    def generation(self) -> int:
        return int(self.holding[0])

    def beat(self, wait_ms: int = 0, released: dict[int, int] | None = None) -> httpx.Response:
        body = {
            "holding": {str(number): one for number, one in self.holding.items()},
            "released": {str(number): one for number, one in (released or {}).items()},
        }
        answer = self.stream.client.post(f"{self.path}/heartbeat?wait_ms={wait_ms}", json=body)
        if answer.status_code == 200:
            self.holding = {
                one["partition"]: one["generation"] for one in answer.json()["assignments"]
            }
        return answer

    def commit(self, offset: int, generation: int | None = None) -> httpx.Response:
        body = {
            "offset": offset,
            "member_id": self.joined["member_id"],
            "generation": self.generation if generation is None else generation,
        }
        path = f"{self.stream.path}/consumers/{self.group}/offset"
        return self.stream.client.put(path, json=body)

    def read(self, query: str = "offset=first", **more: str) -> httpx.Response:
        headers = {
            "Group-Member": self.joined["member_id"],
            "Group-Generation": str(self.generation),
            **more,
        }
        return self.stream.client.get(f"{self.stream.path}/records?{query}", headers=headers)

    def leave(self) -> None:
        assert self.stream.client.delete(self.path).status_code == 204


def shown(stream: Stream, group: str = "billing") -> dict[str, Any]:
    answer = stream.client.get(f"{stream.path}/groups/{group}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def stored(stream: Stream, consumer: str = "billing") -> int:
    answer = stream.client.get(f"{stream.path}/consumers/{consumer}/offset")
    return int(answer.json()["next_offset"])


def test_of_three_that_join_the_first_reads_and_the_others_wait(stream: Stream) -> None:
    """G1."""
    first, second, third = (Member(stream, f"pod-{letter}") for letter in "abc")

    assert (first.active, second.active, third.active) == (True, False, False)
    (assignment,) = first.joined["assignments"]
    assert assignment["stream"] == stream.name
    assert (assignment["next_offset"], assignment["source"]) == (None, "none")
    group = shown(stream)
    assert [one["member"] for one in group["members"]] == ["pod-a", "pod-b", "pod-c"]
    (partition,) = group["partitions"]
    assert (partition["member"], partition["generation"]) == ("pod-a", first.generation)
    assert group["seconds_without_holder"] is None
    for one in (first, second, third):
        assert one.joined["member_id"] not in str(group), "an id is told to its member alone"
    (item,) = stream.client.get(f"{stream.path}/groups").json()["items"]
    assert (item["group"], item["member_count"], item["strategy"]) == ("billing", 3, "sticky")


def test_the_second_goes_on_at_once_where_the_first_left_off(stream: Stream) -> None:
    """G2."""
    first, second = Member(stream, "pod-a"), Member(stream, "pod-b")
    assert first.commit(6).status_code == 200

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.beat, 20_000)
        first.leave()
        answer = waiting.result()

    (assignment,) = answer.json()["assignments"]
    assert (assignment["next_offset"], assignment["source"]) == (7, "stored")
    assert assignment["generation"] == first.generation + 1
    assert second.commit(8).status_code == 200
    problem_of(first.beat(), 404, "member-expired")


def test_a_silent_member_is_replaced_after_its_lease_and_not_before(stream: Stream) -> None:
    """G3 and G4."""
    begun = time.monotonic()
    first = Member(stream, "pod-a", lease_ms=LEASE_MS)
    assert first.commit(3).status_code == 200
    second = Member(stream, "pod-b", lease_ms=LONG_LEASE_MS)

    def taken() -> bool:
        second.beat(wait_ms=1_000)
        return second.active

    until(taken, what="the lease of the first to run out")
    assert time.monotonic() - begun >= LEASE_MS / 1000
    assert second.generation > first.generation

    problem = problem_of(first.commit(4), 409, "consumer-fenced")
    assert problem["outcome"] == "none"
    assert stored(stream) == 4, "what a zombie says is not stored"
    assert second.commit(9).status_code == 200
    problem_of(second.commit(10, first.generation), 409, "consumer-fenced")
    problem_of(first.beat(), 404, "member-expired")


def test_only_the_holder_stores_an_offset_while_there_is_one(stream: Stream) -> None:
    """G4: nor does somebody by hand."""
    first = Member(stream, "pod-a")
    path = f"{stream.path}/consumers/billing/offset"
    problem_of(stream.client.put(path, json={"offset": 2}), 409, "consumer-fenced")
    assert first.commit(2).status_code == 200
    problem_of(stream.client.delete(path), 409, "consumer-fenced")

    first.leave()
    assert stream.client.put(path, json={"offset": 5}).status_code == 200
    problem_of(first.commit(6), 409, "consumer-fenced")
    half = stream.client.put(path, json={"offset": 6, "generation": 1})
    problem_of(half, 409, "consumer-fenced")


def test_a_group_shows_how_far_it_is_behind(stream: Stream) -> None:
    first = Member(stream, "pod-a")
    (unknown,) = shown(stream)["partitions"]
    assert [unknown[name] for name in LAGS] == [None, None, None], "nothing is stored yet"
    first.commit(9)
    (behind,) = shown(stream)["partitions"]
    assert behind["lag_records"] == 10
    assert behind["lag_seconds"] >= 0
    assert behind["lag_bytes"] > 10
    first.commit(19)
    (done,) = shown(stream)["partitions"]
    assert [done[name] for name in LAGS] == [0, 0, 0]


def test_who_does_not_hold_the_stream_reads_nothing_in_any_form(stream: Stream) -> None:
    """G5."""
    first, second = Member(stream, "pod-a"), Member(stream, "pod-b")
    forms = ["application/json", "application/vnd.apache.arrow.stream", "text/event-stream"]
    assert len(first.read().json()["records"]) == 20
    generation = first.generation
    first.leave()
    second.beat()
    assert len(second.read().json()["records"]) == 20

    def refused() -> bool:
        return first.read().status_code == 409

    until(refused, what="what is known of the first member to be a second old")
    for accept in forms:
        problem_of(first.read(Accept=accept), 409, "not-active")
    problem_of(first.read("offset=next&max_wait_ms=30000"), 409, "not-active")
    problem_of(second.read(**{"Group-Generation": str(generation)}), 409, "not-active")
    problem_of(second.read(**{"Group-Member": "x"}), 400, "bad-header")


def test_an_answer_that_stays_open_ends_when_another_holds_the_stream(stream: Stream) -> None:
    """G5: without a record that would tell it."""
    first, second = Member(stream, "pod-a"), Member(stream, "pod-b")
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(
            first.read, "offset=next&follow=true", Accept="application/x-ndjson"
        )
        first.leave()
        last = following.result().text.splitlines()[-1]
    assert '"code":"not-active"' in last
    second.beat()
    assert second.read().status_code == 200


def test_a_group_and_a_member_have_names_as_consumers_have(stream: Stream) -> None:
    """G6."""
    client, groups = stream.client, f"{stream.path}/groups"
    assert client.post(f"{groups}//members", json={"member": "a"}).status_code in (404, 405)
    long = client.post(f"{groups}/{'g' * 256}/members", json={"member": "a"})
    problem_of(long, 400, "bad-name")
    problem_of(
        client.post(f"{groups}/g/members", json={"member": "a" * 256}), 422, "validation-failed"
    )
    problem_of(client.post(f"{groups}/g/members", json={}), 422, "validation-failed")
    short = client.post(f"{groups}/g/members", json={"member": "a", "lease_ms": 4_999})
    problem_of(short, 422, "validation-failed")
    problem_of(client.get(f"{groups}/never-joined"), 404, "group-not-found")


class Sharing(Member):
    """A member that shares the partitions of a super stream."""

    def settle(self) -> None:
        """Give over what is asked back, and take what is free."""
        told = self.beat().json()
        self.beat(released={one["partition"]: one["generation"] for one in told["revoked"]})


class SuperStream(Stream):
    """A super stream, as far as groups know it."""

    @property
    def path(self) -> str:
        return f"/v1/super-streams/{self.name}"


def holders_of(members: list[Sharing]) -> list[list[str]]:
    """Who believes to hold each of three partitions."""
    return [[one.name for one in members if number in one.holding] for number in range(3)]


def test_partitions_of_a_super_stream_go_to_member_i_mod_n_and_never_to_two(
    client: httpx.Client,
) -> None:
    """G9."""
    events = SuperStream(client, "g9")
    assert client.put(events.path, json={"partitions": 3}).status_code == 201
    members = [Sharing(events, "pod-a", strategy="modulo"), Sharing(events, "pod-b")]
    for one in (*members, *members):
        one.settle()
        assert all(len(names) <= 1 for names in holders_of(members))
    assert holders_of(members) == [["pod-a"], ["pod-b"], ["pod-a"]]
    before = members[0].holding[2]

    third = Sharing(events, "pod-c")
    members.append(third)
    third.settle()
    assert third.holding == {}, "who has it steps down first"
    assert problem_of(commit_of(third, 2, before), 409, "consumer-fenced")
    for one in (*members, *members):
        one.settle()
        assert all(len(names) <= 1 for names in holders_of(members))
    assert holders_of(members) == [["pod-a"], ["pod-b"], ["pod-c"]]
    assert third.holding[2] > before
    assert commit_of(third, 2, third.holding[2]).status_code == 200
    problem_of(commit_of(members[0], 2, before), 409, "consumer-fenced")


def commit_of(member: Member, number: int, generation: int) -> httpx.Response:
    """Store the beginning of a partition as where the group goes on."""
    body = {
        "next_offset": 0,
        "member_id": member.joined["member_id"],
        "generation": generation,
    }
    path = f"/v1/streams/{member.stream.name}-{number}/consumers/{member.group}/offset"
    return member.stream.client.put(path, json=body)


def test_what_its_holder_does_not_release_is_taken_from_it(stream: Stream) -> None:
    """G10."""
    first, second = Member(stream, "pod-a"), Member(stream, "pod-b")
    place = f"{stream.path}/groups/billing/activate"
    wanted = {"partition": 0, "member": "pod-b"}
    (partition,) = stream.client.post(place, json=wanted).json()["partitions"]
    assert (partition["member"], partition["following"]) == ("pod-a", "pod-b")

    told = first.beat().json()
    (revoked,) = told["revoked"]
    assert told["assignments"] == []
    assert 0 < revoked["deadline_ms"] <= 10_000
    assert first.commit(2, revoked["generation"]).status_code == 200, "it ends the batch in hand"

    def taken() -> bool:
        second.beat(wait_ms=1_000)
        return second.active

    until(taken, what="the stream to be taken from its holder")
    problem_of(first.commit(3, revoked["generation"]), 409, "consumer-fenced")
    assert second.commit(3).status_code == 200


def test_what_is_released_goes_on_at_once(stream: Stream) -> None:
    first, second = Member(stream, "pod-a"), Member(stream, "pod-b")
    place = f"{stream.path}/groups/billing/activate"
    stream.client.post(place, json={"partition": 0, "member": "pod-b"})
    (revoked,) = first.beat().json()["revoked"]

    first.beat(released={0: revoked["generation"]})
    first.beat(released={0: revoked["generation"]})
    second.beat()

    assert second.generation == revoked["generation"] + 1
    problem_of(
        stream.client.post(place, json={"partition": 0, "member": "nobody"}), 404, "member-expired"
    )


def test_a_program_that_starts_again_takes_its_own_place(stream: Stream) -> None:
    first = Member(stream, "pod-a")
    waiting = Member(stream, "pod-b")

    again = Member(stream, "pod-a")

    assert again.active
    assert again.generation > first.generation
    problem_of(first.beat(), 404, "member-expired")
    waiting.beat()
    assert not waiting.active


def test_two_groups_of_one_stream_have_nothing_to_do_with_each_other(stream: Stream) -> None:
    """G11."""
    one, other = Member(stream, "pod-a", "billing"), Member(stream, "pod-a", "audit")

    assert one.active
    assert other.active
    assert one.commit(3).status_code == 200
    assert other.commit(9).status_code == 200
    assert (stored(stream, "billing"), stored(stream, "audit")) == (4, 10)
    one.leave()
    assert other.commit(10).status_code == 200
    names = stream.client.get(f"{stream.path}/groups").json()["items"]
    assert [item["group"] for item in names] == ["audit", "billing"]
    assert shown(stream)["seconds_without_holder"] >= 0


def test_a_group_goes_when_nobody_is_in_it_or_its_stream_is_deleted(stream: Stream) -> None:
    client, place = stream.client, f"{stream.path}/groups/billing"
    member = Member(stream, "pod-a")
    problem_of(client.delete(place), 409, "group-not-empty")
    member.leave()
    assert client.delete(place).status_code == 204
    problem_of(client.delete(place), 404, "group-not-found")

    left = Member(stream, "pod-a")
    assert client.delete(stream.path).status_code == 202
    problem_of(left.beat(), 404, "stream-not-found")

    def again() -> bool:
        return client.put(stream.path, json=QUICK).status_code == 201

    until(again, what="the name to be free")
    problem_of(left.beat(), 404, "member-expired")
    problem_of(client.get(place), 404, "group-not-found")


def test_a_member_expects_the_strategy_that_the_group_has(stream: Stream) -> None:
    Member(stream, "pod-a", strategy="range")
    members = f"{stream.path}/groups/billing/members"

    other = stream.client.post(members, json={"member": "pod-b", "strategy": "modulo"})

    assert problem_of(other, 409, "group-mismatch")["strategy"] == "range"
    assert stream.client.post(members, json={"member": "pod-b"}).status_code == 201
    unknown = stream.client.post(members, json={"member": "pod-c", "strategy": "best"})
    problem_of(unknown, 422, "validation-failed")
