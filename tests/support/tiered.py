"""A stream over three drives: one of them a directory that can go as a mount does, and a prefix of S3.

What lies where is seen without any code of ours: a listing of each store is held against the places
that the reader tells of each fragment.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx

from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.names import StreamId
from bottomless_server.stores.streams import stream_key
from support.contract import Stream
from support.places import COLD as COLD_CACHES
from support.places import FREEING, free_local
from support.s3 import CREDENTIALS, S3Server
from support.served import PATIENT
from support.server import AllInOne
from support.stored import Stored, StoredFiles, stored_in_s3
from support.valkey import another_client, running_valkey
from support.waiting import until

_numbers: Final = itertools.count(1)
EACH: Final = 3
"""Records of a fragment."""
QUICK: Final = {
    "BOTTOMLESS_FAULT_POINTS": "1",
    "BOTTOMLESS_MANIFEST_RETENTION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "200",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "500",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
    "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
}
BY_HAND: Final = {"BOTTOMLESS_MANIFEST_TIER_INTERVAL_MS": "86400000"}
"""Policies are evaluated where a test asks for it, and at no other moment."""


class Tiers:
    """The store of everything, and drives beside it: `shelf` is a directory, others what is given."""

    def __init__(
        self, folder: Path, others: Mapping[str, Stored], coordination_url: str, **settings: str
    ) -> None:
        """`others` are the stores of drives by their names, the first one of number 1. One of
        them may be `default`."""
        self.coordination_url = coordination_url
        self.shelf = folder / "shelf"
        self._aside = folder / "aside"
        named = {"shelf": StoredFiles(self.shelf), **others}
        beside = [name for name in named if name != "default"]
        urls = {
            name: {"number": number, "url": named[name].url}
            for number, name in enumerate(beside, 1)
        }
        everything = {
            **PATIENT,
            **FREEING,
            **COLD_CACHES,
            **QUICK,
            **CREDENTIALS,
            **settings,
            "BOTTOMLESS_COORDINATION_URL": coordination_url,
            "BOTTOMLESS_DRIVES": json.dumps(urls),
        }
        if "default" in named:
            everything["BOTTOMLESS_STORE_URL"] = named["default"].url
        self.server = AllInOne(folder / "data", everything)
        self.stored: dict[str, Stored] = {"default": self.server.stored, **named}
        self._names = {one.url.partition("?")[0]: name for name, one in self.stored.items()}

    def register(self) -> None:
        """Have the drives beside drive 0 used."""
        with self.server.client() as client:
            for name in self.stored:
                if name != "default":
                    ask(client, "POST", "/v1/admin/drives", {"name": name})

    def unmount(self) -> None:
        """Leave the empty directory of `shelf`, as it is below a mount."""
        self.shelf.rename(self._aside)
        self.shelf.mkdir()

    def mount(self) -> None:
        """Bring back what `unmount` took; nothing may have been written meanwhile."""
        self.shelf.rmdir()
        self._aside.rename(self.shelf)

    def filled(self, client: httpx.Client, count: int, **config: Any) -> Stream:
        """A stream of so many fragments, each of three records, that are read from drives alone."""
        stream = Stream(client, f"tiers-{next(_numbers)}")
        ask(client, "PUT", stream.path, {"fragment": {"max_age_ms": 100}, **config})
        fill(stream, count)
        free_local(self.server, stream)
        return stream

    def listed(self, stream: Stream) -> list[tuple[str, str]]:
        """The drive and the key of each fragment, as the reader tells them."""
        found = ask(stream.client, "GET", f"{stream.path}/fragments?locations=true").json()
        return [(self._name(item["store"]), item["object_key"]) for item in found["fragments"]]

    def _name(self, store: Mapping[str, Any]) -> str:
        scheme = "file://" if store["kind"] == "file" else "s3://"
        return self._names[f"{scheme}{store['root']}"]

    def where(self, stream: Stream) -> list[str]:
        return [drive for drive, _ in self.listed(stream)]

    def wait_where(self, stream: Stream, *drives: str) -> None:
        until(lambda: self.where(stream) == [*drives], what=f"fragments on {drives}")

    def objects(self, stream_id: str) -> set[tuple[str, str]]:
        """The drive and the key of each fragment that is stored, named or not."""
        return {
            (drive, key)
            for drive, stored in self.stored.items()
            for key in stored.sizes()
            if stream_id in key and key.endswith(".fragment")
        }

    def wait_tidy(self, stream: Stream) -> None:
        """Wait until nothing is stored of the stream but what is named."""
        stream_id = id_of(stream)
        until(
            lambda: self.objects(stream_id) == set(self.listed(stream)),
            what="stores without anything that is not named",
        )

    def let_sessions_lapse(self, stream_id: StreamId) -> None:
        """Let no uploader be at a move, while no process lives: else a manifest service that was started
        gives the one that died a minute to say something."""
        with another_client(self.coordination_url) as client:
            value = client.get(stream_key(stream_id))
            assert isinstance(value, bytes)
            record = decode_record(value)
            moves = tuple(move._replace(session=None) for move in record.moves)
            client.set(stream_key(stream_id), encode_record(replace(record, moves=moves)))


@contextmanager
def running_tiers(folder: Path, seaweed: S3Server, in_s3: str, **settings: str) -> Iterator[Tiers]:
    """A server and its Valkey, and three drives beside drive 0; all but the one `in_s3` are directories."""
    with ExitStack() as stack:
        others: dict[str, Stored] = {name: StoredFiles(folder / name) for name in ("cold", "attic")}
        others[in_s3] = stack.enter_context(stored_in_s3(seaweed))
        valkey = stack.enter_context(running_valkey(folder / "valkey"))
        tiers = Tiers(folder, others, valkey.url, **settings)
        stack.enter_context(tiers.server)
        tiers.register()
        yield tiers


def ask(
    client: httpx.Client, method: str, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    """An answer other than 503, as it is for a while where a busy machine lets leases lapse."""

    def asked() -> httpx.Response | None:
        answer = client.request(method, path, json=body, headers=headers)
        return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer

    return until(asked, what="an answer other than 503").raise_for_status()


def id_of(stream: Stream) -> StreamId:
    return StreamId(ask(stream.client, "GET", stream.path).json()["stream_id"])


def give(stream: Stream, **config: Any) -> None:
    ask(stream.client, "PATCH", stream.path, config, **{"If-Match": "*"})


def fill(stream: Stream, count: int) -> None:
    for _ in range(count):
        stream.append(*(f"{stream.name}.{one}" for one in range(EACH)))
        stream.wait_uploaded()


def size_of(stream: Stream, first: int, end: int) -> int:
    found = ask(stream.client, "GET", f"{stream.path}/fragments").json()["fragments"]
    return sum(item["size_bytes"] for item in found[first:end])


def by_bytes(stream: Stream) -> list[dict[str, Any]]:
    """A policy by which of six fragments two belong on each drive."""
    return [
        {"drive": "default", "max_bytes": size_of(stream, 4, 6)},
        {"drive": "shelf", "max_bytes": size_of(stream, 2, 4)},
        {"drive": "cold"},
    ]


def everything(stream: Stream) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = stream.page()["records"]
    return records


def done(client: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    """The result of an operation."""
    operation = ask(client, "POST", path, body).json()["operation_id"]

    def ended() -> dict[str, Any] | None:
        told: dict[str, Any] = ask(client, "GET", f"/v1/operations/{operation}").json()
        return told if told["state"] in ("succeeded", "failed") else None

    told = until(ended, what="the end of the operation")
    assert told["state"] == "succeeded", told
    result: dict[str, Any] = told["result"]
    return result


def orphan(tiers: Tiers, stream: Stream) -> Path:
    """An object on the shelf that looks like a fragment of the stream, and that nothing names."""
    key = next(key for drive, key in tiers.listed(stream) if drive == "shelf")
    there = tiers.shelf / key
    first = there.name.partition(".")[0]
    stray = there.with_name(f"{first}.{'0f' * 16}.fragment")
    stray.write_bytes(there.read_bytes())
    return stray
