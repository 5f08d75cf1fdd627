"""`kill -9` under strict producers that send again whatever they were not told the outcome of.

Every tenth append is not waited for either, since few kills fall between a sync and its
answer; and no kill comes before a round has been answered a few times, however slow the disk.

Each record has the number of its producer in it, so the stream itself says whether one is
missing, doubled or out of order. Kills and seed come from BOTTOMLESS_TEST_PRODUCER_KILLS
and BOTTOMLESS_TEST_SEED.
"""

import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.server import AllInOne
from support.waiting import until

KILLS = int(os.environ.get("BOTTOMLESS_TEST_PRODUCER_KILLS", "20"))
SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261121"))
PRODUCERS = 3
IMPATIENT_EVERY = 10
"""Of so many appends of a producer, the answer to one is not waited for."""
SETTINGS = {
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": "65536",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "100",
}
CONFIG = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
RECORDS = "/v1/streams/producers/records"


@dataclass
class Producer:
    """Its numbers outlive every kill; so does the append whose outcome it does not know."""

    name: str
    next_number: int = 0
    pending: int = 0
    """Records of the append that may or may not be stored."""
    replayed: int = 0
    unknown: int = 0
    tried: int = 0
    answered: int = 0

    def run(self, url: str, stop: threading.Event, seed: float) -> None:
        chance = random.Random(seed)
        with httpx.Client(base_url=url, timeout=240) as client:
            while not stop.is_set():
                self.pending = self.pending or chance.choice((1, 2, 10, 40))
                self.tried += 1
                if not self.send(client, patient=self.tried % IMPATIENT_EVERY > 0):
                    return

    def send(self, client: httpx.Client, *, patient: bool = True) -> bool:
        numbers = range(self.next_number, self.next_number + self.pending)
        records = [{"value": f"{self.name} {n} " + "x" * (n % 700)} for n in numbers]
        headers = {"producer-id": self.name, "producer-seq": str(self.next_number)}
        try:
            answer = client.post(
                RECORDS,
                json={"records": records},
                headers=headers,
                timeout=httpx.Timeout(240, read=240 if patient else 0.001),
            )
        except httpx.TransportError as error:
            self.unknown += 1
            return not patient and isinstance(error, httpx.ReadTimeout)
        if answer.status_code == httpx.codes.OK:
            body = answer.json()
            assert body["count"] + body["duplicates"] == self.pending, body
            self.replayed += body["duplicates"] > 0
            self.next_number, self.pending = numbers.stop, 0
            self.answered += 1
        else:
            assert answer.json()["code"] not in {"internal", "producer-sequence-overlap"}
            assert not answer.json()["code"].startswith("producer-"), answer.text
        return True


def read_all(client: httpx.Client) -> list[str]:
    values: list[str] = []
    offset, up_to_date = 0, False
    while not up_to_date:
        page = client.get(RECORDS, params={"offset": offset, "limit": 10_000})
        assert page.status_code == httpx.codes.OK, page.text
        body = page.json()
        assert [record["offset"] for record in body["records"]] == list(
            range(offset, body["next_offset"])
        )
        values += [record["value"] for record in body["records"]]
        offset, up_to_date = body["next_offset"], body["up_to_date"]
    return values


def wait_for_answers(producers: list[Producer], count: int) -> None:
    wanted = sum(each.answered for each in producers) + count
    until(
        lambda: sum(each.answered for each in producers) >= wanted,
        what="answers before the kill",
    )


@pytest.mark.timeout(60 + KILLS * 12)
def test_every_record_of_a_strict_producer_is_there_once_after_kill_9(tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    chance = random.Random(SEED)
    producers = [Producer(f"p{number}") for number in range(PRODUCERS)]
    server = AllInOne(tmp_path / "data", SETTINGS)
    for _ in range(KILLS):
        with server:
            with server.client() as client:
                client.put("/v1/streams/producers", json=CONFIG).raise_for_status()
            stop = threading.Event()
            threads = [
                threading.Thread(target=each.run, args=(server.url, stop, chance.random()))
                for each in producers
            ]
            for thread in threads:
                thread.start()
            wait_for_answers(producers, chance.randint(1, 40))
            stop.wait(chance.uniform(0, 0.3))
            server.kill()
            stop.set()
            for thread in threads:
                thread.join()
    with server, server.client() as client:
        for each in producers:
            while each.pending:
                assert each.send(client)
            known = client.get(f"/v1/streams/producers/producers/{each.name}").json()
            assert known["last_seq"] == each.next_number - 1
        values = read_all(client)
    for each in producers:
        numbers = [int(value.split()[1]) for value in values if value.split()[0] == each.name]
        assert numbers == list(range(each.next_number)), each.name
    unknown, replayed = sum(p.unknown for p in producers), sum(p.replayed for p in producers)
    print(f"{len(values)} records, {unknown} unknown outcomes, {replayed} of them were stored")
    assert unknown > KILLS, "too few unknown outcomes: the dangerous path did not run"
    assert replayed > 0, "no append was stored without an answer: the dangerous path did not run"
