"""Appends to leaderless streams while S3 is in trouble: nothing is answered that is not stored there.

L9. Each append waits for its WAL object. The store is seen past the proxy and past the server: what was
answered is looked for in the bytes of the objects.
"""

import itertools
import secrets
from collections.abc import Iterator
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
        answer = until(partial(self._offer, value, headers), what="an append")
        said = answer.json()
        assert said["durability"] == "object-store"
        assert said["first_offset"] not in self.told
        self.told[said["first_offset"]] = value

    def _offer(self, value: str, headers: dict[str, str]) -> httpx.Response | None:
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
