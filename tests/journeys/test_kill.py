"""`kill -9` at random moments under load: nothing acknowledged is lost, nothing is doubled.

The count of kills and the seed come from BOTTOMLESS_TEST_KILLS and BOTTOMLESS_TEST_SEED, so
that the same test runs long by hand. Every value is sent once and never again, whatever the
answer was: so a value that stands in the stream twice was doubled by the server.
"""

import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from support.server import AllInOne
from support.waiting import until

KILLS = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "50"))
SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261121"))
PRODUCERS = 3
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300"}
CONFIG = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}


@dataclass
class Ledger:
    """What producers were told, offset by offset, and what they sent."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def values(self, count: int) -> list[str]:
        with self.lock:
            first, self.sent = self.sent, self.sent + count
        return [f"{number:010d}-" + "x" * (number % 1500) for number in range(first, first + count)]

    def note(self, first_offset: int, values: list[str]) -> None:
        with self.lock:
            for offset, value in enumerate(values, first_offset):
                assert offset not in self.acknowledged, f"offset {offset} was given twice"
                self.acknowledged[offset] = value


def produce(url: str, ledger: Ledger, stop: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    with httpx.Client(base_url=url, timeout=10) as client:
        while not stop.is_set():
            values = ledger.values(chance.choice((1, 1, 2, 10, 40)))
            body = {"records": [{"value": value} for value in values]}
            try:
                answer = client.post("/v1/streams/killed/records", json=body)
            except httpx.TransportError:
                return
            if answer.status_code == httpx.codes.OK:
                ledger.note(answer.json()["first_offset"], values)
            else:
                assert answer.json()["code"] != "internal", answer.text


def read_all(client: httpx.Client) -> list[tuple[int, str]]:
    records: list[tuple[int, str]] = []
    offset = 0
    while True:
        page = client.get(
            "/v1/streams/killed/records",
            params={"offset": offset, "limit": 10_000, "on_out_of_range": "error"},
        )
        assert page.status_code == httpx.codes.OK, page.text
        body = page.json()
        records += [(record["offset"], record["value"]) for record in body["records"]]
        offset = body["next_offset"]
        if body["up_to_date"]:
            return records


def check(records: list[tuple[int, str]], ledger: Ledger) -> None:
    assert [offset for offset, _ in records] == list(range(len(records))), "offsets are not dense"
    stored = dict(records)
    lost = {offset for offset, value in ledger.acknowledged.items() if stored.get(offset) != value}
    assert not lost, f"{len(lost)} acknowledged records are lost, the first at {min(lost)}"
    values = [value for _, value in records]
    assert len(values) == len(set(values)), "a value that was sent once is stored twice"


def tail_is_uploaded(client: httpx.Client) -> bool:
    bounds = client.get("/v1/streams/killed/offsets").json()
    return bool(bounds["object_store_next_offset"] == bounds["next_offset"])


@pytest.mark.timeout(60 + KILLS * 12)
def test_everything_acknowledged_survives_kill_9_once_and_in_order(tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    chance = random.Random(SEED)
    ledger = Ledger()
    server = AllInOne(tmp_path / "data", SETTINGS)
    for _ in range(KILLS):
        with server:
            with server.client() as client:
                client.put("/v1/streams/killed", json=CONFIG).raise_for_status()
            stop = threading.Event()
            threads = [
                threading.Thread(target=produce, args=(server.url, ledger, stop, chance.random()))
                for _ in range(PRODUCERS)
            ]
            for thread in threads:
                thread.start()
            stop.wait(chance.uniform(0.05, 1.5))
            server.kill()
            stop.set()
            for thread in threads:
                thread.join()
    with server, server.client() as client:
        check(read_all(client), ledger)
        until(lambda: tail_is_uploaded(client), what="the tail to be uploaded")
        check(read_all(client), ledger)
        fragments = client.get("/v1/streams/killed/fragments", params={"limit": 1000}).json()
        assert len(fragments["fragments"]) > KILLS, (
            "too few fragments: the dangerous path did not run"
        )
        assert len(ledger.acknowledged) > KILLS * 5, (
            "too few appends: the dangerous path did not run"
        )
    print(f"{len(ledger.acknowledged)} records acknowledged, {ledger.sent} sent")
