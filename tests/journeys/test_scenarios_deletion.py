"""Streams deleted over HTTP: scenarios S11, S12, M43, M44, T16, and kill -9 at every step.

The graces are short here by settings, so that a deletion ends within a test; each test that
kills says in which step it did.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.s3 import BUCKET, CREDENTIALS, s3_client
from support.seaweed import running_seaweed
from support.server import AllInOne
from support.valkey import another_client, running_valkey
from support.waiting import until

FAST: Final = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "300",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "900",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_OPERATION_LEASE_MS": "300",
    "BOTTOMLESS_MANIFEST_CONSUMER_SNAPSHOT_MS": "200",
}
NEVER: Final = "86400000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("deletion") / "data", FAST) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: AllInOne) -> Iterator[httpx.Client]:
    with server.client() as connected:
        yield connected


def objects_of(server: AllInOne, stream_id: str) -> list[str]:
    """What lies in the store under a stream, as somebody else sees it.

    Directories go while it looks: `os.walk` passes over them, where `Path.rglob` raises.
    """
    home = server.objects / "default" / stream_id
    return sorted(name for _, _, names in os.walk(home) for name in names)


def delete(stream: Stream, **headers: str) -> dict[str, Any]:
    answer = stream.client.delete(stream.path, headers=headers)
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/operations/{body['operation_id']}"
    assert body["state"] == "deleting"
    return body


def operation(client: httpx.Client, deleted: Mapping[str, Any]) -> dict[str, Any]:
    answer = client.get(f"/v1/operations/{deleted['operation_id']}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def ended(client: httpx.Client, deleted: Mapping[str, Any]) -> dict[str, Any]:
    """The operation, once it has succeeded."""

    def finished() -> dict[str, Any] | None:
        found = operation(client, deleted)
        assert found["state"] != "failed", found
        return found if found["state"] == "succeeded" else None

    return until(finished, what="the end of the deletion")


def filled(client: httpx.Client, fragments: int = 6) -> Stream:
    """A stream with fragments and groups of them in the store, and a consumer."""
    stream = new_stream(client, QUICK)
    stream_id = client.get(stream.path).json()["stream_id"]
    for _ in range(fragments):
        stream.append(*("x" * 700 for _ in range(100)))
        stream.wait_uploaded()
    client.put(f"{stream.path}/consumers/c/offset", json={"offset": 3}).raise_for_status()
    assert client.get(stream.path).json()["stream_id"] == stream_id
    return stream


def id_of(stream: Stream) -> str:
    return str(stream.client.get(stream.path).json()["stream_id"])


def test_a_deleted_stream_is_gone_at_once_and_its_name_is_free(
    server: AllInOne, client: httpx.Client
) -> None:
    """S11, M43."""
    stream = filled(client)
    stream_id = id_of(stream)
    assert len(objects_of(server, stream_id)) > 8
    deleted = delete(stream)
    assert deleted["stream_id"] == stream_id

    problem_of(client.get(stream.path), 404, "stream-not-found")
    problem_of(stream.post({"value": "late"}), 404, "stream-not-found")
    for suffix in (
        "records?offset=first",
        "records/0",
        "offsets",
        "fragments",
        "consumers/c/offset",
    ):
        problem_of(client.get(f"{stream.path}/{suffix}"), 404, "stream-not-found")
    assert client.get("/v1/streams", params={"prefix": stream.name}).json()["items"] == []
    again = client.put(stream.path, json=QUICK)
    assert again.status_code == 201
    assert again.json()["stream_id"] != stream_id
    assert again.json()["offsets"]["next"] == 0
    assert stream.append("new")["first_offset"] == 0
    problem_of(client.get(f"{stream.path}/consumers/c/offset"), 404, "offset-not-found")

    found = ended(client, deleted)
    assert objects_of(server, stream_id) == []
    assert found["result"]["deleted_objects"] > 8
    assert (found["kind"], found["stream_id"]) == ("delete-stream", stream_id)
    assert [record["value"] for record in stream.page()["records"]] == ["new"]


def test_a_second_deletion_finds_nothing(client: httpx.Client) -> None:
    """S12."""
    stream = new_stream(client)
    delete(stream)
    problem_of(client.delete(stream.path), 404, "stream-not-found")
    problem_of(client.delete("/v1/streams/never-created"), 404, "stream-not-found")


def test_a_deletion_may_depend_on_the_configuration(client: httpx.Client) -> None:
    stream = new_stream(client)
    etag = client.get(stream.path).headers["etag"]
    client.patch(stream.path, json={"labels": {"a": "b"}}, headers={"if-match": etag})
    answer = client.delete(stream.path, headers={"if-match": etag})
    problem = problem_of(answer, 412, "etag-mismatch")
    assert client.get(stream.path).headers["etag"] == problem["current_etag"]
    delete(stream, **{"if-match": problem["current_etag"]})


def test_what_is_being_deleted_is_listed_as_that_until_it_is_swept(client: httpx.Client) -> None:
    stream = new_stream(client)
    deleted = delete(stream)
    query = {"prefix": stream.name, "state": "deleting"}
    [item] = client.get("/v1/streams", params=query).json()["items"]
    assert (item["stream_id"], item["state"]) == (deleted["stream_id"], "deleting")
    ended(client, deleted)
    assert client.get("/v1/streams", params=query).json()["items"] == []


def test_a_name_that_is_deleted_and_created_again_and_again_is_always_the_newest(
    server: AllInOne, client: httpx.Client
) -> None:
    """M43: none of the old records is visible in a new stream, and none of their objects stays."""
    stream = new_stream(client, QUICK)
    deletions = []
    for turn in range(5):
        if turn:
            assert client.put(stream.path, json=QUICK).status_code == 201
        assert stream.append(f"turn {turn}")["first_offset"] == 0
        assert [record["value"] for record in stream.page()["records"]] == [f"turn {turn}"]
        deletions.append(delete(stream))
    assert len({deleted["stream_id"] for deleted in deletions}) == 5
    for deleted in deletions:
        ended(client, deleted)
        assert objects_of(server, deleted["stream_id"]) == []


def test_a_stream_deleted_in_the_middle_of_appends_and_uploads_is_swept_whole(
    server: AllInOne, client: httpx.Client
) -> None:
    """M43: appends end with 404, none is acknowledged after the 202, no object is left."""
    stream = new_stream(client, QUICK)
    stop = threading.Event()
    statuses: set[int] = set()
    acknowledged_after: list[int] = []

    def produce() -> None:
        with server.client() as own:
            mine = Stream(own, stream.name)
            while not stop.is_set():
                late = gone.is_set()
                answer = mine.post(*({"value": "x" * 700} for _ in range(50)))
                statuses.add(answer.status_code)
                if answer.status_code == 200 and late:
                    acknowledged_after.append(answer.json()["first_offset"])

    gone = threading.Event()
    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: stream.bounds()["object_store_next_offset"] > 500, what="uploads under way")
    stream_id = id_of(stream)
    deleted = delete(stream)
    gone.set()
    until(lambda: 404 in statuses, what="an append that hears of it")
    stop.set()
    for thread in threads:
        thread.join()
    assert acknowledged_after == []
    assert statuses <= {200, 404, 503}
    ended(client, deleted)
    assert objects_of(server, stream_id) == []


def test_all_of_many_fragments_are_gone_after_the_grace(tmp_path: Path) -> None:
    """T16, with a few dozen fragments in groups of groups; nothing of another stream is."""
    # A step that outlives its lease on a slow machine is done again, and what it counted is lost.
    lease = {"BOTTOMLESS_MANIFEST_OPERATION_LEASE_MS": "60000"}
    settings = {**FAST, **lease, "BOTTOMLESS_MANIFEST_FANOUT": "2"}
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        other, stream = filled(client, 2), new_stream(client, QUICK)
        for _ in range(40):
            stream.append(*("x" * 700 for _ in range(100)))
        stream.wait_uploaded()
        kept, stream_id = objects_of(server, id_of(other)), id_of(stream)
        fragments = [name for name in objects_of(server, stream_id) if name.endswith("fragment")]
        assert len(fragments) >= 20
        found = ended(client, delete(stream))
        assert objects_of(server, stream_id) == []
        assert found["result"]["deleted_objects"] >= len(fragments)
        assert set(kept) <= set(objects_of(server, id_of(other)))
        assert len(other.page(limit=1000)["records"]) == 200


def test_objects_stay_for_running_readers_until_the_grace_is_over(tmp_path: Path) -> None:
    settings = {**FAST, "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": NEVER}
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        stream = filled(client, 2)
        stream_id = id_of(stream)
        before = {name for name in objects_of(server, stream_id) if name.endswith("fragment")}
        deleted = delete(stream)
        until(
            lambda: operation(client, deleted)["progress"].get("phase") == "waiting",
            what="the wait for readers",
        )
        assert before <= set(objects_of(server, stream_id))
        assert before


class Deleted:
    """A stream on a server that is killed while it is being deleted."""

    def __init__(self, data: Path, settings: Mapping[str, str]) -> None:
        self.server = AllInOne(data, {**FAST, **settings})
        self.server.start()
        with self.server.client() as client:
            self.stream = filled(client)
            self.stream_id = id_of(self.stream)
            self.name = self.stream.name
            assert len(objects_of(self.server, self.stream_id)) > 8
            self.answer = delete(self.stream)

    def finish(self, settings: Mapping[str, str] = FAST) -> None:
        """Start again, with graces that end, and see the deletion through."""
        self.server = AllInOne(self.server.data_dir, settings)
        with self.server, self.server.client() as client:
            problem_of(client.get(f"/v1/streams/{self.name}"), 404, "stream-not-found")
            ended(client, self.answer)
            assert objects_of(self.server, self.stream_id) == []
            assert client.get("/v1/streams?state=deleting").json()["items"] == []
            answer = client.put(f"/v1/streams/{self.name}")
            assert answer.status_code == 201
            assert answer.json()["stream_id"] != self.stream_id


def requeue(deleted: Deleted, **changes: Any) -> None:
    """Make the operation due now, and change what is written down of it; nobody runs meanwhile."""
    operation_id = deleted.answer["operation_id"]
    with (
        running_valkey(deleted.server.data_dir / "valkey") as valkey,
        another_client(valkey.url) as redis,
    ):
        key = f"bottomless:operation:{operation_id}"
        value = redis.get(key)
        assert isinstance(value, bytes)
        redis.set(key, json.dumps({**json.loads(value), **changes}))
        redis.zadd("bottomless:operations", {operation_id: 0}, xx=True)


@pytest.mark.parametrize(
    ("settings", "phase"),
    [
        ({"BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": NEVER}, "waiting"),
        ({"BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": NEVER}, "waiting again"),
    ],
)
def test_a_deletion_goes_on_after_kill_9_in_each_of_its_waits(
    tmp_path: Path, settings: dict[str, str], phase: str
) -> None:
    """M44. When it is looked at next stands in the queue, so that is brought forward by hand."""
    deleted = Deleted(tmp_path / "data", settings)
    with deleted.server.client() as client:
        until(
            lambda: operation(client, deleted.answer)["progress"].get("phase") == phase,
            what=phase,
        )
    deleted.server.kill()
    requeue(deleted)
    deleted.finish()


@pytest.mark.parametrize("left", [1])
def test_a_deletion_goes_on_after_kill_9_in_the_middle_of_a_page(tmp_path: Path, left: int) -> None:
    """M44: of the objects of a page some are deleted, and nobody has written down which."""
    deleted = Deleted(tmp_path / "data", {"BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": NEVER})
    deleted.server.kill()
    home = deleted.server.objects / "default" / deleted.stream_id
    doomed = sorted(
        path for path in home.rglob("*") if path.is_file() and "stream." not in path.name
    )
    for path in doomed[left:]:
        path.unlink()
    requeue(deleted)
    deleted.finish()


def test_a_deletion_goes_on_after_kill_9_before_its_tombstone_is_in_the_bucket(
    tmp_path: Path,
) -> None:
    """M44: between the EXEC and the registry object."""
    deleted = Deleted(tmp_path / "data", {"BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": NEVER})
    deleted.server.kill()
    home = deleted.server.objects / "default" / deleted.stream_id
    tombstone = max(home.glob("stream.*.json"))
    assert b'"state":"deleting"' in tombstone.read_bytes()
    tombstone.unlink()
    requeue(deleted, state="pending", progress={})
    settings = {**FAST, "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": NEVER}
    with AllInOne(deleted.server.data_dir, settings) as server, server.client() as client:
        until(tombstone.exists, what="the tombstone")
        problem_of(client.get(f"/v1/streams/{deleted.name}"), 404, "stream-not-found")
    requeue(deleted)
    deleted.finish()


def test_a_deletion_goes_on_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    """M44: killed again and again, from before the 202 on, until it has ended."""
    server = AllInOne(tmp_path / "data", FAST)
    with server, server.client() as client:
        stream = filled(client)
        stream_id, name = id_of(stream), stream.name
        answered = threading.Event()

        def ask() -> None:
            try:
                with server.client() as own:
                    own.delete(f"/v1/streams/{name}")
            except httpx.TransportError:
                pass
            answered.set()

        thread = threading.Thread(target=ask)
        thread.start()
        answered.wait(0.004)
        server.kill()
        thread.join()
    for pause in (0.0, 0.2, 0.5):
        with server:
            threading.Event().wait(pause)
            server.kill()
    with server, server.client() as client:
        # It may have died before the tombstone; then it is there whole, and is deleted now.
        if client.get(f"/v1/streams/{name}").status_code == 200:
            assert len(Stream(client, name).page(limit=1000)["records"]) == 600
            client.delete(f"/v1/streams/{name}").raise_for_status()
        until(lambda: not objects_of(server, stream_id), what="nothing left of the stream")
        until(
            lambda: not client.get("/v1/streams?state=deleting").json()["items"],
            what="nothing said of the stream",
        )


def test_a_stream_on_s3_is_swept_to_the_last_object(tmp_path: Path) -> None:
    """T16, M44: pages of a real listing, with a kill in the middle."""
    with running_seaweed(tmp_path / "s3") as s3, s3_client(s3) as others:
        settings = {**FAST, **CREDENTIALS, "BOTTOMLESS_STORE_URL": s3.store_url("swept")}
        with AllInOne(tmp_path / "data", settings) as server:
            with server.client() as client:
                kept, stream = filled(client, 2), filled(client, 8)
                kept_id, stream_id = id_of(kept), id_of(stream)
                answer = delete(stream)
            server.kill()
            server.start()
            with server.client() as client:
                ended(client, answer)

        def keys(of: str) -> list[str]:
            found = others.list_objects_v2(Bucket=BUCKET, Prefix=f"swept/default/{of}/")
            return [item["Key"] for item in found.get("Contents", [])]

        assert keys(stream_id) == []
        assert len(keys(kept_id)) > 2
