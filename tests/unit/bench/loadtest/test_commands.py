"""What `./dev loadtest` says where there is nothing that it could do, and what it finds again."""

import json
import os
from pathlib import Path

import pytest

from bench.loadtest import commands
from bench.loadtest.__main__ import main
from bench.loadtest.place import Birth, LoadTestError, RunDirectory
from bench.loadtest.scenarios import SCENARIOS

TINY = SCENARIOS["tiny"]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["run", "huge"], "there is no scenario huge: smoke, soak, tiny, local"),
        (["run", "tiny", "--set", "streams=0"], "streams is not above 0"),
        (["down", "tiny", "--set", "streams=3"], "--set is for `up`"),
        (["status", "tiny"], "there is no run of tiny in"),
        (["precreate", "tiny"], "there is no run of tiny in"),
        (["down", "tiny"], "there is no run of tiny in"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: list[str], told: str
) -> None:
    assert main([*typed, "--directory", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("loadtest: ")
    assert told in said.err
    assert said.err.count("\n") == 1


def test_a_bug_is_said_in_one_line_too_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(commands, "resolved", fail)
    assert main(["run", "tiny", "--directory", str(tmp_path)]) == 2
    assert "it met a bug of its own, ZeroDivisionError('no')" in capsys.readouterr().err
    assert "Traceback" in (tmp_path / "bug.log").read_text()


def a_run(base: Path, pid: int, started: float) -> RunDirectory:
    run = RunDirectory.create(base, TINY)
    one = {"pid": pid, "started": started}
    service = {**one, "life": 1, "url": "http://127.0.0.1:1"}
    sockets = base / "bottomless-load-1"
    sockets.mkdir()
    document = {"keeper": one, "valkey": one, "services": {"reader": service}}
    run.write("stack.json", {**document, "sockets": str(sockets)})
    return run


def test_a_process_that_only_has_the_number_of_an_old_one_is_never_ended(tmp_path: Path) -> None:
    """This process has the number; it was started at another time."""
    run = a_run(tmp_path, os.getpid(), Birth.of(os.getpid()).started - 100)
    said: list[str] = []
    commands.down(run, said.append)
    assert said == [f"was down already: {run.path}"]
    assert not (tmp_path / "bottomless-load-1").exists()
    assert "reader: gone" in commands.status(run)


def test_a_process_is_known_by_number_and_start() -> None:
    birth = Birth.of(os.getpid())
    assert birth.process() is not None
    assert birth._replace(started=birth.started + 1).process() is None


def test_the_newest_run_of_a_scenario_is_found_and_no_other(tmp_path: Path) -> None:
    for name in ("20261101T000000Z-tiny", "20261102T000000Z-tiny", "20261103T000000Z-smoke"):
        (tmp_path / name).mkdir()
    assert commands.newest(tmp_path, "tiny").path.name == "20261102T000000Z-tiny"
    with pytest.raises(LoadTestError, match="is not up"):
        commands.newest_up(tmp_path, "tiny")


def test_a_run_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadTestError, match="cannot be made"):
        RunDirectory.create(tmp_path / "file", TINY)


def test_the_environment_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTTOMLESS_TOKEN", "geheim")
    monkeypatch.setenv("BOTTOMLESS_LOG_LEVEL", "warning")
    run = RunDirectory.create(tmp_path, TINY)
    kept = (run.path / "environment.json").read_text()
    assert "geheim" not in kept
    assert json.loads(kept)["settings"]["BOTTOMLESS_LOG_LEVEL"] == "warning"
