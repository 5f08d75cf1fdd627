"""A process that dies between two steps of each thing that saves or deletes.

Valkey and an S3 server are real and outlive every death. A fault point is armed, load is
driven until the process ends there, it is started again, and then what is stored is held
against what was acknowledged: once past every service (support/stored_stream.py), once
through the API. The exit code proves that the process died where it should.
"""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from support.crash_house import TARGET, CrashHouse, Driven, crash_house
from support.s3 import S3Server
from support.waiting import until

from bottomless_server.runtime.base.fault_points import POINTS


@pytest.fixture(scope="module")
def standing(seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashHouse]:
    with crash_house(tmp_path_factory.mktemp("crashes"), seaweed) as running:
        yield running


@pytest.fixture
def house(standing: CrashHouse) -> CrashHouse:
    """Alive, also where the test before this one was not."""
    if standing.server.is_dead:
        standing.server.wait_dead()
    standing.server.start()
    return standing


PUBLISHING = (
    "uploader.put.after-object",
    "manifest.publish.after-groups",
    "manifest.publish.before-exec",
    "manifest.publish.after-exec",
)
CUTTING = ("manifest.retention.before-cut", "manifest.retention.after-cut")
DELETING = (
    "manifest.deleter.after-condemn",
    "manifest.deleter.after-delete",
    "manifest.deleter.before-settle",
)
ENDING = (
    "manifest.deletion.after-exec",
    "manifest.deletion.after-object",
    "manifest.deletion.mid-sweep",
)
COLLECTING = ("manifest.garbage.after-bump", "manifest.garbage.after-queue")
REBUILDING = (
    "manifest.rebuild.after-stream",
    "manifest.rebuild.before-generation",
    "manifest.rebuild.after-generation",
)
ISSUING = ("manifest.keys.after-reserve", "manifest.keys.after-object")
REVOKING = ("manifest.keys.after-revocation", "manifest.keys.after-revocation-object")
RESTORING = "manifest.rebuild.after-key-object"
TAKING = ("manifest.takeover.after-fence", "manifest.takeover.after-gap")
PUT_IN_VAIN = ("manifest.publish.after-groups", "manifest.publish.before-exec")
"""After these there are nodes that nobody names, until garbage is collected."""


def test_there_is_a_journey_for_every_point_of_these_steps() -> None:
    steps = (PUBLISHING, CUTTING, DELETING, ENDING, COLLECTING, REBUILDING, ISSUING, REVOKING)
    elsewhere = {point for point in POINTS if point.startswith("ingest.")}  # test_kill_staged.py
    here = {point for points in (*steps, TAKING) for point in points} | {RESTORING}
    assert here == POINTS - elsewhere


@pytest.mark.parametrize("point", PUBLISHING)
def test_every_acknowledged_record_is_there_once_after_a_death_while_publishing(
    house: CrashHouse, point: str
) -> None:
    """M9, M10, M11."""
    stream = house.new_stream().fill(3)

    house.arm(point)
    stream.drive_until_dead()
    found = stream.fill(4).look()

    stream.check(found)
    assert found.first_offset == 0
    kinds = {key.rpartition(".")[2] for key in found.strangers}
    assert "fragment" not in kinds
    # Not vacuous: the root or the group of the attempt that died is really there. Where the
    # uploader dies, a publish of the fragment before may die with it.
    assert kinds or point not in PUT_IN_VAIN
    assert not kinds or point != "manifest.publish.after-exec"


@pytest.mark.parametrize("point", CUTTING)
def test_a_retention_that_died_is_finished_and_takes_nothing_else(
    house: CrashHouse, point: str
) -> None:
    stream = house.new_stream().fill(9)
    stream.look()
    etag = house.asked("GET", stream.path).headers["etag"]
    change = {"retention": {"max_bytes": 3 * (TARGET + 4_096)}}
    headers = {"if-match": etag, "content-type": "application/merge-patch+json"}
    patched = house.ask("PATCH", stream.path, change, headers)
    assert patched is not None
    assert patched.status_code == 200

    house.arm(point)
    house.ask("POST", f"{stream.path}/retention/evaluate")
    house.revive()

    until(lambda: house.bounds_of(stream)["first_offset"] == 6, what="the cut done")
    found = stream.look()
    stream.check(found)
    assert (found.first_offset, found.strangers) == (6, frozenset())


