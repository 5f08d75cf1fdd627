"""Leaderless streams, and a coordination store that answers late, not at all, is full, or forgets.

Real processes and a real Valkey. What was answered is read once and at its offset, whatever happens to
the store; what was refused with outcome `none` is nowhere.
"""

import itertools
import os
import re
import secrets
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
from support.lost_coordination import REGRESSED, await_loss, flush, rebuild
from support.reply_eater import EaterThread
from support.server import AllInOne
from support.valkey import another_client, running_valkey
from support.waiting import until

from bottomless_server.coordination.embedded import EmbeddedValkey
from bottomless_server.runtime.process.service import EXIT_CANNOT_START

SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "20",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_INGEST_WAL_PUT_SECONDS": "3",
    # A rebuild waits for puts that may be under way.
    "BOTTOMLESS_MANIFEST_REBUILD_WAL_WAIT_MS": "3500",
}
BUMP = b"wal-instance:"
"""What is written to make an EXEC impossible whose reply was lost."""


class Stream:
    """A stream, and what its only producer was told."""

    def __init__(self, server: AllInOne) -> None:
        self.server = server
        self.path = f"/v1/streams/leaderless-{secrets.token_hex(4)}"
        created = httpx.put(self.url, json={"profile": "leaderless"}, timeout=30)
        assert created.status_code == httpx.codes.CREATED, created.text
        self.stream_id: str = created.json()["stream_id"]
        self.told: dict[int, str] = {}
        self.unknown: set[str] = set()
        """Of which nobody could say whether they are stored."""
        self.refusals: Counter[str] = Counter()
        """Codes of answers that said that nothing is stored."""
        self._numbers = itertools.count()

    @property
    def url(self) -> str:
        return self.server.url + self.path

    @property
    def commit(self) -> bytes:
        """What an EXEC contains that commits to this stream."""
        return b"tail:" + self.stream_id.encode()

    def offer(self) -> int:
        """Append one record once, and remember what was said of it; its status."""
        value = f"{next(self._numbers)} {secrets.token_hex(8)}"
        body = {"records": [{"value": value}]}
        answer = httpx.post(f"{self.url}/records", json=body, timeout=120)
        said = answer.json()
        if answer.status_code == httpx.codes.OK:
            assert said["first_offset"] not in self.told
            self.told[said["first_offset"]] = value
        elif said["outcome"] == "unknown":
            self.unknown.add(value)
        else:
            assert said["outcome"] == "none", answer.text
            assert answer.status_code in (429, 503), answer.text
            self.refusals[said["code"]] += 1
        return answer.status_code

    @property
    def answered(self) -> int:
        return len(self.told) + len(self.unknown) + self.refusals.total()

    def append(self) -> None:
        """Append one record, however often it is refused."""
        until(lambda: self.offer() == httpx.codes.OK, what="an append")

    def check(self, *, dense: bool = True) -> None:
        """All that was acknowledged is there, once; beside it only what nobody could tell of."""
        found: dict[int, str] = {}
        offset = 0
        while True:
            params = {"offset": offset, "limit": 1_000}
            page = httpx.get(f"{self.url}/records", params=params, timeout=60)
            assert page.status_code == httpx.codes.OK, page.text
            found |= {one["offset"]: one["value"] for one in page.json()["records"]}
            offset = page.json()["next_offset"]
            if page.json()["up_to_date"]:
                break
        assert not dense or sorted(found) == [*range(len(found))]
        assert len(set(found.values())) == len(found)
        assert self.told.items() <= found.items()
        assert set(found.values()) - set(self.told.values()) <= self.unknown


@dataclass
class Deployment:
    """All services in one process, which reach a Valkey of their own through the eater."""

    valkey_dir: Path
    valkey: EmbeddedValkey
    eater: EaterThread
    server: AllInOne

    def client(self) -> httpx.Client:
        return self.server.client()

    @contextmanager
    def files_put_back(self) -> Iterator[None]:
        """Give Valkey back, at the end of the block, what it had on its disk at the beginning."""
        kept = self.valkey_dir.with_name("kept")
        self.kill_valkey()
        shutil.copytree(self.valkey_dir / "appendonlydir", kept)
        self.valkey.start()
        yield
        self.kill_valkey()
        shutil.rmtree(self.valkey_dir / "appendonlydir")
        kept.rename(self.valkey_dir / "appendonlydir")
        self.valkey.start()

    def kill_valkey(self) -> None:
        os.kill(self.valkey.pid, signal.SIGKILL)
        self.valkey.stop()

    def restart_valkey(self) -> None:
        """Kill it, and start it on what it has on its disk."""
        self.kill_valkey()
        self.valkey.start()

    def memory_used(self) -> int:
        """Bytes that Valkey has taken."""
        with another_client(self.valkey.url) as client:
            return int(client.info("memory")["used_memory"])

    @contextmanager
    def memory_of(self, most: str) -> Iterator[None]:
        """Let Valkey have no more memory than this, inside the block."""
        with another_client(self.valkey.url) as client:
            before = str(client.config_get("maxmemory")["maxmemory"])
            client.config_set("maxmemory", most)
            try:
                yield
            finally:
                client.config_set("maxmemory", before)


