"""`./dev bench [NAME …] [--rounds N] [--seconds S]`: the goals of docs/performance.md, measured.

Without a name all rows run, one after the other; with names those, in the order of the names.
`--list` lists them all. Every row starts the servers that it compares, lets them take turns, and
prints ratios with their spread. Figures go to bench/results/results.json, row by row, so that rows
may be measured at different times.

`--minutes M` begins no row that would not end in time, going by how long it took when it was
measured last, or by a guess. `--publish` writes docs/performance.md from all that is kept: by itself
it measures nothing, with names or `--minutes` it measures them first.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from bench.place import CACHE
from bench.plan import seconds_of
from bench.report import draw, keep, kept_rows, show
from bench.rows import ROWS
from bench.tables import publish
from bench.turns import Row, play


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
    parser.add_argument("--minutes", type=float, help="begin no row that would end later")
    given = parser.parse_args()
    if given.list:
        for row in ROWS.values():
            print(f"{row.name:<20}{row.title}")
        return 0
    unknown = [name for name in given.names if not any(row.startswith(name) for row in ROWS)]
    if unknown:
        print(f"no row begins with {unknown[0]}; --list names them", file=sys.stderr)
        return 2
    CACHE.mkdir(exist_ok=True)
    if given.names or given.minutes or not given.publish:
        measure(given)
    if given.publish:
        publish({row.name: row.title for row in ROWS.values()})
    if not given.dry or given.publish:
        draw()
    return 0


def measure(given: argparse.Namespace) -> None:
    """Run the rows that are asked for, as long as there is time, and keep each as it ends."""
    end = None if given.minutes is None else time.monotonic() + given.minutes * 60
    for row in chosen(given.names):
        rounds = min(given.rounds, row.rounds_max)
        kept = kept_rows().get(row.name)
        needs = seconds_of(kept, row.guess_seconds, rounds, given.seconds)
        if end is not None and time.monotonic() + needs > end:
            print(f"{row.name}: left out, it needs some {needs:.0f} s", flush=True)
            continue
        print(f"{row.name}: {row.title}", flush=True)
        outcome = play(row, given.rounds, given.seconds)
        show(outcome)
        if not given.dry:
            keep(outcome)


def chosen(names: Sequence[str]) -> Iterator[Row]:
    """All rows, or those that are named, each once and in the order of the names."""
    seen: set[str] = set()
    for beginning in names or [""]:
        for row in ROWS.values():
            if row.name.startswith(beginning) and row.name not in seen:
                seen.add(row.name)
                yield row


if __name__ == "__main__":
    sys.exit(main())
