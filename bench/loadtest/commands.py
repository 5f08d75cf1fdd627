"""What each command of `./dev loadtest` does."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.loadtest.control import Control
from bench.loadtest.place import SOCKETS, Birth, LoadTestError, RunDirectory
from bench.loadtest.run import ROUTING, Run, precreate
from bench.loadtest.scenarios import SCENARIOS, Scenario, changed
from bench.loadtest.summary import exit_code, in_words
from bench.place import ROOT
from bottomless_server.coordination.die_with_parent import die_with_parent

PATHS: Final = (ROOT / "tests", ROOT / "docs" / "examples")
"""Where the keeper finds what starts and disturbs processes."""
UP_SECONDS: Final = 900.0
DOWN_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
Say = Callable[[str], None]
_OURS: Final[dict[int, "subprocess.Popen[bytes]"]] = {}
"""Keepers that this process has started, by their pids: only their parent can see them off."""


def up(base: Path, scenario: Scenario, say: Say, *, lasting: bool = True) -> RunDirectory:
    """Start a stack, and return when it is ready. A `lasting` one goes on after this process."""
    before = RunDirectory.newest(base, scenario.name)
    if before is not None and is_up(before):
        raise LoadTestError(f"a stack of {scenario.name} is up already: {before.path}")
    run = RunDirectory.create(base, scenario)
    log = run.logs / "stack.log"
    with log.open("a") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "bench.loadtest", "keep", str(run.path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=None if lasting else die_with_parent(),  # noqa: PLW1509
        )
    _OURS[keeper.pid] = keeper
    try:
        _await_ready(run, keeper)
    except BaseException:
        keeper.terminate()
        raise
    say(f"up: {run.path}")
    return run


def _await_ready(run: RunDirectory, keeper: "subprocess.Popen[bytes]") -> None:
    deadline, log = time.monotonic() + UP_SECONDS, run.logs / "stack.log"
    while not run.has("stack.json"):
        if keeper.poll() is not None:
            raise LoadTestError(f"the stack did not start: {_last_line(log)} (see {log})")
        if time.monotonic() > deadline:
            raise LoadTestError(f"the stack was not ready after {UP_SECONDS:.0f} s: see {log}")
        # A file tells nobody that it is there.
        time.sleep(POLL_SECONDS)


def newest(base: Path, scenario: str) -> RunDirectory:
    """The run of a scenario that was begun last.

    Raises:
        LoadTestError: there is none.
    """
    found = RunDirectory.newest(base, scenario)
    if found is None:
        raise LoadTestError(f"there is no run of {scenario} in {base}: `up` or `run` makes one")
    return found


def newest_up(base: Path, scenario: str) -> RunDirectory:
    """The same, whose stack is up.

    Raises:
        LoadTestError: it is not, or there is none.
    """
    found = newest(base, scenario)
    if not is_up(found):
        raise LoadTestError(f"the stack of {found.path} is not up")
    return found


def is_up(run: RunDirectory) -> bool:
    """Whether the keeper of a run is there."""
    return run.has("stack.json") and _birth(run.read("stack.json")["keeper"]).process() is not None


def make_streams(run: RunDirectory, say: Say) -> None:
    """`precreate`."""
    if run.has(ROUTING):
        raise LoadTestError(f"the streams of {run.path} were made already")
    say(f"{asyncio.run(precreate(run))} streams made")


def execute(run: RunDirectory, say: Say) -> int:
    """`run`, on a stack that is up; the exit code."""
    if run.has("client-30s.jsonl"):
        raise LoadTestError(f"{run.path} has had its run: take it down, and run again")
    if not run.has(ROUTING):
        make_streams(run, say)

    async def all_of_it() -> None:
        await Run(run, say).execute()

    asyncio.run(all_of_it())
    summary = run.read("summary.json")
    say(in_words(summary))
    return exit_code(summary)


def run_by_itself(base: Path, scenario: Scenario, say: Say) -> int:
    """`run` without a stack: everything, from `up` to `down`; the exit code."""
    run = up(base, scenario, say, lasting=False)
    code = None
    try:
        code = execute(run, say)
    finally:
        down(run, say, keep_state=code != 0)
    return code


def down(run: RunDirectory, say: Say, *, keep_state: bool = False) -> None:
    """End every process of a stack that is still the one which was started, and remove its disks.

    Raises:
        LoadTestError: something does not end.
    """
    if not run.has("stack.json"):
        raise LoadTestError(f"{run.path} has no stack.json: nothing was up")
    stack = run.read("stack.json")
    keeper = _birth(stack["keeper"])
    others = [_birth(one) for one in (stack["valkey"], *stack["services"].values())]
    was_up = keeper.process() is not None
    _end([keeper], signal.SIGTERM)
    # With the keeper all others end; who is left is ended by its own number.
    _end([keeper, *others], signal.SIGKILL)
    if keeper.pid in _OURS:
        _OURS.pop(keeper.pid).wait()
    sockets = Path(stack["sockets"])
    if sockets.name.startswith(SOCKETS):
        # A keeper that was killed has left them.
        shutil.rmtree(sockets, ignore_errors=True)
    if not keep_state:
        shutil.rmtree(run.state, ignore_errors=True)
    kept = f"; the disks are kept in {run.state}" if keep_state and run.state.exists() else ""
    say(f"{'down' if was_up else 'was down already'}: {run.path}{kept}")


def _end(births: Sequence[Birth], which: signal.Signals) -> None:
    deadline = time.monotonic() + DOWN_SECONDS
    for birth in births:
        process = birth.process()
        if process is not None:
            process.send_signal(which)
    while left := [birth.pid for birth in births if birth.process() is not None]:
        if time.monotonic() > deadline:
            if which is signal.SIGTERM:
                return
            raise LoadTestError(f"these processes do not end: {left}")
        time.sleep(POLL_SECONDS)


def status(run: RunDirectory) -> str:
    """What there is of a run, in words."""
    lines = [str(run.path)]
    if not run.has("stack.json"):
        return "\n".join([*lines, "  no stack was ready"])
    stack = run.read("stack.json")
    facts: dict[str, Any] = {}
    if is_up(run):
        facts = asyncio.run(Control(stack["control"]).ask("facts"))
    lines.append(f"  stack: {'up' if facts else 'down'}")
    for name, one in stack["services"].items():
        state = facts[name]["state"] if name in facts else "gone"
        lines.append(f"  {name}: {state}, pid {one['pid']}, life {one['life']}, {one['url']}")
    for file, words in (
        (ROUTING, "streams are made"),
        ("client-30s.jsonl", "the load has begun"),
        ("client-summary.json", "the load is over"),
    ):
        lines += [f"  {words}"] if run.has(file) else []
    if run.has("summary.json"):
        lines.append(in_words(run.read("summary.json")))
    return "\n".join(lines)


def resolved(name: str, changes: Sequence[str]) -> Scenario:
    """A scenario by its name, with changes.

    Raises:
        LoadTestError: there is none of that name.
    """
    if name not in SCENARIOS:
        raise LoadTestError(f"there is no scenario {name}: {', '.join(SCENARIOS)}")
    return changed(SCENARIOS[name], changes)


def _birth(document: dict[str, Any]) -> Birth:
    return Birth(document["pid"], document["started"])


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
