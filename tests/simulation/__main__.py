"""`python -m simulation SEED`: replay a run and print its story; `FROM..TO`, or seeds with commas
between them: run many.

A run that fails prints what it found and how to replay it, and the exit code is 1.
"""

import os
import sys

from simulation import clockwork

if os.environ.get("PYTHONHASHSEED") != "0":
    # Sets of strings go by their hashes, which are drawn anew for each process.
    again = [sys.executable, "-m", "simulation", *sys.argv[1:]]
    os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
clockwork.install()

import argparse  # noqa: E402
import gc  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Sequence  # noqa: E402

from support.known_routes import find_out_once  # noqa: E402

from simulation.flood import commits_beside_a_flood  # noqa: E402
from simulation.guards import GUARDS, without  # noqa: E402
from simulation.members import a_group_in_a_storm  # noqa: E402
from simulation.queue_storm import queues_in_a_storm  # noqa: E402
from simulation.replica_storm import (  # noqa: E402
    REPLICA_COUNT,
    a_super_stream_on_replicas_in_a_storm,
    replicas_in_a_storm,
)
from simulation.run import (  # noqa: E402
    STORM_SECONDS,
    Course,
    Simulation,
    replay_line,
    simulate,
)
from simulation.super_storm import a_super_stream_in_a_storm  # noqa: E402
from simulation.tables import ROUNDS, streams_come_and_go  # noqa: E402
from simulation.tier_storm import (  # noqa: E402
    TIER_COUNTS,
    replicas_and_two_tiers_in_a_storm,
    three_tiers_in_a_storm,
    two_tiers_in_a_storm,
)

TWIN_QUIET_SECONDS = 30.0
# A life of a service lasts for some virtual seconds, and most of its time went into its routes and
# settings.
find_out_once()

