"""L39: a release that knows of no leaderless streams, replicas or tiers, on a directory that has
streams with them. Some seconds.

An older release cannot be had where only the newest commit is checked out. What makes one here is
this release whose table of served features is empty in its process, from before anything has read
it: it then refuses what it cannot read by the very check that releases without the feature have.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
from support.server import AllInOne
from support.waiting import until

LOCAL = "/v1/streams/local"
NEWER = {
    "held-twice": {"replication": {"replicas": 2, "min_in_sync": 1}},
    "in-tiers": {"tiers": [{"drive": "default"}]},
    "shared": {"profile": "leaderless"},
}
"""Streams with a feature that the older release does not know, by name, and their configuration."""
SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "10",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
}
KNOWS_NO_FEATURE = """
from bottomless.formats import stream_record

stream_record.SERVED = frozenset()
for decode in (stream_record.decode_record, stream_record.decode_registry):
    decode.__defaults__ = (frozenset(),)
"""
"""What `sitecustomize` does before the program is loaded."""


def append(client: httpx.Client, stream: str, value: str) -> None:
    """Append a record; what a node that has just started refuses for now is said again."""

    def stored() -> bool:
        answer = client.post(f"{stream}/records", json={"records": [{"value": value}]})
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return False
        assert answer.status_code == httpx.codes.OK, answer.text
        return True

    until(stored, what=f"{value} in {stream}")


def read(client: httpx.Client, stream: str) -> list[str]:
    answer = client.get(f"{stream}/records", params={"offset": 0})
    assert answer.status_code == httpx.codes.OK, answer.text
    return [record["value"] for record in answer.json()["records"]]


def stored_of(directory: Path, stream_ids: Collection[str]) -> dict[str, bytes]:
    """All that the bucket has of the streams, and all WAL objects, by their keys."""
    objects = directory / "objects"
    found = {str(one.relative_to(objects)): one for one in objects.rglob("*") if one.is_file()}
    return {
        key: one.read_bytes()
        for key, one in found.items()
        if one.suffix == ".wal" or any(stream_id in key for stream_id in stream_ids)
    }


def test_a_release_that_knows_no_such_streams_leaves_them_alone_and_serves_its_own(
    tmp_path: Path,
) -> None:
    directory, hooks = tmp_path / "data", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(KNOWS_NO_FEATURE)

    stream_ids = set()
    with AllInOne(directory, SETTINGS) as newer, newer.client() as client:
        for name, config in NEWER.items():
            created = client.put(f"/v1/streams/{name}", json=config)
            stream_ids.add(created.raise_for_status().json()["stream_id"])
        client.put(LOCAL).raise_for_status()
        for name in NEWER:
            append(client, f"/v1/streams/{name}", "a")
        append(client, LOCAL, "a")
    before = stored_of(directory, stream_ids)
    assert {key.endswith(".wal") for key in before} == {True, False}

    older_settings = SETTINGS | {
        "PYTHONPATH": str(hooks),
        "BOTTOMLESS_INGEST_PROFILES": "local",
        "BOTTOMLESS_UPLOADER_WAL": "off",
    }
    with AllInOne(directory, older_settings) as older, older.client() as client:
        append(client, LOCAL, "b")
        assert read(client, LOCAL) == ["a", "b"]
        client.put("/v1/streams/another").raise_for_status()
        append(client, "/v1/streams/another", "a")

        for name in NEWER:
            path = f"/v1/streams/{name}"
            asked: dict[str, httpx.Response] = {
                "describe": client.get(path),
                "create": client.put(path, json={}),
                "append": client.post(f"{path}/records", json={"records": [{"value": "x"}]}),
                "read": client.get(f"{path}/records", params={"offset": 0}),
                "delete": client.delete(path),
            }
            assert {call: one.status_code for call, one in asked.items() if one.is_success} == {}
        listed: dict[str, Any] = client.get("/v1/streams").raise_for_status().json()
        assert sorted(one["name"] for one in listed["items"]) == ["another", "local"]
        assert sorted(one["name"] for one in listed["unreadable"]) == sorted(NEWER)
    assert stored_of(directory, stream_ids) == before

    with AllInOne(directory, SETTINGS) as newer, newer.client() as client:
        for name in NEWER:
            assert read(client, f"/v1/streams/{name}") == ["a"]
            append(client, f"/v1/streams/{name}", "b")
            assert read(client, f"/v1/streams/{name}") == ["a", "b"]
        assert read(client, LOCAL) == ["a", "b"]
