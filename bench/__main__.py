"""`./dev bench [NAME …] [--rounds N] [--seconds S]`: the goals of docs/performance.md, measured.

Without a name all rows run, one after the other; `--list` names them. Every row starts the
servers that it compares, lets them take turns, and prints ratios with their spread. Figures go to
bench/results/results.json, row by row, so that rows may be measured at different times.
"""

import argparse
import sys

from bench.place import CACHE
from bench.report import draw, keep, show
from bench.rows import ROWS
from bench.tables import publish
from bench.turns import play


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows, or beginnings of names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one side in one round")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--dry", action="store_true", help="keep nothing in bench/results")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/performance.md from what is kept"
    )
    given = parser.parse_args()
    if given.publish:
        publish({row.name: row.title for row in ROWS.values()})
        draw()
        return 0
    if given.list:
        for row in ROWS.values():
            print(f"{row.name:<20}{row.title}")
        return 0
    unknown = [name for name in given.names if not any(row.startswith(name) for row in ROWS)]
    if unknown:
        print(f"no row begins with {unknown[0]}; --list names them", file=sys.stderr)
        return 2
    CACHE.mkdir(exist_ok=True)
    for row in ROWS.values():
        if given.names and not any(row.name.startswith(name) for name in given.names):
            continue
        print(f"{row.name}: {row.title}", flush=True)
        outcome = play(row, given.rounds, given.seconds)
        show(outcome)
        if not given.dry:
            keep(outcome)
    if not given.dry:
        draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
