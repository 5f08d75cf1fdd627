"""`./dev chaos`: the same run as in CI, for as long as somebody wants."""

import argparse
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from support.seaweed import running_seaweed

from chaos.events import REPLICA_TROUBLES, TROUBLES
from chaos.load import Pace
from chaos.run import MORE_REPLICATED, STREAMS, Plan, run_chaos

LOST_EVERY: Final = 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="SIGKILLs, in all (default: 60)")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--short", action="store_true", help="the store is never away for minutes")
    parser.add_argument("--aloud", action="store_true", help="tell every event as it happens")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.1,
        help="seconds between two appends of a producer, at most",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new trouble then")
    parser.add_argument("--nodes", type=int, choices=(2, 3), default=2, help="ingest nodes")
    parser.add_argument(
        "--replicas",
        type=int,
        choices=(1, 3),
        default=1,
        help="on how many of three nodes every stream lies; then there is nothing but streams",
    )
    parser.add_argument(
        "--lose-disks",
        action="store_true",
        help=f"every {LOST_EVERY}th kill takes the disk of an ingest node along, for good",
    )
    parser.add_argument("--directory", type=Path, help="keeps all files; it must not exist yet")
    given = parser.parse_args()
    if given.replicas > given.nodes or (given.lose_disks and given.replicas == 1):
        parser.error("with three replicas there are three nodes, and only then disks are lost")
    replicated = given.replicas > 1
    with ExitStack() as kept:
        directory = given.directory or Path(
            kept.enter_context(tempfile.TemporaryDirectory(prefix="bottomless-chaos-"))
        )
        plan = Plan(
            given.kills,
            given.seed,
            seconds_max=given.seconds,
            long=not given.short,
            # Disks go once a trouble, so that there are more troubles where some are lost.
            strikes=(1, 2, 3, 5) if given.lose_disks else (2, 3, 5, 8),
            aloud=given.aloud,
            pace=Pace(producer_seconds=given.pause),
            growths=2,
            queues=not replicated and given.nodes == 2,
            third_node=given.nodes > 2,
            streams=MORE_REPLICATED if replicated else STREAMS,
            members=0 if replicated else 2,
            troubles=REPLICA_TROUBLES if replicated else TROUBLES,
            lost_disks=LOST_EVERY if given.lose_disks else 0,
        )
        with running_seaweed(directory / "seaweed") as s3:
            report = run_chaos(directory / "run", s3, plan)
    print(report)
    for who, whose in (
        ("load and links", resource.RUSAGE_SELF),
        ("services", resource.RUSAGE_CHILDREN),
    ):
        used = resource.getrusage(whose)
        print(f"  {used.ru_utime + used.ru_stime:.0f} s of CPU for {who}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
