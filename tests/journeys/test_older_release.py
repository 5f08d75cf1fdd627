"""L39: a release that knows of no leaderless streams, on a directory that has one. Some seconds.

An older release cannot be had where only the newest commit is checked out. What makes one here is
this release whose table of served features is empty in its process, from before anything has read
it: it then refuses what it cannot read by the very check that releases without the feature have.
"""

from pathlib import Path
from typing import Any

import httpx
from support.server import AllInOne
from support.waiting import until

NEWER = "/v1/streams/shared"
LOCAL = "/v1/streams/local"
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


def stored_of(directory: Path, stream_id: str) -> dict[str, bytes]:
    """All that the bucket has of the stream, and all WAL objects, by their keys."""
    objects = directory / "objects"
    found = {str(one.relative_to(objects)): one for one in objects.rglob("*") if one.is_file()}
    return {
        key: one.read_bytes()
        for key, one in found.items()
        if one.suffix == ".wal" or stream_id in key
    }


def test_a_release_that_knows_no_such_streams_leaves_them_alone_and_serves_its_own(
    tmp_path: Path,
) -> None:
    directory, hooks = tmp_path / "data", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(KNOWS_NO_FEATURE)

    with AllInOne(directory, SETTINGS) as newer, newer.client() as client:
        created = client.put(NEWER, json={"profile": "leaderless"})
        stream_id = created.raise_for_status().json()["stream_id"]
        client.put(LOCAL).raise_for_status()
        append(client, NEWER, "a")
        append(client, LOCAL, "a")
    before = stored_of(directory, stream_id)
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

        asked: dict[str, httpx.Response] = {
            "describe": client.get(NEWER),
            "create": client.put(NEWER, json={}),
            "append": client.post(f"{NEWER}/records", json={"records": [{"value": "x"}]}),
            "read": client.get(f"{NEWER}/records", params={"offset": 0}),
            "delete": client.delete(NEWER),
        }
        assert {name: one.status_code for name, one in asked.items() if one.is_success} == {}
        listed: dict[str, Any] = client.get("/v1/streams").raise_for_status().json()
        assert sorted(one["name"] for one in listed["items"]) == ["another", "local"]
        assert [one["name"] for one in listed["unreadable"]] == ["shared"]
    assert stored_of(directory, stream_id) == before

    with AllInOne(directory, SETTINGS) as newer, newer.client() as client:
        assert read(client, NEWER) == ["a"]
        append(client, NEWER, "b")
        assert read(client, NEWER) == ["a", "b"]
        assert read(client, LOCAL) == ["a", "b"]
