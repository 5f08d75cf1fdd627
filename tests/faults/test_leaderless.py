"""Appends to leaderless streams while S3 is in trouble: nothing is answered that is not stored there.

L9, and what S3 sees of L8, L14, L17 and L24. Each append waits for its WAL object. The store is seen past the proxy and past the server: what was
answered is looked for in the bytes of the objects.
"""

import itertools
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from support.fault_deployment import FaultDeployment, fault_deployment
from support.faults import BROKEN, CONFLICT, EXISTS, SLOW_DOWN, Answer, Fault, Rule, named
from support.s3 import S3Server
from support.waiting import until

PUT_SECONDS = 3
SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "20",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_INGEST_WAL_PUT_SECONDS": str(PUT_SECONDS),
    # Whoever reads an object is a reader, or was asked to compact.
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "86400000",
    "BOTTOMLESS_READER_CACHE_BYTES": str(64 << 20),
    "BOTTOMLESS_READER_BLOCK_BYTES": str(1 << 20),
}
WAL = r"/_system/wal/.*\.wal(\?|$)"
REFUSALS = {("object-store-unavailable", "none"), ("overloaded", "none")}
"""What an append may hear: its records are not stored, and may be sent again."""


class Strict:
    """A stream and its strict producer, who sends an append again until it is stored."""

    def __init__(self, deployment: FaultDeployment) -> None:
        self.deployment = deployment
        self.path = f"/v1/streams/leaderless-{secrets.token_hex(4)}"
        self.told: dict[int, str] = {}
        """Values that were acknowledged, by their offsets."""
        self.refusals: set[tuple[str, str]] = set()
        self._numbers = itertools.count()
        created = httpx.put(self.url, json={"profile": "leaderless"}, timeout=30)
        assert created.status_code == 201, created.text

    @property
    def url(self) -> str:
        return self.deployment.server.url + self.path

    def append(self) -> None:
        """Store one record, however often it is refused."""
        number = next(self._numbers)
        value = f"{number} {secrets.token_hex(16)}"
        headers = {"producer-id": "p", "producer-seq": str(number)}
        answer = until(partial(self.offer, value, headers), what="an append")
        said = answer.json()
        assert said["durability"] == "object-store"
        assert said["first_offset"] not in self.told
        self.told[said["first_offset"]] = value

    def offer(self, value: str, headers: dict[str, str]) -> httpx.Response | None:
        body = {"records": [{"value": value}]}
        answer = httpx.post(f"{self.url}/records", json=body, headers=headers, timeout=60)
        if answer.status_code == 503:
            problem = answer.json()
            self.refusals.add((problem["code"], problem["outcome"]))
            return None
        assert answer.status_code == 200, answer.text
        return answer

    def is_in_the_store(self, value: str) -> bool:
        stored = self.deployment.stored
        keys = [key for key in stored.sizes() if key.endswith(".wal")]
        return any(value.encode() in stored.read(key) for key in keys)

    def check(self) -> None:
        """Everything that was acknowledged is read once, at its offset, and nothing else is."""
        page = httpx.get(f"{self.url}/records?offset=0&limit=1000", timeout=60)
        assert page.status_code == 200, page.text
        records = page.json()["records"]
        assert {one["offset"]: one["value"] for one in records} == self.told
        assert sorted(self.told) == [*range(len(self.told))]


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server
) -> Iterator[FaultDeployment]:
    with fault_deployment(tmp_path_factory.mktemp("run"), seaweed, SETTINGS) as running:
        yield running


@pytest.fixture
def strict(deployment: FaultDeployment) -> Iterator[Strict]:
    deployment.proxy.calm()
    made = Strict(deployment)
    made.append()
    yield made
    deployment.proxy.calm()


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.LOSE_REPLY, BROKEN),
        (Fault.LOSE_REQUEST, BROKEN),
        (Fault.LATE_REQUEST, BROKEN),
        (Fault.CUT_REQUEST, BROKEN),
        (Fault.FLIP_REQUEST, BROKEN),
        (Fault.STALL, BROKEN),
        *((Fault.REFUSE, answer) for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN)),
        *((Fault.MISREPORT, answer) for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN)),
    ],
    ids=named,
)
def test_what_is_answered_is_in_the_store(
    deployment: FaultDeployment, strict: Strict, fault: Fault, answer: Answer
) -> None:
    rule = Rule(fault, "PUT", WAL, answer, times=2)
    with deployment.proxy.disturbing(rule):
        while not deployment.proxy.exhausted(rule):
            strict.append()
    strict.append()
    assert all(strict.is_in_the_store(value) for value in strict.told.values())
    assert strict.refusals <= REFUSALS
    strict.check()