@contextmanager
def running(directory: Path, **settings: str) -> Iterator[Deployment]:
    with running_valkey(directory / "valkey") as valkey:
        socket = Path(urlsplit(valkey.url).path)
        with EaterThread(socket, directory / "eater.sock") as eater:
            mine = {"BOTTOMLESS_COORDINATION_URL": f"unix://{eater.listen}?db=0"}
            with AllInOne(directory / "data", {**mine, **SETTINGS, **settings}) as server:
                yield Deployment(directory / "valkey", valkey, eater, server)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with running(tmp_path_factory.mktemp("run")) as made:
        yield made


@pytest.fixture
def stream(deployment: Deployment) -> Stream:
    made = Stream(deployment.server)
    made.append()
    return made


@contextmanager
def load(*streams: Stream) -> Iterator[None]:
    """A producer of each stream, from the start of the block to its end."""
    ended = threading.Event()

    def produce(stream: Stream) -> None:
        while not ended.is_set():
            if stream.offer() != httpx.codes.OK:
                # Refused at once; whoever asks again at once only warms the room.
                ended.wait(0.02)

    with ThreadPoolExecutor(len(streams)) as pool:
        producing = [pool.submit(produce, stream) for stream in streams]
        try:
            yield
        finally:
            ended.set()
        for one in producing:
            one.result()


def goes_on(*streams: Stream) -> None:
    """Return when each of them has got some more appends."""
    before = [len(stream.told) for stream in streams]
    until(
        lambda: all(
            len(stream.told) > count + 3 for stream, count in zip(streams, before, strict=True)
        ),
        what="appends of every stream",
    )


@pytest.mark.parametrize(
    ("late", "bump_is_lost"),
    [(False, False), (True, False), (True, True)],
    ids=["its reply is lost", "it comes after its retry", "the reply of the bump is lost too"],
)
def test_an_exec_without_a_reply_commits_once(
    deployment: Deployment, stream: Stream, late: bool, bump_is_lost: bool
) -> None:
    """L5."""
    eater = deployment.eater
    eater.eat(*((stream.commit, BUMP) if bump_is_lost else (stream.commit,)), late=late)
    status = stream.offer()
    assert not eater.hungry, "no reply was lost"
    eater.deliver()
    eater.await_answered()
    stream.append()
    stream.check()
    # Who was answered knows: the writer has found out what became of it.
    assert status == httpx.codes.OK
    assert not stream.unknown


def test_a_store_that_answers_late_loses_nothing(deployment: Deployment, stream: Stream) -> None:
    """L31: two seconds for each exchange."""
    with load(stream):
        goes_on(stream)
        deployment.eater.delay(2)
        answered = stream.answered
        until(lambda: stream.answered > answered, what="an answer, whichever it is")
        deployment.eater.delay(0)
        goes_on(stream)
    stream.check()


