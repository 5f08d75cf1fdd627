"""The four services as processes on S3, and queues beside them, behind nginx: each dies once, appends go on.

Producers and readers know one address. What the services answer meanwhile is what users meet,
nginx's own answers for a service that is away among it.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest
from support.s3 import S3Server
from support.separate_processes import FiveProcesses, five_processes
from support.waiting import until

STREAM = "/v1/streams/apart"
CONFIG = {"fragment": {"target_bytes": 65_536, "max_age_ms": 200}}
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300"}


class Producer:
    """Sends each value once, whatever becomes of it, and remembers what was acknowledged."""

    def __init__(self, deployment: FiveProcesses) -> None:
        self._deployment = deployment
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.acknowledged: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def goes_on(self) -> None:
        """Return when more was acknowledged than by now."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + 5, what="appends to go on")

    def _run(self) -> None:
        with self._deployment.client() as client:
            while not self._stopping.is_set():
                values = [f"{self.sent + number}".rjust(200) for number in range(3)]
                self.sent += 3
                body = {"records": [{"value": value} for value in values]}
                answer = client.post(f"{STREAM}/records", json=body)
                if answer.status_code == httpx.codes.OK:
                    first = answer.json()["first_offset"]
                    for offset, value in enumerate(values, first):
                        assert offset not in self.acknowledged
                        self.acknowledged[offset] = value
                else:
                    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
                    self._stopping.wait(0.02)


def uploads_go_on(client: httpx.Client, producer: Producer) -> None:
    """Return when what is acknowledged by now is uploaded."""
    end = max(producer.acknowledged) + 1

    def uploaded() -> bool:
        bounds = client.get(f"{STREAM}/offsets")
        # While a service is away, the bounds are not known.
        return bounds.is_success and bounds.json()["object_store_next_offset"] >= end

    until(uploaded, what=f"offset {end} to be uploaded")


def everything(client: httpx.Client) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    offset = 0
    while True:
        page = client.get(f"{STREAM}/records", params={"offset": offset, "limit": 1_000})
        assert page.status_code == httpx.codes.OK, page.text
        members = page.json()
        found += [(record["offset"], record["value"]) for record in members["records"]]
        offset = members["next_offset"]
        if members["up_to_date"]:
            return found


def check_encoded_slashes(deployment: FiveProcesses) -> None:
    """Every service says the same of them, asked by itself or through nginx."""
    for url in (deployment.url, *(process.url for process in deployment.services.values())):
        for path in (f"{STREAM}%2Frecords", f"{STREAM}%2foffsets", "/v1/streams/a%2Fb/records"):
            for method in ("GET", "PUT", "POST", "DELETE"):
                answer = httpx.request(method, url + path, timeout=30)
                assert answer.status_code == httpx.codes.BAD_REQUEST, (method, url, path)
                assert answer.json()["code"] == "bad-name"


def check_queues(deployment: FiveProcesses, client: httpx.Client) -> None:
    """A message is there after the death of its service, which nginx tells of meanwhile."""
    queue = "/v1/queues/jobs"
    client.put(queue).raise_for_status()
    body = {"messages": [{"value": "a"}]}
    client.post(f"{queue}/messages", json=body).raise_for_status()
    deployment.kill("queues")
    away = client.post(f"{queue}/messages", json=body)
    assert away.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert away.json()["code"] == "peer-unavailable"
    deployment.start()

    def received() -> list[str]:
        # Its lease may not be its own again yet.
        answer = client.post(f"{queue}/receive")
        return [one["value"] for one in answer.json().get("messages", ())]

    assert until(received, what="the message") == ["a"]


@pytest.fixture
def deployment(tmp_path: Path, seaweed: S3Server) -> Iterator[FiveProcesses]:
    with five_processes(tmp_path, SETTINGS, seaweed) as running:
        yield running


def test_each_service_dies_once_and_no_record_is_lost_or_doubled(deployment: FiveProcesses) -> None:
    with deployment.client() as client:
        client.put(STREAM, json=CONFIG).raise_for_status()
        check_encoded_slashes(deployment)
        with Producer(deployment) as producer:
            producer.goes_on()
            uploads_go_on(client, producer)
            for name in ("reader", "uploader", "manifest", "ingest"):
                deployment.kill(name)
                if name == "ingest":
                    away = client.post(f"{STREAM}/records", json={"records": [{"value": "-1"}]})
                    assert away.status_code == httpx.codes.SERVICE_UNAVAILABLE
                    assert away.json()["code"] == "peer-unavailable"
                else:
                    # Who appended just now needs none of the others.
                    producer.goes_on()
                deployment.start()
                producer.goes_on()
                uploads_go_on(client, producer)
            check_queues(deployment, client)

        found = everything(client)
        assert client.get("/internal/v1/streams").status_code == httpx.codes.NOT_FOUND

    assert [offset for offset, _ in found] == list(range(len(found)))
    assert len({value for _, value in found}) == len(found), "a value stands there twice"
    stored = dict(found)
    assert {offset: stored[offset] for offset in producer.acknowledged} == producer.acknowledged
    assert [int(value) for _, value in found] == sorted(int(value) for _, value in found)

    for name in ("queues", "ingest", "uploader", "reader", "manifest"):
        assert deployment[name].stop() == 0, deployment[name].log()[-2000:]
        assert "Traceback" not in deployment[name].log(), deployment[name].log()[-5000:]
