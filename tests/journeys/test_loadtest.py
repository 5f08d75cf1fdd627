"""The load test itself, as its users type it: a stack is started, a node is killed under load, every
stream is read to its end, and everything adds up.

`./dev loadtest run smoke` does the same for two minutes, `run soak` for half an hour.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.loadtest.__main__ import main
from bench.loadtest.place import Birth
from bench.loadtest.scenarios import SCENARIOS

TINY = SCENARIOS["tiny"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_small_load_adds_up_although_a_node_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(command: str) -> tuple[int, str, str]:
        code = main([command, "tiny", "--directory", str(tmp_path)])
        return (code, *capsys.readouterr())

    assert typed("up")[0] == 0
    [run] = tmp_path.iterdir()
    try:
        code, _, told = typed("up")
        assert (code, told) == (2, f"loadtest: a stack of tiny is up already: {run}\n")
        assert typed("precreate")[1] == "8 streams made\n"
        assert "ingest-1: runs" in typed("status")[1]

        code, said, told = typed("run")
        assert (code, told) == (0, ""), f"{said}{told}"
        assert "tiny: reconciled" in said
        assert "has had its run" in typed("run")[2]
        shown = typed("status")[1]
        assert "ingest-1: stopped" in shown
        assert "ingest-2: runs" in shown
    finally:
        stack = json.loads((run / "stack.json").read_text())
        code, said, _ = typed("down")
    assert (code, said) == (0, f"down: {run}\n")
    assert typed("down")[1] == f"was down already: {run}\n"
    assert not (run / "state").exists()
    for one in (stack["keeper"], stack["valkey"], *stack["services"].values()):
        assert Birth(one["pid"], one["started"]).process() is None
    look(run)


def look(run: Path) -> None:
    """What each file says of the same run."""
    assert json.loads((run / "resolved-config.json").read_text()) == json.loads(
        json.dumps(TINY.to_json())
    )
    summary = json.loads((run / "summary.json").read_text())
    records = summary["records"]
    assert records["read"] == records["acknowledged"] + records["of_unknown_outcome_and_stored"] > 0
    assert summary["events"]["kill"] == 1
    requests = summary["object_store_requests"]
    assert requests["counted_by_services"]["put"] > 0

    clients = lines(run / "client-30s.jsonl")
    whole = json.loads((run / "client-summary.json").read_text())
    assert whole["records"] == records["acknowledged"]
    assert sum(line["records"] for line in clients) == whole["records"]
    assert sum(line["latency"]["count"] for line in clients) == whole["latency"]["count"]

    owners = json.loads((run / "routing-manifest.json").read_text())["streams"]
    assert list(owners) == list(TINY.stream_names)
    remaps = lines(run / "remap-events.jsonl") if (run / "remap-events.jsonl").exists() else []
    assert len(remaps) == whole["remaps"]
    for remap in remaps:
        assert remap["owners"] == owners[remap["stream"]]["owners"]
        assert set(remap["before"]) - set(remap["after"]) == {"ingest-1"}

    sampled = lines(run / "metrics-30s.jsonl")
    assert {line["service"] for line in sampled} == set(TINY.service_names)
    assert all("metrics" in line or "error" in line for line in sampled)
    assert json.loads((run / "git.json").read_text()).keys() == {
        "commit",
        "branch",
        "changed_files",
    }
    assert json.loads((run / "environment.json").read_text())["cores"] > 0
    assert {path.stem for path in (run / "logs").iterdir()} == {*TINY.service_names, "stack"}
