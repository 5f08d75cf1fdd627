"""A process that dies between two steps of each thing that saves or deletes.

Valkey and an S3 server are real and outlive every death. A fault point is armed, load is
driven until the process ends there, it is started again, and then what is stored is held
against what was acknowledged: once past every service (support/stored_stream.py), once
through the API. The exit code proves that the process died where it should.
"""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from support.crash_deployment import TARGET, CrashDeployment, Driven, crash_deployment
from support.s3 import S3Server
from support.sharing import SharedUntilFailure, shared_until_failure
from support.waiting import until

from bottomless.model.names import StreamId
from bottomless_server.runtime.base.fault_points import POINTS


@pytest.fixture(scope="module")
def standing(
    seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SharedUntilFailure[CrashDeployment]]:
    """One deployment for all tests here, until one fails: the next begins with another."""

    def begin() -> AbstractContextManager[CrashDeployment]:
        return crash_deployment(tmp_path_factory.mktemp("crashes"), seaweed)

    with shared_until_failure(begin, request.session.testsfailed) as shared:
        yield shared


@pytest.fixture
def deployment(
    standing: SharedUntilFailure[CrashDeployment], request: pytest.FixtureRequest
) -> CrashDeployment:
    """Alive, also where the test before this one was not."""
    shared = standing.get(request.session.testsfailed)
    if shared.server.is_dead:
        shared.server.wait_dead()
    shared.server.start()
    return shared


