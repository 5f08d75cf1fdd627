"""A stop in the middle of work: nothing that was answered is lost, and nobody is told a lie: H19."""

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import lasting_ports
from support.processes import Process
from support.separate_processes import four_processes
from support.server import AllInOne
from support.waiting import until

WRITER_COUNT = 6
ACKED_MIN = 60
SETTINGS = {"BOTTOMLESS_FAULT_POINTS": "1", "BOTTOMLESS_DRAIN_SECONDS": "4"}


class Writer(threading.Thread):
    """Appends one record after the other until nobody answers any more."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(name=f"writer {number}")
        self._url = url
        self._number = number
        self.acked: dict[int, str] = {}
        """Values by the offsets that were answered."""
        self.sent: set[str] = set()
        self.refused: list[dict[str, Any]] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            for count in range(100_000):
                value = f"{self._number}-{count}"
                self.sent.add(value)
                try:
                    answer = client.post(
                        "/v1/streams/drained/records", json={"records": [{"value": value}]}
                    )
                except httpx.TransportError:
                    # Closed, or refused: the process is gone, or about to be.
                    return
                if answer.status_code == 200:
                    self.acked[answer.json()["first_offset"]] = value
                else:
                    self.refused.append(answer.json())
                    if len(self.refused) > 50:
                        return


def stall_the_last_upload(server: AllInOne) -> None:
    """Let the drain take all the time that it has, so that writers go on asking meanwhile."""
    server.arm("uploader.put.after-object", "stall")


def stop_under_load(url: str, process: Process) -> list[Writer]:
    """Let writers write, stop the process in the middle of it; returns what they met."""
    writers = [Writer(url, number) for number in range(WRITER_COUNT)]
    for writer in writers:
        writer.start()
    until(
        lambda: sum(len(writer.acked) for writer in writers) >= ACKED_MIN,
        what="appends under way",
    )
    assert process.stop() == 0
    for writer in writers:
        writer.join(240)
        assert not writer.is_alive()
    return writers


def check(writers: list[Writer], client: httpx.Client) -> None:
    """What was answered is there, once, at its place; refusals said that nothing was stored."""
    for writer in writers:
        for problem in writer.refused:
            assert (problem["status"], problem["code"], problem["outcome"]) == (
                503,
                "draining",
                "none",
            )
    stored: list[str] = []
    while True:
        page = client.get(
            "/v1/streams/drained/records",
            params={"offset": len(stored), "limit": 10_000, "max_wait_ms": 0},
        )
        page.raise_for_status()
        records = page.json()["records"]
        if not records:
            break
        stored += [record["value"] for record in records]
    for writer in writers:
        for offset, value in writer.acked.items():
            assert stored[offset] == value
    assert max(Counter(stored).values()) == 1
    assert set(stored) <= {value for writer in writers for value in writer.sent}


@pytest.mark.parametrize("deployment", ["all in one", "ingest alone"])
def test_a_stop_under_load_loses_no_answer_and_tells_no_lie(
    tmp_path: Path, deployment: str
) -> None:
    """H19."""
    process: Process
    with ExitStack() as running:
        if deployment == "all in one":
            server = AllInOne(tmp_path / "data", SETTINGS, *lasting_ports(1))
            process = running.enter_context(server)
            stall_the_last_upload(server)
            url = front = process.url
        else:
            four = running.enter_context(four_processes(tmp_path))
            process, front = four["ingest"], four.url
            url = process.url
        with httpx.Client(base_url=front, timeout=30) as client:
            client.put("/v1/streams/drained").raise_for_status()
        writers = stop_under_load(url, process)
        if deployment == "all in one":
            assert any(writer.refused for writer in writers)
        process.start()
        with httpx.Client(base_url=front, timeout=30) as client:
            until(
                lambda: (
                    client.get("/v1/streams/drained/records", params={"offset": "first"}).is_success
                ),
                what="the stream read again",
            )
            check(writers, client)
