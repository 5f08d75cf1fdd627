"""The rows: one for each goal, and those that explain them."""

from typing import Final

from bench.rows import (
    append,
    clients,
    cost,
    filters,
    groups,
    imports,
    instructions,
    latency,
    leaderless_append,
    leaderless_commit,
    leaderless_cost,
    leaderless_data,
    many,
    objects,
    processes,
    queues,
    replay,
    scale,
    spark,
    spark_supers,
    startup,
    streams,
    supers,
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
        *groups.ROWS,
        *supers.ROWS,
        *clients.ROWS,
        *replay.ROWS,
        *objects.ROWS,
        *cost.ROWS,
        *filters.ROWS,
        *imports.ROWS,
        *queues.ROWS,
        *leaderless_cost.ROWS,
        *leaderless_append.ROWS,
        *leaderless_commit.ROWS,
        *leaderless_data.ROWS,
        *scale.ROWS,
        *processes.ROWS,
        *instructions.ROWS,
        *startup.ROWS,
        *spark.ROWS,
        *spark_supers.ROWS,
    )
}
