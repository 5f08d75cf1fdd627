"""A server that dies between two steps of what makes it the home of queues: founding, start, stop, takeover.

Every step is one of its fault points; the exit code proves that the process died where it should. Each
death is followed by a start on what it left: nothing that was confirmed is missing, and nobody else is
the home. BOTTOMLESS_TEST_KILLS, with any number, adds the points that each run leaves out.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.ports import lasting_ports
from support.server import AllInOne

from bottomless_server.runtime.base.fault_points import EXIT_AT_FAULT_POINT, POINTS

ARMED = Path(__file__).parents[1] / "support" / "armed.py"
SETTINGS = {"BOTTOMLESS_FAULT_POINTS": "1"}
QUEUE = "/v1/queues/jobs"
FOUNDING = ("manifest.queue-home.after-exec", "manifest.queue-home.after-object")
STARTING = (
    "queues.start.after-lease",
    "queues.start.after-token",
    "manifest.queue-start.after-exec",
    "manifest.queue-start.after-object",
    "queues.start.after-entry",
)
STOPPING = ("queues.stop.before-close", "queues.stop.after-close")
ALL = "BOTTOMLESS_TEST_KILLS" in os.environ
"""Each death is a start of everything. Units die between any two steps of a start and of a takeover
(unit/manifest/test_queue_starts.py, test_queue_homes.py)."""


def test_there_is_a_journey_for_every_point_of_homes() -> None:
    here = {*FOUNDING, *STARTING, *STOPPING}
    assert here == {point for point in POINTS if point.startswith(("queues.", "manifest.queue-"))}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    with AllInOne(tmp_path / "data", SETTINGS, *lasting_ports(1)) as running:
        yield running


def ask(server: AllInOne, method: str, path: str, body: object = None) -> httpx.Response | None:
    """What a request is answered; None where nobody lives to answer."""
    with server.client() as client:
        try:
            return client.request(method, path, json=body)
        except httpx.TransportError:
            return None


def answered(server: AllInOne, method: str, path: str, body: object = None) -> httpx.Response:
    answer = ask(server, method, path, body)
    assert answer is not None
    assert answer.status_code in (200, 201), answer.text
    return answer


def die_at_start(server: AllInOne, point: str) -> None:
    """Let a process begin on the server's directory, and end at a point of its start."""
    dying = AllInOne(server.data_dir, {**SETTINGS, "BOTTOMLESS_TEST_ARMED": point})
    dying.program = str(ARMED)
    dying.spawn()
    assert dying.wait_dead() == EXIT_AT_FAULT_POINT, (point, dying.log()[-2000:])


def test_a_server_that_dies_at_any_step_is_the_home_again_with_all_that_was_confirmed(
    server: AllInOne,
) -> None:
    for point in FOUNDING if ALL else FOUNDING[:1]:
        server.arm(point)
        assert ask(server, "PUT", QUEUE) is None
        server.revive()
    answered(server, "PUT", QUEUE)
    answered(server, "POST", f"{QUEUE}/messages", {"messages": [{"value": "a"}]})
    taken = answered(server, "POST", f"{QUEUE}/receive", {"visibility_ms": 43_200_000}).json()

    for point in STOPPING if ALL else STOPPING[1:]:
        server.arm(point)
        assert server.stop() == EXIT_AT_FAULT_POINT
        for starting in STARTING if ALL else STARTING[1::2]:
            die_at_start(server, starting)
        server.start()

    # It is as it was, in flight, and its receipt is good.
    receipts = [message["receipt"] for message in taken["messages"]]
    assert answered(server, "POST", f"{QUEUE}/ack", {"receipts": receipts}).json()["acked"] == 1
    tokens = json.loads((server.data_dir / "queues" / "start.json").read_bytes())
    assert len(tokens["tokens"]) == 2


@pytest.mark.skipif(not ALL, reason="long form, with BOTTOMLESS_TEST_KILLS")
def test_a_takeover_that_dies_at_any_step_is_finished_by_the_same_request(
    server: AllInOne,
) -> None:
    answered(server, "PUT", QUEUE)
    lost = answered(server, "GET", "/v1/admin/queue-store").json()["node_id"]
    assert server.stop() == 0
    shutil.rmtree(server.data_dir / "queues")
    server.start()
    asked = {"tenant": "default", "accept_loss": True, "expect_home": lost}
    for point in FOUNDING:
        server.arm(point)
        assert ask(server, "POST", "/v1/admin/queues/takeover", asked) is None
        server.revive()
    taken = answered(server, "POST", "/v1/admin/queues/takeover", asked).json()
    assert (taken["term"], taken["home"] != lost) == (2, True)
    answered(server, "PUT", QUEUE)
