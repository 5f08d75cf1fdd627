"""TI1, TI2, TI5: a policy over two directories and S3, in one process that dies between two steps. Left
out of a run of everything (soak/left_out.py).

What lies where is seen without any code of ours: a listing of each store is held against the places
that the reader tells of each fragment.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.contract import Stream
from support.lost_coordination import await_loss, flush, rebuild
from support.places import COLD as COLD_CACHES
from support.places import FREEING
from support.s3 import CREDENTIALS, S3Server
from support.server import AllInOne
from support.stored import Stored, StoredFiles, stored_in_s3
from support.valkey import another_client, running_valkey
from support.waiting import until

from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.names import StreamId
from bottomless_server.runtime.base.fault_points import POINTS
from bottomless_server.stores.streams import stream_key

_numbers: Final = itertools.count(1)
EACH: Final = 3
"""Records of a fragment."""
QUICK: Final = {
    "BOTTOMLESS_FAULT_POINTS": "1",
    "BOTTOMLESS_MANIFEST_TIER_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_RETENTION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "200",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "500",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
    "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
}


class Tiers:
    """The store of everything, a second directory and a prefix of a bucket, each a drive."""

    def __init__(self, folder: Path, cold: Stored, coordination_url: str) -> None:
        self.coordination_url = coordination_url
        shelf = folder / "shelf"
        named = {
            "shelf": {"number": 1, "url": shelf.as_uri()},
            "cold": {"number": 2, "url": cold.url},
        }
        settings = {
            **FREEING,
            **COLD_CACHES,
            **QUICK,
            **CREDENTIALS,
            "BOTTOMLESS_COORDINATION_URL": coordination_url,
            "BOTTOMLESS_DRIVES": json.dumps(named),
        }
        self.server = AllInOne(folder / "data", settings)
        self.stored: dict[str, Stored] = {
            "default": self.server.stored,
            "shelf": StoredFiles(shelf),
            "cold": cold,
        }
        self._roots = {str(self.server.objects): "default", str(shelf): "shelf"}
        self.shelf = shelf

    def listed(self, stream: Stream) -> list[tuple[str, str]]:
        """The drive and the key of each fragment, as the reader tells them."""
        found = ask(stream.client, "GET", f"{stream.path}/fragments?locations=true").json()
        return [
            (self._roots.get(item["store"]["root"], "cold"), item["object_key"])
            for item in found["fragments"]
        ]

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
        """Let it be long ago that an uploader said that it is at a move, while no process lives."""
        with another_client(self.coordination_url) as client:
            value = client.get(stream_key(stream_id))
            assert isinstance(value, bytes)
            record = decode_record(value)
            moves = tuple(move._replace(at=0) for move in record.moves)
            client.set(stream_key(stream_id), encode_record(replace(record, moves=moves)))


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server) -> Iterator[Tiers]:
    folder = tmp_path_factory.mktemp("tiers")
    with ExitStack() as stack:
        cold = stack.enter_context(stored_in_s3(seaweed))
        valkey = stack.enter_context(running_valkey(folder / "valkey"))
        tiers = Tiers(folder, cold, valkey.url)
        stack.enter_context(tiers.server)
        with tiers.server.client() as client:
            for name in ("shelf", "cold"):
                ask(client, "POST", "/v1/admin/drives", {"name": name})
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


def filled(client: httpx.Client, count: int, **config: Any) -> Stream:
    """A stream of so many fragments, each of three records."""
    stream = Stream(client, f"tiers-{next(_numbers)}")
    ask(client, "PUT", stream.path, {"fragment": {"max_age_ms": 100}, **config})
    fill(stream, count)
    return stream


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


def test_fragments_move_by_bytes_and_by_age_and_new_ones_go_to_the_first_tier(
    tiers: Tiers,
) -> None:
    with tiers.server.client() as client:
        stream = filled(client, 6)
        before = everything(stream)
        assert tiers.where(stream) == ["default"] * 6
        give(stream, tiers=by_bytes(stream))
        tiers.wait_where(stream, "cold", "cold", "shelf", "shelf", "default", "default")
        tiers.wait_tidy(stream)
        assert everything(stream) == before

        # By both limits, of which the one that leaves less counts: the newest is never too old.
        both = {"drive": "shelf", "max_age": "1s", "max_bytes": "1 GiB"}
        give(stream, tiers=[both, {"drive": "cold"}])
        fill(stream, 1)
        tiers.wait_where(stream, *["cold"] * 6, "shelf")


POINTS_OF_MOVES: Final = (
    "manifest.tiers.after-enter",
    "uploader.move.after-claim",
    "uploader.move.after-copies",
    "uploader.move.after-finish",
)


def test_there_is_a_death_at_every_point_of_a_move() -> None:
    of_moves = ("manifest.tiers.", "uploader.move.")
    assert {point for point in POINTS if point.startswith(of_moves)} == set(POINTS_OF_MOVES)


@pytest.mark.parametrize("point", POINTS_OF_MOVES)
def test_a_move_whose_process_died_is_ended_after_it(tiers: Tiers, point: str) -> None:
    with tiers.server.client() as client:
        stream = filled(client, 3)
        stream_id, before = id_of(stream), everything(stream)
        newest = {"drive": "default", "max_bytes": size_of(stream, 2, 3)}
        tiers.server.arm(point)
        # The process may be dead before it has answered: what it died of follows from this request.
        with suppress(httpx.TransportError):
            give(stream, tiers=[newest, {"drive": "cold"}])
    tiers.server.wait_dead_at_fault_point()
    tiers.let_sessions_lapse(stream_id)
    tiers.server.start()
    with tiers.server.client() as client:
        stream = Stream(client, stream.name)
        tiers.wait_where(stream, "cold", "cold", "default")
        tiers.wait_tidy(stream)
        assert everything(stream) == before


def test_all_that_removes_and_all_that_looks_goes_through_three_drives(tiers: Tiers) -> None:
    with tiers.server.client() as client:
        stream = filled(client, 6)
        stream_id = id_of(stream)
        give(stream, tiers=by_bytes(stream))
        tiers.wait_where(stream, "cold", "cold", "shelf", "shelf", "default", "default")
        verified = done(client, f"{stream.path}/manifest/verify", {"checksums": True})
        assert (verified["sound"], verified["fragments"]) == (True, 6), verified

        ask(client, "POST", f"{stream.path}/trim", {"before_offset": EACH})
        tiers.wait_where(stream, "cold", "shelf", "shelf", "default", "default")
        give(stream, retention={"max_bytes": size_of(stream, 2, 5)})
        tiers.wait_where(stream, "shelf", "default", "default")
        tiers.wait_tidy(stream)
        before = everything(stream)

        stray = orphan(tiers, stream)
        asked = {"dry_run": False, "minimum_age": "1s", "stream": stream.name}
        until(
            lambda: done(client, "/v1/admin/gc", asked) and not stray.exists(),
            what="garbage collected from the shelf",
        )

        flush(tiers.coordination_url)
        await_loss(client)
        rebuild(client)
        tiers.wait_where(stream, "shelf", "default", "default")
        assert everything(stream) == before
        ask(client, "DELETE", stream.path)
        until(lambda: not tiers.objects(stream_id), what="nothing left of the stream")


def orphan(tiers: Tiers, stream: Stream) -> Path:
    """An object on the shelf that looks like a fragment of the stream, and that nothing names."""
    key = next(key for drive, key in tiers.listed(stream) if drive == "shelf")
    there = tiers.shelf / key
    first = there.name.partition(".")[0]
    stray = there.with_name(f"{first}.{'0f' * 16}.fragment")
    stray.write_bytes(there.read_bytes())
    return stray
