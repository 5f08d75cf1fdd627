"""Waiting for operations: silent while it is short, and then telling what it is waited for."""

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.command_line import CommandLine
from support.server import AllInOne
from support.stand_in import OURS, standing_in

from bottomless.cli.waiting import SILENT_SECONDS, Narrator

NOON = datetime(2026, 8, 22, 12, 0, tzinfo=UTC)
LATER = SILENT_SECONDS + 1


def operation(error: dict[str, str] | None = None, **progress: Any) -> dict[str, Any]:
    return {
        "operation_id": "op_1",
        "kind": "delete-stream",
        "state": "running",
        "progress": progress,
        "error": error,
    }


def test_what_is_soon_over_is_not_told() -> None:
    narrator = Narrator(0.0)
    assert narrator.sentence(operation(phase="sweeping"), SILENT_SECONDS - 1, NOON) is None


def test_a_rest_is_told_at_once_with_its_end() -> None:
    resting = operation(phase="waiting", waits_until="2026-08-22T13:00:00.000Z")
    assert Narrator(0.0).sentence(resting, 0.1, NOON) == (
        "delete-stream op_1: the objects stay for those who still read them until "
        "2026-08-22T13:00:00.000Z, in 60 min; Ctrl-C ends the waiting, not the work"
    )


def test_a_phase_is_told_once_and_then_now_and_again_with_its_counts() -> None:
    narrator = Narrator(0.0)
    sweeping = operation(phase="sweeping", deleted_objects=3)
    first = narrator.sentence(sweeping, LATER, NOON)
    assert first is not None
    assert "being deleted; deleted_objects 3; Ctrl-C" in first
    assert narrator.sentence(sweeping, LATER + 29, NOON) is None
    again = narrator.sentence(operation(phase="sweeping", deleted_objects=9), LATER + 30, NOON)
    assert again == "delete-stream op_1: the objects are being deleted; deleted_objects 9"
    assert narrator.sentence(operation(phase="closing"), LATER + 31, NOON) is not None


def test_what_remains_is_told_with_its_reason() -> None:
    left = operation(held=9, left=2, remaining=[{"stream": "orders", "why": "no other node lives"}])
    told = Narrator(0.0).sentence(left, LATER, NOON)
    assert told is not None
    assert "running; held 9, left 2; orders: no other node lives; Ctrl-C" in told


def test_why_a_step_is_tried_again_is_told() -> None:
    ill = operation({"code": "object-store-unavailable", "detail": "it does not answer"})
    told = Narrator(0.0).sentence(ill, LATER, NOON)
    assert told is not None
    assert "running; is tried again after: it does not answer (object-store-unavailable)" in told


GRACE = {
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "1500",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "1500",
}


@pytest.fixture
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AllInOne]:
    with AllInOne(tmp_path / "data", request.param) as server:
        yield server


@pytest.mark.parametrize("deployment", [GRACE], indirect=True)
def test_rm_waits_for_the_grace(deployment: AllInOne, tmp_path: Path) -> None:
    cli = CommandLine(deployment.url, tmp_path)
    cli.stream("going", "one")
    result = cli.run("rm", "going", "--yes", "--wait", "-o", "name")
    assert result.exit_code == 0
    assert result.stdout.startswith("op_")
    assert cli.ok("ls", "--deleting", "-o", "name") == ""


@pytest.mark.parametrize("deployment", [{}], indirect=True)
def test_ctrl_c_ends_the_waiting_and_not_the_work(deployment: AllInOne, tmp_path: Path) -> None:
    cli = CommandLine(deployment.url, tmp_path)
    cli.stream("staying", "one")
    waiting = cli.start("rm", "staying", "--yes", "--wait")
    assert waiting.stderr is not None
    # How many minutes: test_a_rest_is_told_at_once_with_its_end, whose clock stands still.
    told = b""
    while b"the objects stay for those who still read them until 20" not in told:
        line = waiting.stderr.readline()
        assert line, told
        told += line
    assert b" min" in told
    assert b"Ctrl-C ends the waiting, not the work" in told
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(240) == 130
    assert waiting.communicate() == (b"", b"")
    assert cli.ok("ls", "--deleting", "-o", "name") == "staying\n"


def test_operations_are_listed_and_those_in_one_state(tmp_path: Path) -> None:
    item = {"kind": "rebalance", "stream_id": None, "created_at": "2026-11-28T12:00:00.000Z"}
    items = [{**item, "operation_id": f"op_{digit * 32}", "state": "running"} for digit in "ba"]
    body = orjson.dumps({"items": items, "next_page_token": None})
    with standing_in(lambda _: (200, body, OURS)) as server:
        cli = CommandLine(server.url, tmp_path)
        table = cli.ok("operations", "ls").splitlines()
        names = cli.ok("operations", "ls", "--state", "running", "-o", "name").splitlines()
        wrong = cli.run("operations", "ls", "--state", "done")
    assert table[0].split() == ["OPERATION", "KIND", "STATE", "CREATED"]
    assert table[1].split() == [f"op_{'b' * 32}", "rebalance", "running", item["created_at"]]
    assert names == [f"op_{'b' * 32}", f"op_{'a' * 32}"]
    assert [("state=running" in asked.path) for asked in server.asked] == [False, True]
    assert wrong.exit_code == 2
