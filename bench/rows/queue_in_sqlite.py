"""Bodies in message files beside bodies inside the ledger: the same API, the same rounds."""

import sys
from typing import Final

from bench.figures import Goal, ratios, times
from bench.rows.queue_sides import SINGLES, OurSide, Shape
from bench.servers.ours import running_ours
from bench.turns import Row, Stage

LARGE: Final = Shape(size=64 << 10, batch=10)
SHAPES: Final = {
    "64 KiB": LARGE,
    "1 KiB": Shape(),
    "one of 1 KiB": SINGLES,
}
FILES: Final = "message files"
INSIDE: Final = "inside SQLite"
VARIANT: Final = [sys.executable, "-m", "bench.servers.bodies_in_sqlite"]
SETTINGS: Final = {"BOTTOMLESS_QUEUES_COMPACT_QUIET_MS": str(10**9)}
"""There is no file that could be compacted."""


def _set_up(stage: Stage) -> None:
    for where in (FILES, INSIDE):
        directory = stage.directory / where.replace(" ", "-")
        program = VARIANT if where == INSIDE else None
        server = stage.stack.enter_context(running_ours(directory, SETTINGS, program))
        side = OurSide(server)
        for name, shape in SHAPES.items():
            stage.runners[f"{where}, {name}"] = side.working(shape)
    stage.notes.append(
        "Batches of 10 of 64 KiB, and of 100 of 1 KiB, over 8 connections; one by one over one. A variant "
        "of the product (bench/servers/bodies_in_sqlite.py) keeps records in a table of the ledger."
    )


def _known(name: str) -> Goal:
    return Goal(
        f"{name}: message files beside SQLite",
        lambda sides: ratios(sides, f"{FILES}, {name}", f"{INSIDE}, {name}"),
    )


ROWS: Final = (
    Row(
        "queues-in-sqlite",
        "Queues: publish, receive and acknowledge, bodies in message files or inside SQLite",
        "messages",
        (
            times("64 KiB: ≥ 1.2 x inside SQLite", f"{FILES}, 64 KiB", f"{INSIDE}, 64 KiB", 1.2),
            _known("1 KiB"),
            _known("one of 1 KiB"),
        ),
        _set_up,
        touched_bytes=4 << 30,
    ),
)