@pytest.mark.parametrize("point", DELETING)
def test_a_deleter_that_died_leaves_nothing_behind_and_takes_nothing_alive(
    house: CrashHouse, point: str
) -> None:
    stream = house.new_stream().fill(9)
    stream.look()
    house.arm(point)

    house.ask("POST", f"{stream.path}/trim", {"before_offset": 5})
    house.revive()

    until(lambda: house.bounds_of(stream)["first_offset"] == 5, what="the trim done")
    found = stream.fill(1).look()
    stream.check(found)
    assert (found.first_offset, found.strangers) == (5, frozenset())


@pytest.mark.parametrize("point", ENDING)
def test_a_deletion_that_died_is_finished_after_the_restart(house: CrashHouse, point: str) -> None:
    """M44."""
    stream = house.new_stream().fill(6)
    stream.look()
    house.arm(point)

    house.ask("DELETE", stream.path)
    house.revive()

    until(lambda: not house.has_record(stream.stream_id), what="the record forgotten")
    assert not house.objects_of(stream.stream_id)
    again = house.asked("PUT", stream.path)
    assert again.json()["stream_id"] != stream.stream_id


@pytest.mark.parametrize("point", COLLECTING)
def test_a_collection_that_died_is_finished_and_takes_only_garbage(
    house: CrashHouse, point: str
) -> None:
    stream = house.new_stream().fill(3)
    house.arm("manifest.publish.before-exec")
    stream.drive_until_dead()
    strangers = stream.look().strangers
    assert strangers
    asked = {"dry_run": False, "minimum_age": "1s", "stream": stream.name}
    # All of them: what is younger than that when the process dies is left to another collection.
    until(lambda: orphan_count(house, {**asked, "dry_run": True}) >= len(strangers))
    house.arm(point)

    until(lambda: house.ask("POST", "/v1/admin/gc", asked) is None, what="the end at the point")
    house.revive()

    until(lambda: not stream.look().strangers, what="what was put in vain is gone")
    stream.check(stream.look())


def orphan_count(house: CrashHouse, asked: dict[str, Any]) -> int:
    """What a collection finds."""
    operation = house.asked("POST", "/v1/admin/gc", asked).json()["operation_id"]

    def result() -> dict[str, Any] | None:
        shown: dict[str, Any] | None = house.asked("GET", f"/v1/operations/{operation}").json()[
            "result"
        ]
        return shown

    return int(until(result, what="the dry run")["orphan_count"])


@pytest.mark.parametrize("point", REBUILDING)
def test_a_rebuild_that_died_is_finished_and_loses_nothing(house: CrashHouse, point: str) -> None:
    stream = house.new_stream().fill(6)
    stream.look()
    house.arm(point)

    house.lose_coordination()
    house.ask("POST", "/v1/admin/rebuild")
    house.revive()

    found = stream.fill(1).look()
    stream.check(found)
    # Roots that were put in an attempt that died are left to garbage collection.
    assert not [key for key in found.strangers if key.endswith(".fragment")]


def rebuilt(house: CrashHouse) -> None:
    """Coordination is lost, and everything is served again."""
    house.lose_coordination()
    house.ask("POST", "/v1/admin/rebuild")
    until(lambda: serves(house), what="traffic again")


def serves(house: CrashHouse) -> bool:
    answer = house.ask("GET", "/v1/keys")
    return answer is not None and answer.is_success


@pytest.mark.parametrize("point", ISSUING)
def test_a_secret_that_was_never_shown_takes_nothing_from_the_one_before(
    house: CrashHouse, point: str
) -> None:
    key = house.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    rotate = f"/v1/keys/{key['key_id']}/rotate"

    house.arm(point)
    assert house.ask("POST", rotate, {"overlap_seconds": 0}) is None
    house.revive()
    assert house.lets_in(key["secret"])

    again = house.asked("POST", rotate, {"overlap_seconds": 0}).json()
    rebuilt(house)
    assert house.lets_in(again["secret"])
    assert not house.lets_in(key["secret"])


