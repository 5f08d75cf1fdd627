"""`kill -9` at random moments under load: nothing acknowledged is lost, nothing is doubled.

The count of kills and the seed come from BOTTOMLESS_TEST_KILLS and BOTTOMLESS_TEST_SEED, so
that the same test runs long by hand. Every value is sent once and never again, whatever the
answer was: so a value that stands in the stream twice was doubled by the server. Load goes on
while processes are away, and what is answered then has to be true as well: an append that was
refused with the outcome `none` is not there in the end, and what readers saw is.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.deployment import DEPLOYMENTS, Deployment
from support.waiting import until

from bottomless.formats.checks import crc32c

KILLS = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "4"))
SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261121"))
PRODUCERS = 3
AWAY_SECONDS = 0.05
"""After an answer that says so, or none."""
PAUSE_SECONDS_MAX = 0.02
"""Between appends of a producer: what counts is how many moments there are, not how many records."""
STREAM = "/v1/streams/killed"
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300"}
CONFIG = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}


@dataclass
class Ledger:
    """What producers were told, offset by offset, what they sent, and what readers saw."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    seen: dict[int, str] = field(default_factory=dict)
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def values(self, count: int) -> list[str]:
        with self.lock:
            first, self.sent = self.sent, self.sent + count
        return [f"{number:010d}-" + "x" * (number % 1500) for number in range(first, first + count)]

    def note(self, first_offset: int, values: list[str]) -> None:
        with self.lock:
            for offset, value in enumerate(values, first_offset):
                if offset in self.acknowledged:
                    self.faults.append(f"offset {offset} was given twice")
                self.acknowledged[offset] = value

    def note_refusal(self, answer: httpx.Response, values: list[str]) -> None:
        problem = answer.json()
        with self.lock:
            self.answers[f"{answer.request.method} {problem['code']} {problem['outcome']}"] += 1
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                self.faults.append(answer.text)
            if problem["outcome"] == "none":
                self.refused.update(values)

    def note_seen(self, records: list[tuple[int, str]]) -> None:
        with self.lock:
            for offset, value in records:
                if self.seen.setdefault(offset, value) != value:
                    self.faults.append(f"offset {offset} was read with two values")


def produce(deployment: Deployment, ledger: Ledger, stop: threading.Event, seed: float) -> None:
    chance = random.Random(seed)
    with deployment.client() as client:
        while not stop.is_set():
            values = ledger.values(chance.choice((1, 1, 2, 10, 40)))
            body = {"records": [{"value": value} for value in values]}
            try:
                answer = client.post(f"{STREAM}/records", json=body)
            except httpx.TransportError:
                stop.wait(AWAY_SECONDS)
                continue
            if answer.status_code == httpx.codes.OK:
                ledger.note(answer.json()["first_offset"], values)
                stop.wait(chance.uniform(0, PAUSE_SECONDS_MAX))
            else:
                ledger.note_refusal(answer, values)
                stop.wait(AWAY_SECONDS)


def look(deployment: Deployment, ledger: Ledger, stop: threading.Event, seed: float) -> None:
    """Read somewhere, again and again."""
    chance = random.Random(seed)
    with deployment.client() as client:
        while not stop.wait(AWAY_SECONDS):
            offset = chance.randrange(1 + len(ledger.acknowledged))
            try:
                page = client.get(f"{STREAM}/records", params={"offset": offset, "limit": 20})
            except httpx.TransportError:
                continue
            if page.status_code == httpx.codes.OK:
                ledger.note_seen(records_of(page))
            else:
                ledger.note_refusal(page, [])


