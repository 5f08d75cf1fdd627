"""Garbage collection and verification over HTTP, against the real program: M45, H21, T15, T16.

Orphans are planted behind the program's back, as old files; what is deleted is seen in the store.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.s3 import BUCKET, CREDENTIALS, s3_client
from support.seaweed import running_seaweed
from support.server import AllInOne
from support.waiting import until

SETTINGS: Final = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "300",
    "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "500",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "900",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_CONSUMER_SNAPSHOT_MS": "200",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
EACH: Final = 10
STRAY: Final = "f" * 32
BEGUN_ANEW: Final = "somebody else changed the record"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("repair") / "data", SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: AllInOne) -> Iterator[httpx.Client]:
    with server.client() as connected:
        yield connected


def filled(client: httpx.Client, fragments: int) -> Stream:
    """A stream of as many fragments of ten records, all in object storage."""
    stream = new_stream(client, QUICK)
    for _ in range(fragments):
        first = stream.next_offset()
        stream.append(*(f"value {first + n}" for n in range(EACH)))
        stream.wait_uploaded()
    return stream


def id_of(stream: Stream) -> str:
    return str(stream.client.get(stream.path).json()["stream_id"])


def done(client: httpx.Client, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for an operation and wait for its result."""
    answer = client.post(path, json=body or {})
    assert answer.status_code == 202, answer.text

    def result() -> dict[str, Any] | None:
        found = client.get(answer.headers["location"]).json()
        assert found["state"] != "failed", found
        shown: dict[str, Any] | None = found["result"]
        return shown

    return until(result, what=f"the end of {path}")


def collect(client: httpx.Client, *, dry_run: bool = False, **more: Any) -> dict[str, Any]:
    return done(client, "/v1/admin/gc", {"dry_run": dry_run, "minimum_age": "1s", **more})


def home_of(server: AllInOne, stream: Stream) -> Path:
    return server.objects / "default" / id_of(stream)


def plant(home: Path, name: str) -> Path:
    """An object that a crash left some time ago."""
    made, path = home.parents[2] / "planted", home / name
    made.write_bytes(b"left by a crash")
    os.utime(made, (time.time() - 3_600,) * 2)
    while True:
        # One of this name may be on the way out, and its directory after it.
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            made.replace(path)
            return path


def plants(home: Path) -> list[Path]:
    return [
        plant(home, f"data/{15:020d}.{STRAY}.fragment"),
        plant(home, f"metadata/{0:020d}.{STRAY}.g1"),
        plant(home, f"metadata/root.{0:010d}.{1:020d}.{1:020d}.{STRAY}.manifest"),
    ]


def values(stream: Stream, first: int) -> list[str]:
    found: list[str] = []
    while records := stream.page(first, limit=1000)["records"]:
        found += [record["value"] for record in records]
        first = records[-1]["offset"] + 1
    return found


def test_planted_orphans_go_and_a_stream_cut_in_part_stays(
    server: AllInOne, client: httpx.Client
) -> None:
    """M45: the leading group is cut in part."""
    stream = filled(client, 14)
    home = home_of(server, stream)
    done(client, f"{stream.path}/trim", {"before_offset": 25})
    planted = plants(home)
    unknown = plant(home, "producers/something.else")

    # What lies below the floor waits until the delete queue is through with its range.
    until(
        lambda: collect(client, dry_run=True, stream=stream.name)["orphan_count"] >= 3,
        what="all orphans in a report",
    )
    assert all(path.exists() for path in planted)
    report = collect(client, stream=stream.name)
    assert {f"default/{home.name}/{path.relative_to(home)}" for path in planted} <= {
        *report["examples"]
    }
    until(lambda: not any(path.exists() for path in planted), what="the end of the orphans")

    assert unknown.exists()
    assert report["unknown"]["objects"] == 1
    assert values(stream, 20) == [f"value {n}" for n in range(20, 140)]
    verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
    assert (verified["sound"], verified["fragments"]) == (True, 12)
    assert collect(client, dry_run=True, stream=stream.name)["orphan_count"] == 0


def test_collections_race_with_publishes_and_retention_and_nothing_live_goes(
    server: AllInOne, client: httpx.Client
) -> None:
    """M45: each collection finds something, so that each makes publishes begin anew."""
    stream = filled(client, 4)
    home = home_of(server, stream)
    stopped = threading.Event()
    appended: list[int] = []

    def write() -> None:
        with server.client() as own:
            mine = Stream(own, stream.name)
            while not stopped.is_set():
                first = 40 + len(appended)
                appended.extend(range(first, first + EACH))
                mine.append(*(f"value {first + n}" for n in range(EACH)))

    writer = threading.Thread(target=write)
    writer.start()
    log = server.data_dir.with_suffix(".log")
    queued = rounds = 0
    try:
        # Which of two comes first is chance: until both have happened.
        while rounds < 12 or (rounds < 200 and BEGUN_ANEW not in log.read_text()):
            plants(home)
            queued += collect(client, stream=stream.name)["queued"]
            done(client, f"{stream.path}/trim", {"before_offset": min(3 * rounds, 36)})
            rounds += 1
    finally:
        stopped.set()
        writer.join()
    stream.wait_uploaded()

    assert queued >= 12
    assert len(appended) > 100
    assert values(stream, 0)[-len(appended) :] == [f"value {n}" for n in appended]
    until(
        lambda: collect(client, stream=stream.name) and not list(home.rglob(f"*{STRAY}*")),
        what="the end of the orphans",
    )
    verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
    assert verified["sound"], verified
    assert "a live object was to be deleted" not in log.read_text()
    assert BEGUN_ANEW in log.read_text(), "no publish had to begin anew"