def test_a_put_that_takes_long_holds_up_what_is_committed_after_it_and_no_put(
    deployment: FaultDeployment, strict: Strict
) -> None:
    """L8: of two appends to one stream the first is put slowly, and has the first offset."""
    slow, quick = (f"{name} {secrets.token_hex(16)}" for name in ("slow", "quick"))
    rule = Rule(Fault.DRIP, "PUT", WAL, times=1, pause_seconds=0.15)

    def offered(value: str) -> int:
        answer = until(partial(strict.offer, value, {}), what="an append")
        return int(answer.json()["first_offset"])

    with deployment.proxy.disturbing(rule), ThreadPoolExecutor(2) as pool:
        first = pool.submit(offered, slow)
        until(lambda: strict.is_in_the_store(slow), what="the slow object")
        second = pool.submit(offered, quick)
        until(lambda: strict.is_in_the_store(quick), what="the quick object")
        offsets = first.result(), second.result()
    assert offsets == (1, 2)
    strict.told |= {1: slow, 2: quick}
    strict.check()


@pytest.fixture
def twenty(deployment: FaultDeployment) -> list[Strict]:
    """Streams that share few objects, on a server that was just started: it has nothing in memory."""
    deployment.proxy.calm()
    made = [Strict(deployment) for _ in range(20)]
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(Strict.append, made))
    deployment.server.stop()
    deployment.server.start()
    # By now its writer has looked at what is there.
    Strict(deployment).append()
    return made


def objects_of(streams: list[Strict]) -> list[str]:
    """Keys of the objects in which their records are."""
    stored = streams[0].deployment.stored
    values = [value.encode() for one in streams for value in one.told.values()]
    keys = [key for key in stored.sizes() if key.endswith(".wal")]
    return [key for key in keys if any(value in stored.read(key) for value in values)]


def gets_of(deployment: FaultDeployment, since: int) -> Counter[str]:
    """How often each WAL object was asked for, since the proxy had seen so many requests."""
    asked = [path for method, path in deployment.proxy.asked[since:] if method == "GET"]
    found = [re.search(r"_system/wal/[^?]*\.wal", path) for path in asked]
    return Counter(one.group() for one in found if one)


def test_streams_of_one_object_are_read_with_one_get(
    deployment: FaultDeployment, twenty: list[Strict]
) -> None:
    """L14: all at once, by readers that have nothing of it."""
    since = deployment.proxy.request_count
    with ThreadPoolExecutor(len(twenty)) as pool:
        list(pool.map(Strict.check, twenty))
    assert gets_of(deployment, since) == dict.fromkeys(objects_of(twenty), 1)


def test_a_bit_that_flips_on_the_way_is_read_once_more(
    deployment: FaultDeployment, twenty: list[Strict]
) -> None:
    """L17: what is given out is right."""
    rule = Rule(Fault.FLIP, "GET", WAL, times=1)
    with deployment.proxy.disturbing(rule):
        for one in twenty:
            one.check()


def test_a_round_reads_each_object_once(deployment: FaultDeployment, twenty: list[Strict]) -> None:
    """L24: whatever number of streams is in it, and whoever else has something there."""
    wanted = objects_of(twenty)
    since = deployment.proxy.request_count
    with deployment.server.internal("uploader") as uploader:
        uploader.post("/internal/v1/compact").raise_for_status()
    counted = gets_of(deployment, since)
    assert set(counted.values()) == {1}
    assert set(wanted) <= counted.keys()
    for one in twenty:
        described = httpx.get(one.url, timeout=30).json()
        assert (described["tail"]["entries"], described["fragment_count"]) == (0, 1)
        one.check()


def test_while_the_store_is_away_appends_are_refused_and_nothing_of_them_is_stored(
    deployment: FaultDeployment, strict: Strict
) -> None:
    """It is away for longer than a put may take, so the writer gives up again and again."""
    away = Rule(Fault.LOSE_REQUEST, "PUT", WAL)
    refused = []
    with deployment.proxy.disturbing(away):
        for number in range(3):
            body = {"records": [{"value": f"away {number} {secrets.token_hex(16)}"}]}
            answer = httpx.post(f"{strict.url}/records", json=body, timeout=60)
            assert answer.status_code == 503, answer.text
            problem = answer.json()
            assert (problem["code"], problem["outcome"]) in REFUSALS
            assert "retry-after" in answer.headers
            refused.append(body["records"][0]["value"])
        # Who reads hears nothing of it.
        strict.check()
    strict.append()
    assert not any(strict.is_in_the_store(value) for value in refused)
    strict.check()


def test_what_was_answered_is_there_after_the_node_has_lost_its_memory(
    deployment: FaultDeployment, strict: Strict
) -> None:
    """The last of all: what is read comes from the objects alone."""
    for fault in (Fault.MISREPORT, Fault.LOSE_REPLY, Fault.REFUSE):
        rule = Rule(fault, "PUT", WAL, times=1)
        with deployment.proxy.disturbing(rule):
            while not deployment.proxy.exhausted(rule):
                strict.append()
    deployment.server.kill()
    deployment.server.start()
    strict.check()
    strict.append()
    strict.check()