COURSES: dict[str, Course] = {
    "--group": a_group_in_a_storm,
    "--super": a_super_stream_in_a_storm,
    "--queues": queues_in_a_storm,
    f"--replicas {REPLICA_COUNT}": replicas_in_a_storm,
    f"--super --replicas {REPLICA_COUNT}": a_super_stream_on_replicas_in_a_storm,
    "--tiers 2": two_tiers_in_a_storm,
    "--tiers 3": three_tiers_in_a_storm,
    f"--replicas {REPLICA_COUNT} --tiers 2": replicas_and_two_tiers_in_a_storm,
}
OPTIONS = {course.__name__: option for option, course in COURSES.items()}
"""Of the courses that have one."""
SEARCHED_SEEDS = 40
"""Up to which one that misses a guard is searched, where no known seed does any more."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim")
    parser.add_argument(
        "seeds",
        help="a seed, FROM..TO, seeds with commas between them, `guards`: each guard taken away, `tables`: streams come and go, or "
        "`flood`: commits beside writers that never pause",
    )
    parser.add_argument(
        "--storm-seconds", type=float, default=STORM_SECONDS, help="of trouble, virtual"
    )
    parser.add_argument("--streams", type=int, default=700, help="in each round of `tables`")
    parser.add_argument(
        "--troubles",
        choices=(
            "all",
            "crashes",
            "clocks",
            "jams",
            "ahead",
            "losses",
            "leaderless",
            "ledgers",
            "power",
            "backups",
            "disks",
            "cuts",
            "moves",
            "drives",
        ),
        default="all",
    )
    parser.add_argument(
        "--guard",
        default="",
        help="of `guards`, those whose names have this; with the option of a course, its own",
    )
    courses = parser.add_mutually_exclusive_group()
    courses.add_argument(
        "--group", action="store_true", help="one stream that the members of a consumer group share"
    )
    courses.add_argument(
        "--super", action="store_true", help="a super stream that grows, and a group that shares it"
    )
    courses.add_argument(
        "--queues", action="store_true", help="two nodes of queues, their publishers and workers"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        nargs="?",
        const=REPLICA_COUNT,
        choices=(REPLICA_COUNT,),
        help="three ingest nodes, each of which holds every stream",
    )
    parser.add_argument(
        "--tiers",
        type=int,
        nargs="?",
        const=TIER_COUNTS[0],
        choices=TIER_COUNTS,
        help="streams of so many tiers, whose fragments move between three drives",
    )
    given = parser.parse_args()
    storm: float = given.storm_seconds
    course = course_of(given)
    if course is None:
        parser.error("these options do not go together")
    if given.seeds == "tables":
        return look_at_tables(given.streams)
    if given.seeds == "flood":
        return look_at_flood()
    if given.seeds == "guards":
        return remove_guards(storm, given.guard, None if course is Simulation.run else course)
    first, _, last = given.seeds.partition("..")
    if last:
        return run_many(range(int(first), int(last) + 1), storm, given.troubles, course)
    if "," in given.seeds:
        seeds = [int(seed) for seed in given.seeds.split(",") if seed]
        return run_many(seeds, storm, given.troubles, course)
    return replay(int(first), storm, given.troubles, course)


def course_of(given: argparse.Namespace) -> Course | None:
    """What the options ask for; None where nothing is."""
    names = ("group", "super", "queues", "replicas", "tiers")
    chosen = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name in names
        if (value := getattr(given, name))
    ]
    return COURSES.get(" ".join(chosen)) if chosen else Simulation.run


def replay(seed: int, storm_seconds: float, troubles: str, course: Course) -> int:
    outcome = simulate(
        seed, storm_seconds=storm_seconds, troubles=troubles, echo=print, course=course
    )
    print(f"seed {seed}: {outcome.failure or 'holds'}; story {outcome.digest}")
    return int(outcome.failure is not None)


def run_many(seeds: Sequence[int], storm_seconds: float, troubles: str, course: Course) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        outcome = simulate(seed, storm_seconds=storm_seconds, troubles=troubles, course=course)
        clear_away()
        counts.update(outcome.counts)
        if outcome.failure is not None:
            failed.append(seed)
            print(f"seed {seed} FAILED: {outcome.failure}")
            option = OPTIONS.get(course.__name__, "")
            replayed = replay_line(seed, storm_seconds, troubles, option)
            print(*outcome.lines[-5:], replayed, sep="\n")
        else:
            took = time.monotonic() - began
            print(f"seed {seed} holds, story {outcome.digest}, {took:.0f} s")
        sys.stdout.flush()
    print(f"{len(seeds)} seeds, {len(failed)} failed: {failed}; {dict(counts)}")
    return int(bool(failed))


def look_at_tables(count: int) -> int:
    """Whether no table of any service grows with streams that are gone."""
    outcome = simulate(1, course=lambda simulation: streams_come_and_go(simulation, count))
    told = f"{outcome.counts['tables']} tables after {ROUNDS} rounds of {count} streams"
    print(f"{told}: {outcome.failure or 'none grew'}")
    return int(outcome.failure is not None)


def look_at_flood() -> int:
    """Whether commits of two parts pass beside writers that never pause."""
    outcome = simulate(1, course=commits_beside_a_flood)
    told = {name: outcome.counts[name] for name in ("commits acknowledged", "appends acknowledged")}
    print(f"{told} in {outcome.counts['seconds']} s: {outcome.failure or 'all pass'}")
    return int(outcome.failure is not None)


def remove_guards(storm_seconds: float, part: str, course: Course | None) -> int:
    """Whether every guard is missed by a seed that holds as long as the guard is there; `part` is in
    the names of those that are looked at, and they are of the course, if there is one."""
    seen = 0
    whole: dict[tuple[int, str], bool] = {}
    wanted = [
        name for name, guard in GUARDS.items() if part in name and course in (None, guard.course)
    ]
    for guard in wanted:
        told = miss(guard, storm_seconds, whole)
        seen += told is not None
        print(f"without {guard}: {told or 'NOT SEEN'}")
        sys.stdout.flush()
    print(f"{seen} of {len(wanted)} guards are missed")
    return int(seen < len(wanted))


def miss(guard: str, storm_seconds: float, whole: dict[tuple[int, str], bool]) -> str | None:
    """What the first seed that misses the guard finds; `whole` remembers which seeds hold with it.

    The seeds that are known for it come first, then all others up to a bound: whatever changes in
    a service makes other stories of the same seeds, and the guard is missed by others of them.
    """
    _, known, troubles, course = GUARDS[guard]

    def failure(seed: int) -> str | None:
        outcome = simulate(
            seed,
            storm_seconds=storm_seconds,
            quiet_seconds=TWIN_QUIET_SECONDS,
            troubles=troubles,
            course=course,
        )
        clear_away()
        return outcome.failure

    others = [seed for seed in range(1, SEARCHED_SEEDS + 1) if seed not in known]
    for seed in [*known, *others]:
        with without(guard):
            found = failure(seed)
        if found is None:
            continue
        # A seed that fails anyway has nothing to say about this guard.
        run = seed, f"{course.__name__} {troubles}"
        if run not in whole:
            whole[run] = failure(seed) is None
        if whole[run]:
            hint = "" if seed in known else " (name it in guards.py: no known seed fails)"
            return f"seed {seed} fails: {found}{hint}"
    return None


def clear_away() -> None:
    """What a run left. What stays all the same, as killed processes do, is not looked at again."""
    gc.collect()
    gc.freeze()


def forget(_: object) -> None:
    """What a killed process would have done in a `finally` is nobody's business."""


sys.unraisablehook = forget
warnings.simplefilter("ignore")
# Not while a run goes on, which would make another story of it; and what is imported stays.
gc.disable()
gc.freeze()
code = main()
sys.stdout.flush()
# At once: what is left of processes that were killed must not be cleaned up.
os._exit(code)