PUBLISHING = (
    "uploader.put.after-object",
    "manifest.publish.after-groups",
    "manifest.publish.before-exec",
    "manifest.publish.after-exec",
)
HELD_BY_AN_UPLOADER = ("uploader.put.after-intent", "uploader.put.after-register")
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
MAKING = (
    "manifest.super.after-exec",
    "manifest.super.before-object",
    "manifest.super.after-object",
)
UNMAKING = (
    "manifest.super-deletion.after-exec",
    "manifest.super-deletion.after-object",
    "manifest.super-deletion.after-partition",
    "manifest.super-deletion.before-forget",
)
GROWING = (
    "manifest.super-growth.after-exec",
    "manifest.super-growth.after-owners",
    "manifest.super-growth.after-second-exec",
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
    # test_kill_staged.py, test_leaderless_kills.py, test_leaderless_compaction.py, test_kill_homes.py,
    # test_tiers.py, test_drive_kills.py
    others = (
        "ingest.",
        "manifest.vacuum.",
        "manifest.prune.",
        "manifest.queue-",
        "manifest.tiers.",
        "manifest.drives.",
        "manifest.deleter.after-claim",
        "uploader.move.",
        "queues.",
        *HELD_BY_AN_UPLOADER,
    )
    elsewhere = {point for point in POINTS if point.startswith(others)}
    here = {point for points in (*steps, MAKING, GROWING, UNMAKING, TAKING) for point in points} | {
        RESTORING
    }
    assert here == POINTS - elsewhere


@pytest.mark.parametrize("point", PUBLISHING)
def test_every_acknowledged_record_is_there_once_after_a_death_while_publishing(
    deployment: CrashDeployment, point: str
) -> None:
    """M9, M10, M11."""
    stream = deployment.new_stream().fill(3)

    deployment.server.arm(point)
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


@pytest.mark.parametrize("point", MAKING)
def test_a_super_stream_whose_creation_died_is_whole_before_anybody_finds_it(
    deployment: CrashDeployment, point: str
) -> None:
    path = f"/v1/super-streams/{point.replace('.', '-')}"
    deployment.server.arm(point)
    assert deployment.ask("PUT", path, {"partitions": 3}) is None
    deployment.server.revive()

    partition = path.replace("super-streams", "streams") + "-1"
    found = deployment.asked("GET", partition).json()
    made = deployment.asked("GET", path).json()
    assert made["partitions"][1]["stream_id"] == found["stream_id"]
    again = deployment.ask("PUT", path, {"partitions": 3})
    assert again is not None
    assert (again.status_code, again.json()) == (200, made)
    keys = deployment.objects_of(StreamId(made["super_id"]))
    assert keys == [f"default/{made['super_id']}/super.0000000001.json"]


@pytest.mark.parametrize("point", CUTTING)
def test_a_retention_that_died_is_finished_and_takes_nothing_else(
    deployment: CrashDeployment, point: str
) -> None:
    stream = deployment.new_stream().fill(9)
    stream.look()
    etag = deployment.asked("GET", stream.path).headers["etag"]
    change = {"retention": {"max_bytes": 3 * (TARGET + 4_096)}}
    headers = {"if-match": etag, "content-type": "application/merge-patch+json"}
    patched = deployment.ask("PATCH", stream.path, change, headers)
    assert patched is not None
    assert patched.status_code == 200

    deployment.server.arm(point)
    deployment.ask("POST", f"{stream.path}/retention/evaluate")
    deployment.server.revive()

    until(lambda: deployment.bounds_of(stream)["first_offset"] == 6, what="the cut done")
    found = stream.look()
    stream.check(found)
    assert (found.first_offset, found.strangers) == (6, frozenset())


@pytest.mark.parametrize("point", DELETING)
def test_a_deleter_that_died_leaves_nothing_behind_and_takes_nothing_alive(
    deployment: CrashDeployment, point: str
) -> None:
    stream = deployment.new_stream().fill(9)
    stream.look()
    deployment.server.arm(point)

    deployment.ask("POST", f"{stream.path}/trim", {"before_offset": 5})
    deployment.server.revive()

    until(lambda: deployment.bounds_of(stream)["first_offset"] == 5, what="the trim done")
    found = stream.fill(1).look()
    stream.check(found)
    assert (found.first_offset, found.strangers) == (5, frozenset())


@pytest.mark.parametrize("point", ENDING)
def test_a_deletion_that_died_is_finished_after_the_restart(
    deployment: CrashDeployment, point: str
) -> None:
    """M44."""
    stream = deployment.new_stream().fill(6)
    stream.look()
    deployment.server.arm(point)

    deployment.ask("DELETE", stream.path)
    deployment.server.revive()

    until(lambda: not deployment.has_record(stream.stream_id), what="the record forgotten")
    assert not deployment.objects_of(stream.stream_id)
    again = deployment.asked("PUT", stream.path)
    assert again.json()["stream_id"] != stream.stream_id


@pytest.mark.parametrize("point", GROWING)
def test_a_growth_that_died_is_finished_after_the_restart(
    deployment: CrashDeployment, point: str
) -> None:
    path = f"/v1/super-streams/{point.replace('.', '-')}"
    assert deployment.ask("PUT", path, {"partitions": 2}) is not None
    deployment.server.arm(point)

    more = {"partitions": 3, "accept_rehash": True}
    assert deployment.ask("PATCH", path, more, {"if-match": "*"}) is None
    deployment.server.revive()

    until(
        lambda: deployment.asked("GET", path).json()["state"] == "active",
        what="the growth done",
    )
    grown = deployment.asked("GET", path).json()
    assert [one["partitions"] for one in grown["layouts"]] == [2, 3]
    partition = path.replace("super-streams", "streams") + "-2"
    stream_id = deployment.asked("GET", partition).json()["stream_id"]
    assert stream_id == grown["partitions"][2]["stream_id"]


@pytest.mark.parametrize("point", UNMAKING)
def test_a_deletion_of_a_super_stream_that_died_is_finished_after_the_restart(
    deployment: CrashDeployment, point: str
) -> None:
    path = f"/v1/super-streams/{point.replace('.', '-')}"
    made = deployment.ask("PUT", path, {"partitions": 2})
    assert made is not None
    stream_ids = [StreamId(one["stream_id"]) for one in made.json()["partitions"]]
    deployment.server.arm(point)

    deployment.ask("DELETE", path)
    deployment.server.revive()

    super_id = StreamId(made.json()["super_id"])
    until(
        lambda: (
            not deployment.objects_of(super_id)
            and not any(deployment.has_record(one) for one in stream_ids)
        ),
        what="all of it gone",
    )
    again = deployment.ask("PUT", path, {"partitions": 2})
    assert again is not None
    assert again.status_code == 201
    assert again.json()["super_id"] != super_id


@pytest.mark.parametrize("point", COLLECTING)
def test_a_collection_that_died_is_finished_and_takes_only_garbage(
    deployment: CrashDeployment, point: str
) -> None:
    stream = deployment.new_stream().fill(3)
    deployment.server.arm("manifest.publish.before-exec")
    stream.drive_until_dead()
    strangers = stream.look().strangers
    assert strangers
    asked = {"dry_run": False, "minimum_age": "1s", "stream": stream.name}
    # All of them: what is younger than that when the process dies is left to another collection.
    until(lambda: orphan_count(deployment, {**asked, "dry_run": True}) >= len(strangers))
    deployment.server.arm(point)

    until(
        lambda: deployment.ask("POST", "/v1/admin/gc", asked) is None, what="the end at the point"
    )
    deployment.server.revive()

    until(lambda: not stream.look().strangers, what="what was put in vain is gone")
    stream.check(stream.look())


def orphan_count(deployment: CrashDeployment, asked: dict[str, Any]) -> int:
    """What a collection finds."""
    operation = deployment.asked("POST", "/v1/admin/gc", asked).json()["operation_id"]

    def result() -> dict[str, Any] | None:
        shown: dict[str, Any] | None = deployment.asked(
            "GET", f"/v1/operations/{operation}"
        ).json()["result"]
        return shown

    return int(until(result, what="the dry run")["orphan_count"])


@pytest.mark.parametrize("point", REBUILDING)
def test_a_rebuild_that_died_is_finished_and_loses_nothing(
    deployment: CrashDeployment, point: str
) -> None:
    stream = deployment.new_stream().fill(6)
    stream.look()
    deployment.server.arm(point)

    deployment.lose_coordination()
    deployment.ask("POST", "/v1/admin/rebuild")
    deployment.server.revive()

    found = stream.fill(1).look()
    stream.check(found)
    # Roots that were put in an attempt that died are left to garbage collection.
    assert not [key for key in found.strangers if key.endswith(".fragment")]


def rebuilt(deployment: CrashDeployment) -> None:
    """Coordination is lost, and everything is served again."""
    deployment.lose_coordination()
    deployment.ask("POST", "/v1/admin/rebuild")
    until(lambda: serves(deployment), what="traffic again")


def serves(deployment: CrashDeployment) -> bool:
    answer = deployment.ask("GET", "/v1/keys")
    return answer is not None and answer.is_success


@pytest.mark.parametrize("point", ISSUING)
def test_a_secret_that_was_never_shown_takes_nothing_from_the_one_before(
    deployment: CrashDeployment, point: str
) -> None:
    key = deployment.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    rotate = f"/v1/keys/{key['key_id']}/rotate"

    deployment.server.arm(point)
    assert deployment.ask("POST", rotate, {"overlap_seconds": 0}) is None
    deployment.server.revive()
    assert deployment.lets_in(key["secret"])

    again = deployment.asked("POST", rotate, {"overlap_seconds": 0}).json()
    rebuilt(deployment)
    assert deployment.lets_in(again["secret"])
    assert not deployment.lets_in(key["secret"])


@pytest.mark.parametrize("point", REVOKING)
def test_a_revocation_that_died_is_finished_and_outlives_coordination(
    deployment: CrashDeployment, point: str
) -> None:
    key = deployment.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    path = f"/v1/keys/{key['key_id']}"

    deployment.server.arm(point)
    assert deployment.ask("DELETE", path) is None
    deployment.server.revive()

    # Nobody asks for it again: whoever starts next finds it in the queue.
    assert not deployment.lets_in(key["secret"])
    until(lambda: not deployment.unsaved_keys(), what="the revocation in the bucket")
    rebuilt(deployment)
    assert deployment.asked("GET", path).json()["state"] == "revoked"
    assert not deployment.lets_in(key["secret"])


def test_a_rebuild_that_died_among_keys_brings_all_of_them_back(
    deployment: CrashDeployment,
) -> None:
    kept = deployment.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    dead = deployment.asked("POST", "/v1/keys", {"scopes": ["read"]}).json()
    deployment.asked("DELETE", f"/v1/keys/{dead['key_id']}")
    deployment.server.arm(RESTORING)

    deployment.lose_coordination()
    deployment.ask("POST", "/v1/admin/rebuild")
    deployment.server.revive()

    until(lambda: serves(deployment), what="traffic again")
    assert deployment.lets_in(kept["secret"])
    assert not deployment.lets_in(dead["secret"])


@pytest.mark.parametrize(
    ("point", "lost"), [(TAKING[0], False), (TAKING[0], True), (TAKING[1], False)]
)
def test_a_takeover_that_died_is_finished_and_gives_no_offset_away_twice(
    deployment: CrashDeployment, point: str, lost: bool
) -> None:
    """Also where coordination is lost before it goes on: only the keys of roots rank them then."""
    stream = deployment.new_stream().fill(3)
    stream.look()
    deployment.server.kill()
    shutil.rmtree(deployment.server.ingest_dir)
    home = deployment.give_up_lease(stream.stream_id)
    deployment.server.start()
    reserved = deployment.record_of(stream.stream_id).reserved_next
    assert reserved > 3, "no gap is due, and the point is not between two steps"

    deployment.server.arm(point)
    asked = {"accept_loss": True, "expect_home": home}
    answer = deployment.ask("POST", takeover_of(stream), asked)
    assert answer is None or answer.status_code == 202, answer.text
    deployment.server.wait_dead_at_fault_point()
    fenced = deployment.record_of(stream.stream_id)
    assert (fenced.home is None) == (point == "manifest.takeover.after-gap")
    if lost:
        deployment.lose_coordination()
    deployment.server.start()
    if lost:
        deployment.ask("POST", "/v1/admin/rebuild")

    first = until(lambda: appended(deployment, stream), what="the stream without its lost home")
    # Nothing that the lost disk held was acknowledged, where coordination does not say more.
    assert first == reserved if not lost else first >= 3
    page = deployment.asked("GET", f"{stream.path}/records?offset=0&limit=100").json()
    kept = [(record["offset"], record["value"]) for record in page["records"]]
    assert kept == [*enumerate(stream.values), (first, "after")]
    gaps = [(gap["first_offset"], gap["next_offset"]) for gap in page["gaps"]]
    assert [3, *(end for _, end in gaps)] == [*(begin for begin, _ in gaps), first]


def appended(deployment: CrashDeployment, stream: Driven) -> int | None:
    """Where a record was put, if it was; the operator asks again for what a loss made undone."""
    answer = deployment.ask("POST", f"{stream.path}/records", {"records": [{"value": "after"}]})
    assert answer is not None
    if answer.status_code == 200:
        return int(answer.json()["first_offset"])
    assert (answer.status_code, answer.json()["outcome"]) == (503, "none"), answer.text
    takeover = takeover_of(stream)
    body = {"accept_loss": True, "expect_home": "f" * 32}
    told = deployment.ask("POST", takeover, body)
    if told is not None and told.status_code == 409 and told.json()["home"] is not None:
        deployment.ask("POST", takeover, {**body, "expect_home": told.json()["home"]})
    return None


def takeover_of(stream: Driven) -> str:
    return f"/v1/admin/streams/{stream.name}/takeover"
