"""The rows: one for each goal, and those that explain them."""

from typing import Final

from bench.rows import (
    append,
    clients,
    instructions,
    latency,
    objects,
    processes,
    replay,
    scale,
    startup,
    streams,
)
from bench.turns import Row

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        *append.ROWS,
        *latency.ROWS,
        *streams.ROWS,
        *clients.ROWS,
        *replay.ROWS,
        *objects.ROWS,
        *scale.ROWS,
        *processes.ROWS,
        *instructions.ROWS,
        *startup.ROWS,
    )
}