def test_a_store_that_fills_up_refuses_appends_and_loses_nothing(
    deployment: Deployment, stream: Stream
) -> None:
    """L31."""
    with load(stream):
        goes_on(stream)
        with deployment.memory_of(str(deployment.memory_used() * 11 // 10)):
            until(lambda: stream.refusals["tail-bound"], what="a refusal while there is room left")
        goes_on(stream)
        with deployment.memory_of("1mb"):
            stream.refusals.clear()
            until(lambda: stream.refusals, what="a refusal of the store")
        goes_on(stream)
    stream.check()
    assert not stream.unknown


def test_a_store_that_is_killed_under_load_loses_nothing(
    deployment: Deployment, stream: Stream
) -> None:
    """L31."""
    with load(stream):
        goes_on(stream)
        deployment.restart_valkey()
        goes_on(stream)
    stream.check()


def test_a_store_that_forgets_everything_under_load_gets_it_back(deployment: Deployment) -> None:
    """L32: whoever reads hears 503 until it is rebuilt, and never that there is no stream."""
    streams = [Stream(deployment.server) for _ in range(3)]
    heard = set[int]()

    def look(ended: threading.Event) -> None:
        while not ended.is_set():
            heard.add(httpx.get(f"{streams[0].url}/records?offset=0", timeout=60).status_code)
            ended.wait(0.02)

    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool, deployment.client() as client, load(*streams):
        looking = pool.submit(look, ended)
        try:
            goes_on(*streams)
            until(lambda: 200 in heard, what="a page before the loss")
            flush(deployment.valkey.url)
            await_loss(client)
            until(lambda: 503 in heard, what="a reader that hears of the loss")
            rebuild(client)
            goes_on(*streams)
        finally:
            ended.set()
        looking.result()
    assert heard == {200, 503}
    for stream in streams:
        stream.check(dense=False)


NOTED: Final = re.compile(
    r'^bottomless_ingest_wal_stage_seconds_count\{stage="note"\} (\S+)$', re.MULTILINE
)


def all_noted(deployment: Deployment, stream: Stream) -> bool:
    """Whether all that was answered since the start is noted in objects that are durable; an object
    that is only begun may be of what came before, and a kill takes it away."""
    with deployment.server.internal("ingest") as client:
        [count] = NOTED.findall(client.get("/metrics").raise_for_status().text)
    return float(count) >= len(stream.told)


@pytest.mark.parametrize("notes", ["async", "sync"])
def test_what_is_noted_comes_back_also_where_the_node_is_dead(tmp_path: Path, notes: str) -> None:
    """L32: with `sync` all that was answered, else all that was noted after its answer."""
    with running(tmp_path, BOTTOMLESS_INGEST_WAL_NOTES=notes) as made:
        stream = Stream(made.server)
        for _ in range(5):
            stream.append()
        if notes == "async":
            until(lambda: all_noted(made, stream), what="a note of the last of them")
        made.server.kill()
        flush(made.valkey.url)
        made.server.start()
        with made.client() as client:
            await_loss(client)
            rebuild(client)
        stream.append()
        stream.check(dense=False)


def is_refused(stream: Stream) -> bool:
    """Whether an append hears that coordination has gone back, and none is stored before that."""

    def answered() -> bool:
        return stream.offer() == httpx.codes.OK or stream.refusals[REGRESSED] > 0

    stream.refusals.clear()
    until(answered, what="an answer that decides")
    return stream.refusals[REGRESSED] > 0


def test_a_store_that_was_put_back_is_not_believed(tmp_path: Path) -> None:
    """L33: neither by a node that runs on, nor after a restart of everything."""
    with running(tmp_path) as made:
        stream = Stream(made.server)
        stream.append()
        with made.files_put_back():
            for _ in range(5):
                stream.append()
            until(lambda: all_noted(made, stream), what="a note of the last of them")
        assert is_refused(stream), "it was believed by a node that ran on"
        made.server.kill()
        made.server.spawn()
        assert made.server.wait_dead() == EXIT_CANNOT_START
        flush(made.valkey.url)
        made.server.start()
        with made.client() as client:
            await_loss(client)
            rebuild(client)
        stream.append()
        stream.check(dense=False)


@pytest.mark.parametrize("count", [60, 300])
def test_streams_of_a_flush_that_are_refused_take_nothing_of_the_others(
    deployment: Deployment, count: int
) -> None:
    """L7: one is fenced, one is deleted, and of one the tail cannot be read any more."""
    streams = [Stream(deployment.server) for _ in range(count)]
    for one in streams:
        one.append()
    fenced, deleted, damaged, *others = streams
    with deployment.client() as client, another_client(deployment.valkey.url) as valkey:
        client.patch(
            fenced.path, json={"fenced": True}, headers={"if-match": "*"}
        ).raise_for_status()
        client.delete(deleted.path).raise_for_status()
        key = f"bottomless:tail:{damaged.stream_id}"
        whole = valkey.get(key)
        assert isinstance(whole, bytes)
        valkey.set(key, b"not a tail" + whole[10:])
        body = {"records": [{"value": "x"}]}
        with ThreadPoolExecutor(len(streams)) as pool:
            answers = list(
                pool.map(
                    lambda one: httpx.post(f"{one.url}/records", json=body, timeout=240), streams
                )
            )
        valkey.set(key, whole)
    assert [answer.status_code for answer in answers[3:]] == [200] * len(others)
    told = [(answer.status_code, answer.json()["code"]) for answer in answers[:3]]
    assert told[:2] == [(409, "stream-fenced"), (404, "stream-not-found")]
    assert told[2] == (502, "data-corrupt")
    for one in (fenced, damaged):
        one.check()
    for one in others:
        one.told[1] = "x"
        one.check()
