"""What many waiting messages cost: the rate of work beside a few, and memory."""

from contextlib import ExitStack
from typing import Final

from bench.figures import Figure, Goal, Sides, times
from bench.pump import Load
from bench.rows.queue_sides import BATCHES, OurSide, Side
from bench.servers.ours import running_ours
from bench.turns import Row, Stage

FEW: Final = 10_000
MANY: Final = 1_000_000
MESSAGES_PER_SECOND: Final = 400_000
"""What waits for each second that a side shall run, up to all of them: small tries fill in little."""
FILL_SECONDS_MAX: Final = 1_200
CACHE_MIB: Final = 64
"""The default of BOTTOMLESS_QUEUES_LEDGER_CACHE_BYTES."""
MORE_MIB: Final = 32
WITH_FEW: Final = "ours, few waiting"
WITH_MANY: Final = "ours, many waiting"
QUEUE: Final = "waiting"


def many(seconds: float) -> int:
    """How many messages a row fills in that shall measure for so long."""
    return max(FEW, min(int(seconds * MESSAGES_PER_SECOND), MANY))


def fill(side: Side, queue: str, count: int) -> Figure:
    """Publish so many messages, and at most as many more as are on their way at once."""
    with ExitStack() as stack:
        lanes = [side.lane(queue, BATCHES.values(), 0) for _ in range(BATCHES.connections)]
        sockets = [stack.enter_context(lane.socket) for lane in lanes]
        requests = [lane.put for lane in lanes]
        load = Load(side.protocol, requests, sockets, BATCHES.batch, until=count, tree=side.tree)
        return load.run(FILL_SECONDS_MAX)


def _set_up(stage: Stage) -> None:
    for name, count in ((WITH_FEW, FEW), (WITH_MANY, many(stage.seconds))):
        directory = stage.directory / name.split()[1]
        side = OurSide(stage.stack.enter_context(running_ours(directory)))
        side.create(QUEUE)
        fill(side, QUEUE, count)
        stage.runners[name] = side.working(BATCHES, QUEUE)
    stage.notes.append(
        f"Few are {FEW:,}, many {many(stage.seconds):,}, each in a server of its own. All work at the "
        "end and at the front of the one queue, so as many wait all the time."
    )


def _more_memory(sides: Sides) -> list[float] | None:
    pairs = zip(sides.get(WITH_MANY, ()), sides.get(WITH_FEW, ()), strict=False)
    return [most.rss_mib - least.rss_mib for most, least in pairs] or None


ROWS: Final = (
    Row(
        "queues-waiting",
        "Queues: publish, receive and acknowledge while a million messages wait, or ten thousand",
        "messages",
        (
            times("≥ 0.7 x the rate with 10,000 waiting", WITH_MANY, WITH_FEW, 0.7),
            Goal(
                f"memory: at most the cache of {CACHE_MIB} MiB and {MORE_MIB} MiB more",
                _more_memory,
                at_most=CACHE_MIB + MORE_MIB,
                unit="MiB",
            ),
        ),
        _set_up,
        guess_seconds=400,
        touched_bytes=4 << 30,
    ),
)
