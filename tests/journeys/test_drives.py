"""Fragments on several drives: registered over HTTP, read from where the manifest says they are.

Nothing moves fragments yet, so the test does it by hand: it copies objects to a directory of their own
and to S3, puts the root that names the copies, and takes away what they were made from.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow.ipc
import pytest
from support.contract import Stream, new_stream
from support.object_keys import root_key
from support.places import COLD as COLD_CACHES
from support.places import FREEING, free_local
from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client
from support.server import AllInOne
from support.valkey import another_client, running_valkey
from support.waiting import until

from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.formats.manifest import decode_node, encode_node
from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.manifest import Node, fragment_info
from bottomless.model.names import TENANT_DEFAULT, StreamId, Uid
from bottomless.model.stream import RootPointer
from bottomless.spark.options import parse_options
from bottomless.spark.partitions import place_of
from bottomless.spark.plan import Stored
from bottomless.spark.store import Counts
from bottomless.spark.ways import open_objects
from bottomless_server.stores.streams import stream_key
from bottomless_server.tree.relocate import Relocation, relocate

SHELF, COLD = 1, 2
PREFIX: Final = "journey-drives"
EACH: Final = 3
MOVES: Final = (Relocation(3, 6, 0, SHELF, 0xFEED), Relocation(6, 9, 0, COLD, 0xBEEF))
"""Of four fragments of three records the second and the third."""


class Drives:
    """A directory, a second one that can be taken away as a mount, and a prefix of a bucket."""

    def __init__(self, folder: Path, s3: S3Server, coordination_url: str) -> None:
        self.shelf = folder / "shelf"
        self._aside = folder / "aside"
        self._s3 = s3
        self._coordination_url = coordination_url
        named = {
            "shelf": {"number": SHELF, "url": self.shelf.as_uri()},
            "cold": {"number": COLD, "url": s3.store_url(PREFIX)},
        }
        settings = {
            **CREDENTIALS,
            "BOTTOMLESS_COORDINATION_URL": coordination_url,
            "BOTTOMLESS_DRIVES": json.dumps(named),
            **FREEING,
            **COLD_CACHES,
            "BOTTOMLESS_READER_STORE_RETRY_SECONDS": "0",
        }
        self.server = AllInOne(folder / "data", settings)

    def go(self) -> None:
        self.shelf.rename(self._aside)
        self.shelf.mkdir()

    def come_back(self) -> None:
        self.shelf.rmdir()
        self._aside.rename(self.shelf)

    def move(self, stream_id: StreamId) -> None:
        """Copy fragments, have the manifest name the copies, and delete the sources."""
        with another_client(self._coordination_url) as client:
            value = client.get(stream_key(stream_id))
            assert isinstance(value, bytes)
            record = decode_record(value)
            assert record.root is not None
            at = record.root
            key = root_key(stream_id, at.generation, at.epoch, at.version, at.uid)
            root = decode_node((self.server.objects / key).read_bytes())
            moved = root
            for move in MOVES:
                moved = _relocated(moved, move)
            for old, new in zip(root.entries, moved.entries, strict=True):
                source, target = (
                    fragment_place(stream_id, fragment_info(entry), TENANT_DEFAULT)
                    for entry in (old, new)
                )
                if source != target:
                    self._copy(self.server.objects / source.object_key, target)
            version = record.version + 1
            moved = replace(moved, uid=Uid("d" * 32), version=version)
            data = encode_node(moved)
            pointer = RootPointer(
                moved.uid, at.generation, at.epoch, moved.version, len(data), crc32c(data)
            )
            key = root_key(stream_id, at.generation, at.epoch, moved.version, moved.uid)
            (self.server.objects / key).write_bytes(data)
            renewed = replace(record, root=pointer, version=version)
            client.set(stream_key(stream_id), encode_record(renewed))

    def _copy(self, source: Path, target: FragmentPlace) -> None:
        if target.drive == SHELF:
            copy = self.shelf / target.object_key
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
        else:
            with s3_client(self._s3) as client:
                key = f"{PREFIX}/{target.object_key}"
                client.put_object(Bucket=BUCKET, Key=key, Body=source.read_bytes())
        source.unlink()


def _relocated(root: Node, move: Relocation) -> Node:
    def no_group(_: Node) -> Any:
        raise AssertionError

    descent = relocate(root, move, lambda: Uid("e" * 32), no_group)
    with pytest.raises(StopIteration) as ended:
        next(descent)
    found: Node = ended.value.value.root
    return found


@pytest.fixture
def drives(tmp_path: Path, seaweed: S3Server) -> Iterator[Drives]:
    with running_valkey(tmp_path / "valkey") as valkey:
        drives = Drives(tmp_path, seaweed, valkey.url)
        with drives.server:
            yield drives


def states(client: httpx.Client) -> dict[str, str]:
    told = client.get("/v1/drives").raise_for_status().json()
    return {one["name"]: one["state"] for one in told["items"]}


def answered(client: httpx.Client, path: str, accept: str = "*/*", **query: str) -> httpx.Response:
    """An answer other than 503, as it is for a while where a busy machine lets leases lapse."""

    def ask() -> httpx.Response | None:
        answer = client.get(path, params=query, headers={"Accept": accept})
        return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer

    return until(ask, what="an answer other than 503").raise_for_status()


def arrow_rows(stream: Stream) -> int:
    accept = "application/vnd.apache.arrow.stream"
    answer = answered(stream.client, stream.records, accept, offset="first")
    with pyarrow.ipc.open_stream(answer.content) as reader:
        return int(reader.read_all().num_rows)


def is_away(stream: Stream, offset: int) -> bool:
    answer = stream.get(offset)
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
    code: str = answer.json()["code"]
    return code == "object-store-unavailable"


def test_fragments_are_read_from_a_directory_a_mount_and_s3(
    drives: Drives, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with drives.server.client() as client:
        assert states(client) == {
            "default": "used",
            "shelf": "unregistered",
            "cold": "unregistered",
        }
        for name in ("shelf", "cold"):
            registered = client.post("/v1/admin/drives", json={"name": name})
            assert registered.status_code == 200, registered.text
        assert set(states(client).values()) == {"used"}
        stream = new_stream(client, {"fragment": {"max_age_ms": 100}})
        for number in range(4):
            stream.append(*(f"{number}.{one}" for one in range(EACH)))
            stream.wait_uploaded()
        before = stream.page()["records"]
        free_local(drives.server, stream)
        listed = answered(client, f"{stream.path}/fragments").json()
        assert [item["record_count"] for item in listed["fragments"]] == [EACH] * 4
    drives.server.stop()
    drives.move(StreamId(listed["stream_id"]))

    drives.go()
    drives.server.start()
    with drives.server.client() as client:
        stream = Stream(client, stream.name)
        assert states(client) == {"default": "used", "shelf": "away", "cold": "used"}
        assert [one["offset"] for one in stream.page(6)["records"]] == [6, 7, 8, 9, 10, 11]
        until(lambda: is_away(stream, 3), what="503 of what lies on the shelf")
        drives.come_back()
        assert states(client)["shelf"] == "used"
        _read_everything(drives, stream, before, listed["fragments"])
        begun = client.post(f"{stream.path}/manifest/verify", json={"checksums": True})
        path = f"/v1/operations/{begun.raise_for_status().json()['operation_id']}"
        ended = until(lambda: _ended(client, path), what="the end of the verify")
        assert ended["state"] == "succeeded", ended
        assert (ended["result"]["sound"], ended["result"]["fragments"]) == (True, 4), ended


def _read_everything(
    drives: Drives, stream: Stream, before: list[Any], listed: list[dict[str, Any]]
) -> None:
    assert stream.page()["records"] == before
    assert arrow_rows(stream) == len(before)
    client = stream.client
    found = answered(client, f"{stream.path}/fragments", locations="true").json()["fragments"]
    assert [item["store"]["kind"] for item in found] == ["file", "file", "s3", "file"]
    for item, old in zip(found, listed, strict=True):
        assert item["etag"] == old["etag"]
        data = answered(client, item["href"]).content
        assert f"{crc32c(data):08x}" == old["crc32c"]
        # As a worker of Spark does it, from the store that the list names.
        place = place_of(item["store"], parse_options({"url": "http://x", "stream": "x"}).s3)
        assert place is not None
        stored = Stored(item["id"], item["object_key"], 0, 1, len(data), item["index_position"])
        assert open_objects(place, Counts()).read(stored, 0, len(data)) == data


def _ended(client: httpx.Client, path: str) -> dict[str, Any] | None:
    told: dict[str, Any] = client.get(path).raise_for_status().json()
    return told if told["state"] in ("succeeded", "failed") else None