def test_a_damaged_byte_is_an_error_where_it_lies_and_verify_names_it(tmp_path: Path) -> None:
    """H21."""
    # The local log is freed segment by segment, so that reads come to the object store.
    settings = {**SETTINGS, "BOTTOMLESS_INGEST_SEGMENT_AGE_MS_MAX": "100"}
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        stream = filled(client, 6)
        listed = client.get(f"{stream.path}/fragments").json()["fragments"]
        hit = next(one for one in listed if one["first_offset"] == 30)
        path = home_of(server, stream) / "data" / (hit["id"].replace("-", ".") + ".fragment")
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        until(lambda: stream.get(30).status_code == 502, what="a read of the object store")

        problem = problem_of(stream.get(30), 502, "data-corrupt")
        assert problem["fragment_id"] == hit["id"]
        assert not problem["retryable"]
        for first in (0, 20, 40, 50):
            records = stream.page(first, limit=EACH)["records"]
            assert [one["value"] for one in records] == [f"value {first + n}" for n in range(EACH)]
        assert done(client, f"{stream.path}/manifest/verify")["sound"]
        found = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
    assert not found["sound"]
    assert found["faults"] == [
        {
            "kind": "fragment-checksum",
            "first_offset": 30,
            "last_offset": 39,
            "id": hit["id"],
            "drive": "default",
            "copy": None,
        }
    ]


def test_the_manifest_has_an_etag_that_changes_with_it(client: httpx.Client) -> None:
    """T15."""
    stream = filled(client, 9)
    path = f"{stream.path}/manifest"
    first = client.get(path)
    assert first.status_code == 200, first.text
    etag = {"if-none-match": first.headers["etag"]}
    assert client.get(path, headers=etag).status_code == 304
    assert {one["kind"] for one in first.json()["entries"]} == {"group", "fragment"}
    opened = client.get(path, params={"depth": 8}).json()["entries"]
    assert sum(len(one.get("entries", [one])) for one in opened) == 9

    stream.append("one more")
    stream.wait_uploaded()
    changed = client.get(path, headers=etag)
    assert changed.status_code == 200
    assert changed.json()["version"] > first.json()["version"]


def test_nothing_of_a_deleted_stream_is_an_orphan(tmp_path: Path) -> None:
    """T16: after the sweep a dry run over the whole bucket finds nothing."""
    with AllInOne(tmp_path / "data", SETTINGS) as server, server.client() as client:
        kept, stream = filled(client, 3), filled(client, 12)
        home = home_of(server, stream)
        client.put(f"{stream.path}/consumers/c/offset", json={"offset": 3}).raise_for_status()
        planted = plants(home)
        client.delete(stream.path).raise_for_status()
        until(
            lambda: not client.get("/v1/streams?state=deleting").json()["items"],
            what="the end of the deletion",
        )
        assert not any(path.exists() for path in planted)

        report = collect(client, dry_run=True)
        assert (report["orphan_count"], report["unknown_prefix_count"]) == (0, 0)
        assert (report["streams"], report["skipped_count"]) == (1, 0)
        assert report["objects"] >= 4
        assert values(kept, 0) == [f"value {n}" for n in range(30)]


def test_collections_are_made_by_themselves(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "BOTTOMLESS_MANIFEST_GC_INTERVAL_MS": "300",
        "BOTTOMLESS_MANIFEST_GC_MINIMUM_AGE": "1s",
    }
    with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
        stream = filled(client, 2)
        planted = plants(home_of(server, stream))
        until(lambda: not any(path.exists() for path in planted), what="the end of the orphans")
        assert values(stream, 0) == [f"value {n}" for n in range(20)]


def test_orphans_on_s3_go_when_they_are_old_enough(tmp_path: Path) -> None:
    """M45, by the listing and the clock of a real S3 server."""
    with running_seaweed(tmp_path / "s3") as s3, s3_client(s3) as others:
        settings = {**SETTINGS, **CREDENTIALS, "BOTTOMLESS_STORE_URL": s3.store_url("garbage")}
        with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
            stream = filled(client, 10)
            prefix = f"garbage/default/{id_of(stream)}/"
            orphan = f"{prefix}data/{15:020d}.{STRAY}.fragment"
            others.put_object(Bucket=BUCKET, Key=orphan, Body=b"left by a crash")

            def keys() -> list[str]:
                found = others.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
                return [item["Key"] for item in found.get("Contents", [])]

            assert collect(client, dry_run=True, minimum_age="1D")["orphan_count"] == 0
            assert orphan in keys()
            # Another orphan, such as a root of a publish that began anew, may be old enough first.
            until(lambda: collect(client) and orphan not in keys(), what="the end of the orphan")
            verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
            assert (verified["sound"], verified["fragments"]) == (True, 10)
            assert values(stream, 0) == [f"value {n}" for n in range(100)]
