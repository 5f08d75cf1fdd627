"""`./dev loadtest up|precreate|run|status|down SCENARIO`: load on a stack that things happen to.

`run` alone does everything: it starts the stack, makes the streams, appends while services are
killed, reads every stream to its end, compares that with what clients were told and with all
counters, and takes the stack down. After `up`, or `up` and `precreate`, it uses that stack and
leaves it up.

Exit codes: 0, everything adds up; 1, it does not, and summary.json says what; 2, it could not be
found out. docs/load-tests.md says what each file of a run holds.
"""

import argparse
import sys
import traceback
from pathlib import Path
from typing import Final

from bench.loadtest import commands
from bench.loadtest.place import DEFAULT, LoadTestError
from bench.loadtest.scenarios import SCENARIOS, BadScenario

CANNOT_TELL: Final = 2
INTERRUPTED: Final = 130


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    base: Path = given.directory
    try:
        return _do(given.command, given.scenario, base, given.set)
    except (LoadTestError, BadScenario) as error:
        print(f"loadtest: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("loadtest: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # a user gets a sentence, whatever it was
        base.mkdir(parents=True, exist_ok=True)
        log = base / "bug.log"
        log.write_text(traceback.format_exc())
        print(f"loadtest: it met a bug of its own, {error!r}: see {log}", file=sys.stderr)
    return CANNOT_TELL


def _do(command: str, name: str, base: Path, changes: list[str]) -> int:
    if command == "keep":
        # What `up` leaves in the background: the directory of a run instead of a name.
        from bench.loadtest.stack import keep  # noqa: PLC0415

        return keep(Path(name))
    scenario = commands.resolved(name, changes)
    if changes and command not in ("up", "run"):
        raise LoadTestError("--set is for `up`, and for `run` without a stack that is up")
    match command:
        case "up":
            commands.up(base, scenario, print)
        case "precreate":
            commands.make_streams(commands.newest_up(base, name), print)
        case "run":
            return _run(name, base, changes)
        case "status":
            print(commands.status(commands.newest(base, name)))
        case "down":
            commands.down(commands.newest(base, name), print)
    return 0


def _run(name: str, base: Path, changes: list[str]) -> int:
    scenario = commands.resolved(name, changes)
    try:
        run = commands.newest_up(base, name)
    except LoadTestError:
        return commands.run_by_itself(base, scenario, print)
    if changes:
        raise LoadTestError(f"--set comes too late: {run.path} is up with what it has")
    return commands.execute(run, print)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev loadtest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{one.name:<10}{one.about}" for one in SCENARIOS.values()),
    )
    known = ("up", "precreate", "run", "status", "down")
    parser.add_argument("command", choices=(*known, "keep"), metavar="|".join(known))
    parser.add_argument("scenario", metavar="SCENARIO")
    parser.add_argument("--directory", type=Path, default=DEFAULT, help="of all runs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a value of the scenario, as resolved-config.json has it",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