@contextmanager
def load(deployment: Deployment, ledger: Ledger, chance: random.Random) -> Iterator[None]:
    stop = threading.Event()
    threads = [
        threading.Thread(target=work, args=(deployment, ledger, stop, chance.random()))
        for work in (*[produce] * PRODUCERS, look)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def records_of(page: httpx.Response) -> list[tuple[int, str]]:
    return [(record["offset"], record["value"]) for record in page.json()["records"]]


def read_all(client: httpx.Client) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    offset = 0
    while True:
        page = client.get(
            f"{STREAM}/records",
            params={"offset": offset, "limit": 10_000, "on_out_of_range": "error"},
        )
        assert page.status_code == httpx.codes.OK, page.text
        records += records_of(page)
        offset = page.json()["next_offset"]
        if page.json()["up_to_date"]:
            return records


def check(records: list[tuple[int, str]], ledger: Ledger) -> None:
    assert ledger.faults == []
    assert [offset for offset, _ in records] == list(range(len(records))), "offsets are not dense"
    stored = dict(records)
    for known, told in ((ledger.acknowledged, "acknowledged"), (ledger.seen, "read before")):
        lost = {offset for offset, value in known.items() if stored.get(offset) != value}
        assert not lost, f"{len(lost)} records {told} are lost, the first at {min(lost)}"
    values = [value for _, value in records]
    assert len(values) == len(set(values)), "a value that was sent once is stored twice"
    done_all_the_same = len(ledger.refused.intersection(values))
    assert done_all_the_same == 0, f"{done_all_the_same} records that were refused are stored"


def fragments(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params = {"limit": "1000", "locations": "true"}
    while True:
        page = client.get(f"{STREAM}/fragments", params=params).raise_for_status().json()
        found += page["fragments"]
        if page["next_page_token"] is None:
            return found
        params["page_token"] = page["next_page_token"]


def check_store(deployment: Deployment, listed: list[dict[str, Any]], end: int) -> None:
    """Every fragment of the reader's list lies in the store, whole; offsets are covered once."""
    assert [item["first_offset"] for item in listed] == [
        0,
        *(item["last_offset"] + 1 for item in listed[:-1]),
    ]
    assert listed[-1]["last_offset"] + 1 == end
    sizes = deployment.stored.sizes()
    named = [item["object_key"] for item in listed]
    assert len(set(named)) == len(named)
    for item in listed:
        assert sizes[item["object_key"]] == item["size_bytes"]
        assert f"{crc32c(deployment.stored.read(item['object_key'])):08x}" == item["crc32c"]
    orphans = {object_key for object_key in sizes if object_key.endswith(".fragment")} - set(named)
    print(f"{len(listed)} fragments, {len(orphans)} objects of attempts that were given up")


def tail_is_uploaded(client: httpx.Client) -> bool:
    bounds = client.get(f"{STREAM}/offsets").json()
    return bool(bounds["object_store_next_offset"] == bounds["next_offset"])


@pytest.fixture(params=sorted(DEPLOYMENTS))
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    with DEPLOYMENTS[request.param](request, tmp_path, SETTINGS) as running:
        yield running


def kill_some(deployment: Deployment, chance: random.Random) -> Counter[str]:
    """Kill one, or several at the same moment, and perhaps again while they start."""
    count = min(len(deployment.names), chance.choice((1, 1, 1, 2, 4)))
    victims = chance.sample(deployment.names, count)
    killed = Counter[str]()
    never = threading.Event()
    while True:
        deployment.kill(*victims)
        killed.update(victims)
        if chance.random() < 0.75:
            return killed
        deployment.spawn()
        never.wait(chance.uniform(0, 1.5))


def go_on(ledger: Ledger) -> None:
    """Wait for a few answers more, since a slow machine may give none between two kills."""
    acknowledged, seen = len(ledger.acknowledged) + 10, len(ledger.seen)
    until(
        lambda: len(ledger.acknowledged) >= acknowledged and len(ledger.seen) > seen,
        what="answers after a kill",
    )


@pytest.mark.timeout(60 + KILLS * 12)
def test_everything_acknowledged_survives_kill_9_once_and_in_order(deployment: Deployment) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    chance = random.Random(SEED)
    ledger = Ledger()
    killed = Counter[str]()
    never = threading.Event()
    with deployment.client() as client:
        client.put(STREAM, json=CONFIG).raise_for_status()
        with load(deployment, ledger, chance):
            while killed.total() < KILLS:
                go_on(ledger)
                never.wait(chance.uniform(0.05, 1.5))
                killed += kill_some(deployment, chance)
                deployment.start()
        print(f"killed {dict(killed)}; answers meanwhile {dict(ledger.answers)}")
        check(read_all(client), ledger)
        until(lambda: tail_is_uploaded(client), what="the tail to be uploaded")
        records = read_all(client)
        check(records, ledger)
        listed = fragments(client)
        check_store(deployment, listed, len(records))
        assert len(listed) > KILLS / 5, "too few fragments: the dangerous path did not run"
        assert len(ledger.acknowledged) > KILLS * 5, (
            "too few appends: the dangerous path did not run"
        )
        assert len(ledger.seen) > KILLS, "too few reads: the dangerous path did not run"
    print(
        f"{len(ledger.acknowledged)} records acknowledged, {len(ledger.refused)} refused, "
        f"{ledger.sent} sent, {len(ledger.seen)} read under load"
    )
