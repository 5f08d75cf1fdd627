"""The rows: one for each goal, and those that explain them."""

from typing import Final

from bench.rows import (
    append,
    clients,
    cost,
    instructions,
    latency,
    many,
    objects,
    processes,
    replay,
    scale,
    spark,
    startup,
    streams,
    under_load,
)
from bench.turns import Row

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        *append.ROWS,
        *latency.ROWS,
        *under_load.ROWS,
        *many.ROWS,
        *streams.ROWS,
        *clients.ROWS,
        *replay.ROWS,
        *objects.ROWS,
        *cost.ROWS,
        *scale.ROWS,
        *processes.ROWS,
        *instructions.ROWS,
        *startup.ROWS,
        *spark.ROWS,
    )
}