@pytest.mark.parametrize("point", REVOKING)
def test_a_revocation_that_died_is_finished_and_outlives_coordination(
    house: CrashHouse, point: str
) -> None:
    key = house.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    path = f"/v1/keys/{key['key_id']}"

    house.arm(point)
    assert house.ask("DELETE", path) is None
    house.revive()

    # Nobody asks for it again: whoever starts next finds it in the queue.
    assert not house.lets_in(key["secret"])
    until(lambda: not house.unsaved_keys(), what="the revocation in the bucket")
    rebuilt(house)
    assert house.asked("GET", path).json()["state"] == "revoked"
    assert not house.lets_in(key["secret"])


def test_a_rebuild_that_died_among_keys_brings_all_of_them_back(house: CrashHouse) -> None:
    kept = house.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    dead = house.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    house.asked("DELETE", f"/v1/keys/{dead['key_id']}")
    house.arm(RESTORING)

    house.lose_coordination()
    house.ask("POST", "/v1/admin/rebuild")
    house.revive()

    until(lambda: serves(house), what="traffic again")
    assert house.lets_in(kept["secret"])
    assert not house.lets_in(dead["secret"])


@pytest.mark.parametrize(
    ("point", "lost"), [(TAKING[0], False), (TAKING[0], True), (TAKING[1], False)]
)
def test_a_takeover_that_died_is_finished_and_gives_no_offset_away_twice(
    house: CrashHouse, point: str, lost: bool
) -> None:
    """Also where coordination is lost before it goes on: only the keys of roots rank them then."""
    stream = house.new_stream().fill(3)
    stream.look()
    house.server.kill()
    shutil.rmtree(house.server.ingest_dir)
    home = house.give_up_lease(stream.stream_id)
    house.server.start()
    reserved = house.record_of(stream.stream_id).reserved_next
    assert reserved > 3, "no gap is due, and the point is not between two steps"

    house.arm(point)
    asked = {"accept_loss": True, "expect_home": home}
    answer = house.ask("POST", takeover_of(stream), asked)
    assert answer is None or answer.status_code == 202, answer.text
    house.wait_dead()
    fenced = house.record_of(stream.stream_id)
    assert (fenced.home is None) == (point == "manifest.takeover.after-gap")
    if lost:
        house.lose_coordination()
    house.server.start()
    if lost:
        house.ask("POST", "/v1/admin/rebuild")

    first = until(lambda: appended(house, stream), what="the stream without its lost home")
    # Nothing that the lost disk held was acknowledged, where coordination does not say more.
    assert first == reserved if not lost else first >= 3
    page = house.asked("GET", f"{stream.path}/records?offset=0&limit=100").json()
    kept = [(record["offset"], record["value"]) for record in page["records"]]
    assert kept == [*enumerate(stream.values), (first, "after")]
    gaps = [(gap["first_offset"], gap["next_offset"]) for gap in page["gaps"]]
    assert [3, *(end for _, end in gaps)] == [*(begin for begin, _ in gaps), first]


def appended(house: CrashHouse, stream: Driven) -> int | None:
    """Where a record was put, if it was; the operator asks again for what a loss made undone."""
    answer = house.ask("POST", f"{stream.path}/records", {"records": [{"value": "after"}]})
    assert answer is not None
    if answer.status_code == 200:
        return int(answer.json()["first_offset"])
    assert (answer.status_code, answer.json()["outcome"]) == (503, "none"), answer.text
    takeover = takeover_of(stream)
    body = {"accept_loss": True, "expect_home": "f" * 32}
    told = house.ask("POST", takeover, body)
    if told is not None and told.status_code == 409 and told.json()["home"] is not None:
        house.ask("POST", takeover, {**body, "expect_home": told.json()["home"]})
    return None


def takeover_of(stream: Driven) -> str:
    return f"/v1/admin/streams/{stream.name}/takeover"
