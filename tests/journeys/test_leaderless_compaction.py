"""Compaction and reclaim of leaderless streams, over the real program: dead at each step, damaged, too late.

One all-in-one on a directory, which dies at a fault point and is started again; the exit code proves
that it died where it should. Whatever befalls it, each record that was acknowledged is read at its
offset, before and after, and in the end nothing of what is not needed is left.
"""

import itertools
import secrets
import socket
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx
import pytest
from support.contract import problem_of
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

from bottomless_server.runtime.base.fault_points import POINTS
from bottomless_server.runtime.listener.listeners import internal_url

ENTRIES_MAX: Final = 40
SETTINGS = {
    "BOTTOMLESS_FAULT_POINTS": "1",
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "5",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "50",
    "BOTTOMLESS_INGEST_WAL_STREAM_ENTRIES_MAX": str(ENTRIES_MAX),
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "50",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "50",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "50",
    # Garbage is at least so old.
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "1000",
    # Nothing is read but from the store and from coordination.
    "BOTTOMLESS_READER_CACHE_BYTES": "0",
    # Who takes over what a dead process held waits for it.
    "BOTTOMLESS_UPLOADER_WAL_LEASE_MS": "500",
    "BOTTOMLESS_INGEST_LEASE_MS": "1000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "100",
    "BOTTOMLESS_INGEST_RENEW_MS": "200",
}
COMPACTING = (
    "uploader.put.after-intent",
    "uploader.put.after-object",
    "uploader.put.after-register",
    "manifest.publish.after-exec",
    "manifest.prune.after-exec",
)
RECLAIMING = (
    "manifest.vacuum.after-settle",
    "manifest.vacuum.after-delete",
    "manifest.vacuum.after-exec",
)
CONFIG: Final = {"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}
"""Compaction begins when a test asks for it."""

_numbers = itertools.count(1)


def test_there_is_a_journey_for_every_point_of_compaction_and_reclaim() -> None:
    own = {point for point in POINTS if point.startswith(("manifest.vacuum.", "manifest.prune."))}
    assert own <= {*COMPACTING, *RECLAIMING} <= POINTS


class Written:
    """A stream and its strict producer, who says again what he heard nothing of."""

    def __init__(self, server: AllInOne) -> None:
        self.server = server
        name = f"compacted-{next(_numbers)}"
        self.path, self.gap = f"/v1/streams/{name}", f"/v1/admin/streams/{name}/gap"
        self.told: list[str] = []
        """Values that were acknowledged, by offset."""
        with server.client() as client:
            created = client.put(self.path, json=CONFIG)
        assert created.status_code == 201, created.text
        self.stream_id: str = created.json()["stream_id"]

    def offer(self, values: Sequence[str]) -> httpx.Response | None:
        """Append them under the next number; None where the process died meanwhile."""
        headers = {"producer-id": "p", "producer-seq": str(len(self.told))}
        body = {"records": [{"value": value} for value in values]}
        try:
            return httpx.post(
                f"{self.server.url}{self.path}/records", json=body, headers=headers, timeout=60
            )
        except httpx.TransportError:
            return None

    def append(self, *values: str) -> None:
        def stored() -> httpx.Response | None:
            answer = self.offer(values)
            refused = answer is None or answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
            return None if refused else answer

        answer = until(stored, what="an append")
        assert answer.status_code == 200, answer.text
        assert answer.json()["first_offset"] == len(self.told)
        self.told += values

    def fill(self, count: int) -> "Written":
        for _ in range(count):
            self.append(*(f"{len(self.told) + number} {secrets.token_hex(8)}" for number in (0, 1)))
        return self

    def get(self, offset: int, **query: Any) -> httpx.Response:
        asked = {"offset": offset, "limit": 1_000, **query}
        return httpx.get(f"{self.server.url}{self.path}/records", params=asked, timeout=60)

    def read(self, offset: int = 0) -> list[tuple[int, str]]:
        """To the end, page after page."""
        found: list[tuple[int, str]] = []
        while True:
            page = self.get(offset)
            assert page.status_code == 200, page.text
            found += [(one["offset"], one["value"]) for one in page.json()["records"]]
            offset = page.json()["next_offset"]
            if page.json()["up_to_date"]:
                return found

    def check(self) -> None:
        assert self.read() == list(enumerate(self.told))

    def described(self) -> dict[str, Any]:
        with self.server.client() as client:
            found: dict[str, Any] = client.get(self.path).raise_for_status().json()
        return found

    def is_compacted(self) -> bool:
        """Ask for a round; whether everything is in fragments, and nothing in the tail."""
        compact(self.server)
        tail = self.described()["tail"]
        return (tail["entries"], tail["first_offset"]) == (0, len(self.told))

    def check_fragments(self) -> None:
        """They cover the stream once, and verification finds nothing."""
        with self.server.client() as client:
            answer = client.get(f"{self.path}/fragments", params={"limit": 1_000})
            spans = [
                (one["first_offset"], one["last_offset"] + 1)
                for one in answer.raise_for_status().json()["fragments"]
            ]
            verified = done(client, f"{self.path}/manifest/verify", {"checksums": True})
        assert verified["sound"], verified
        assert spans[0][0] == 0
        assert spans[-1][1] == len(self.told)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def done(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Begin an operation, and return its result when it has one."""
    begun = client.post(path, json=body)
    assert begun.status_code == httpx.codes.ACCEPTED, begun.text
    where = f"/v1/operations/{begun.json()['operation_id']}"

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(where).raise_for_status().json()
        return None if found["state"] in ("pending", "running") else found

    told = until(ended, what=path)
    assert told["state"] == "succeeded", told
    result: dict[str, Any] = told["result"]
    return result


def compact(server: AllInOne) -> None:
    """Ask for a round and wait for its end; the process may die meanwhile, or be dead."""
    where = internal_url(None, server.data_dir, "uploader").removeprefix("unix://")
    # By hand, since the client of HTTP leaves a socket open that nobody listens at.
    with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
        line.connect(where)
        line.sendall(
            b"POST /internal/v1/compact HTTP/1.1\r\nHost: uploader\r\n"
            b"Connection: close\r\nContent-Length: 0\r\n\r\n"
        )
        while line.recv(4_096):
            pass


def wal_files(server: AllInOne) -> set[Path]:
    return set((server.objects / "_system" / "wal").rglob("*.wal"))


def contents(server: AllInOne) -> dict[Path, bytes]:
    """Of all WAL objects; what nobody needs any more may be deleted meanwhile."""
    found: dict[Path, bytes] = {}
    for path in wal_files(server):
        with suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    directory = tmp_path_factory.mktemp("compacted") / "data"
    with AllInOne(directory, SETTINGS, *lasting_ports(1)) as server:
        yield server


@pytest.fixture
def server(running: AllInOne) -> AllInOne:
    """Alive, also where the test before this one was not."""
    if running.is_dead:
        running.wait_dead()
    running.start()
    return running


@pytest.mark.parametrize("point", COMPACTING)
def test_a_round_that_died_is_finished_by_the_next_one(server: AllInOne, point: str) -> None:
    """L18 to L22, in this order: no offset is ever unreadable, and none is stored twice."""
    stream = Written(server).fill(3)
    server.arm(point)
    compact(server)
    server.revive()

    stream.check()
    stream.fill(1).check()
    until(stream.is_compacted, what="everything in fragments")
    stream.check()
    stream.check_fragments()


def test_a_vacuum_that_died_takes_nothing_alive_and_leaves_nothing_over(server: AllInOne) -> None:
    """L28: after the settling of a dead writer, a deletion, and what is said of it."""
    stream = Written(server).fill(3)
    server.kill()
    server.start()
    # Each death leaves the next one a writer that is dead.
    for point in RECLAIMING:
        stream.fill(1)
        server.arm(point)
        until(lambda: has_died(server), what=f"a death at {point}")
        server.revive()
        stream.check()
    await_reclaimed(stream)
    stream.fill(1).check()


def await_reclaimed(stream: Written) -> None:
    """Return when nothing is left of what was there, and no writer but the living one is known."""
    old = wal_files(stream.server)
    until(lambda: are_gone(stream, old), what="the objects of before gone")
    until(lambda: states(stream.server) == ["live"], what="the dead writers forgotten")
    stream.check()


def states(server: AllInOne) -> list[str]:
    with server.client() as client:
        report = client.get("/v1/admin/wal").raise_for_status().json()
    return [one["state"] for one in report["instances"]]


def are_gone(stream: Written, objects: Collection[Path]) -> bool:
    """Whether these are deleted. A writer says with its next commit that it is done with what it put,
    so there is one each time."""
    stream.fill(1)
    compact(stream.server)
    return wal_files(stream.server).isdisjoint(objects)


def has_died(server: AllInOne) -> bool:
    """Ask for a round, so that there is something to delete; whether the process is dead."""
    compact(server)
    return server.is_dead


def test_what_is_not_compacted_for_long_refuses_appends_until_it_is(server: AllInOne) -> None:
    """L25: of its own stream alone."""
    stream, other = Written(server), Written(server)
    refused = until(lambda: refusal(stream), what="a refusal")
    problem = problem_of(refused, 429, "tail-bound")
    assert problem["outcome"] == "none"
    assert int(refused.headers["retry-after"]) > 0
    assert stream.described()["tail"]["entries"] == ENTRIES_MAX
    other.fill(1)
    stream.check()

    until(stream.is_compacted, what="everything in fragments")
    stream.fill(3).check()


def refusal(stream: Written) -> httpx.Response | None:
    """Append once; the answer if it is a refusal for more than a moment."""
    answer = stream.offer([value := secrets.token_hex(8)])
    assert answer is not None
    if answer.status_code == 200:
        stream.told.append(value)
    return answer if answer.status_code == 429 else None


def test_who_reads_meets_no_hole_while_all_is_compacted_and_reclaimed(server: AllInOne) -> None:
    """L16: pages are read all the time, from the beginning to the end, with nothing cached."""
    stream = Written(server).fill(4)
    over, reads = Event(), itertools.count()

    def read_on() -> None:
        while not over.is_set():
            found, known = stream.read(), len(stream.told)
            assert found[:known] == list(enumerate(stream.told))[: len(found)]
            assert [offset for offset, _ in found] == [*range(len(found))]
            next(reads)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        try:
            for _ in range(4):
                stream.fill(4)
                until(stream.is_compacted, what="everything in fragments")
                until(partial(are_gone, stream, wal_files(server)), what="a vacuum")
        finally:
            over.set()
        reading.result()
    assert next(reads) > 0
    stream.check()


def test_an_object_that_is_damaged_holds_up_its_stream_alone_until_its_loss_is_accepted(
    server: AllInOne,
) -> None:
    """L17, L27: one of three streams of an object, of which nothing else is in the way."""
    await_reclaimed(Written(server))
    streams = [Written(server).fill(1) for _ in range(3)]
    damaged, *others = streams
    marker = secrets.token_hex(64)
    damaged.append(marker)
    [path] = [one for one, data in contents(server).items() if marker.encode() in data]
    for one in streams:
        one.fill(1)
    flip(path, marker.encode())
    # The writer has it in memory, as long as it lives.
    server.kill()
    server.start()

    problem_of(damaged.get(2), 502, "data-corrupt")
    assert [value for _, value in page_of(damaged, 0, 2)] == damaged.told[:2]
    for one in others:
        one.check()
        until(one.is_compacted, what="the others in fragments")
    assert path in wal_files(server), "it was deleted while it was needed"
    assert damaged.described()["tail"]["first_offset"] == 2

    end = damage_end(damaged)
    with server.client() as client:
        body = {"accept_loss": True, "next_offset": end}
        told = done(client, damaged.gap, body)
    assert told["gap"]["next_offset"] == end
    until(damaged.is_compacted, what="the rest of it in fragments")
    assert damaged.read(end) == list(enumerate(damaged.told))[end:]
    until(lambda: are_gone(damaged, {path}), what="the damaged object deleted")


def page_of(stream: Written, offset: int, limit: int) -> list[tuple[int, str]]:
    page = stream.get(offset, limit=limit)
    assert page.status_code == 200, page.text
    return [(one["offset"], one["value"]) for one in page.json()["records"]]


def flip(path: Path, where: bytes) -> None:
    """Turn one bit of a file, in the first of these bytes."""
    data = bytearray(path.read_bytes())
    data[data.index(where)] ^= 1
    path.write_bytes(data)


def damage_end(stream: Written) -> int:
    """Where the damaged entry ends, as the refusal of another number says."""
    with stream.server.client() as client:
        body = {"accept_loss": True, "next_offset": 1}
        refused = client.post(stream.gap, json=body)
    assert refused.status_code == 412, refused.text
    end: int = refused.json()["damaged_next"]
    return end


def test_a_put_that_lands_after_its_deletion_is_garbage(server: AllInOne) -> None:
    """L29."""
    stream = Written(server).fill(2)
    late = contents(server)
    until(lambda: are_gone(stream, late.keys()), what="a vacuum")
    for path, data in late.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    with server.client() as client:
        asked = {"dry_run": False, "minimum_age": "1s"}

        def collected() -> bool:
            done(client, "/v1/admin/gc", asked)
            return not late.keys() & wal_files(server)

        until(collected, what="the late objects old enough and gone")
    stream.check()
    stream.fill(1).check()
