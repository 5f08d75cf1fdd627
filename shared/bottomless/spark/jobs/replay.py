"""Replay: write the records of a range of a stream once more, into another stream.

The range is cut into rounds of the same number of offsets, and each round is one append with its
number (rounds.py). The name of the producer says what is replayed: the job's own name, the id of
the stream, the range, the size of a round, and a digest of filter and expression. So a run that was
killed is found again in the target itself, from any machine, with the range that it had, even if
that was given relative to the end.

What is there after a crash at each step: whole rounds up to some number, and of the next one
nothing, or the first parts if it is large. The next run does the last round again, which the target
knows by its number, and continues. Before the first round there is no trace; then the range is
resolved anew, and nothing was written.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bottomless.errors import Code, InvalidRequest, WrongOffset
from bottomless.model.filter import Filter
from bottomless.model.names import StreamId, parse_stream_id, parse_stream_name
from bottomless.spark.jobs.rounds import ROUND_SIZE, rounds_done, write_frame
from bottomless.spark.jobs.watching import watched
from bottomless.spark.options import COLUMNS, Options, parse_options, service_url
from bottomless.spark.pages import record_size_at
from bottomless.spark.partitions import leased, list_fragments
from bottomless.spark.positions import position_of
from bottomless.spark.service import Source
from bottomless.spark.session import register
from bottomless.spark.sink_options import TXN_SIZE_MAX
from bottomless.spark.snapshot import Snapshot, check_same_stream, take_snapshot
from bottomless.spark.staging import Target, producers

_COPIED: Final = tuple(name for name in COLUMNS if name not in {"offset", "timestamp"})
_RECORD_SIZE_MIN: Final = 64
"""Bytes that a record is taken for at least, so that a round is no more than some million."""
_ROUND_SECONDS: Final = 5
"""How long a round takes where the rate is bounded, so that the rate is kept over a short time,
too."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


class Plan(NamedTuple):
    """What is replayed, as the producer's name says it. `next_offset` is exclusive."""

    stream_id: StreamId
    first_offset: int
    next_offset: int
    round_offsets: int
    digest: str

    def producer_id(self, name: str) -> str:
        """Make the name of the producer that writes this replay; `name` is the replay's own."""
        return f"{name}.{self.stream_id}.{self.first_offset}.{self.next_offset}.{self.round_offsets}.{self.digest}"


@dataclass(slots=True)
class Replayed:
    """What one run has done."""

    first_offset: int
    next_offset: int
    """The next offset of the source; the target has everything before it."""
    rounds: int = 0
    """Rounds of this run. Rounds done before a crash may be done once more, with no effect."""
    rows: int = 0
    """Rows of these rounds, whether the target had them already or not."""


def replay(
    spark: SparkSession,
    options: Mapping[str, str],
    to: str,
    name: str,
    *,
    to_url: str | None = None,
    where: str | None = None,
    select: Sequence[str] | None = None,
    records_per_second: float | None = None,
    round_size: int = ROUND_SIZE,
) -> Replayed:
    """Write the records of a range into the stream `to`, which must exist, each once.

    `options` are those of a read: url and stream, a range, filter values. `where` is a condition
    and `select` a list of expressions in SQL, over all columns that a stream has; what is selected
    must be columns of the sink. Without `select` a record is copied whole, except for its offset
    and time. `records_per_second` bounds what is read. `round_size` is in bytes.

    `name` is that of this replay: a second run of the same replay under the same name continues
    where the first was, or finds that all is done; another replay needs another name.

    Raises:
        WrongOffset: this name has replayed something else into this stream, or another stream has
            taken the name of the source.
        InvalidRequest: what is selected is no record, or the name is not allowed.
    """
    chosen = parse_options({**options, "columns": ",".join(COLUMNS)})
    if len(name) > TXN_SIZE_MAX or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"a replay's name has letters, digits, '_' and '-', at most {TXN_SIZE_MAX}"
        )
    target = Target(service_url("to_url", to_url or chosen.url), parse_stream_name(to))
    digest = _digest(chosen, where, select)
    plan = _begun(target, name, digest) or _new_plan(chosen, digest, round_size, records_per_second)
    whole = replace(chosen, starting=None, ending=None)
    check_same_stream(plan.stream_id, take_snapshot(whole).stream_id)
    producer_id = plan.producer_id(name)
    # The last one that is begun may lack parts.
    number = max(0, rounds_done(target, producer_id) - 1)
    done = Replayed(plan.first_offset, plan.next_offset)
    began = time.monotonic()
    first = begun = plan.first_offset + number * plan.round_offsets
    if first < plan.next_offset:
        # The first that takes Spark: mistakes are answered without it.
        register(spark)
    while first < plan.next_offset:
        end = min(first + plan.round_offsets, plan.next_offset)
        frame = _frame(spark, options, plan, first, end)
        frame = frame if where is None else frame.where(where)
        frame = frame.select(*_COPIED) if select is None else frame.selectExpr(*select)
        title = f"replay {chosen.stream} to offset {end} of {plan.next_offset}"
        with leased(chosen, Snapshot(plan.stream_id, first, end)), watched(spark, title):
            done.rows += write_frame(frame, target, producer_id, number)
        done.rounds += 1
        number += 1
        first = end
        if records_per_second is not None and first < plan.next_offset:
            # The time itself is what is wanted: the caller gave a rate.
            time.sleep(max(0, (first - begun) / records_per_second - (time.monotonic() - began)))
    return done


def _begun(target: Target, name: str, digest: str) -> Plan | None:
    """What a run before has begun under this name."""
    for producer_id in producers(target):
        mine, _, rest = producer_id.partition(".")
        if mine != name:
            continue
        try:
            stream_id, first, end, size, found = rest.split(".")
            plan = Plan(parse_stream_id(stream_id), int(first), int(end), int(size), found)
        except (ValueError, InvalidRequest):
            # Another producer whose name begins so.
            continue
        if plan.digest != digest:
            raise WrongOffset(
                "this name has replayed something else into this stream; take another name",
                code=Code.PRODUCER_MODE_CONFLICT,
            )
        return plan
    return None


def _new_plan(
    options: Options, digest: str, round_size: int, records_per_second: float | None
) -> Plan:
    from bottomless.client import Client  # noqa: PLC0415  # executors have no library

    snapshot = take_snapshot(options)
    first, end = snapshot.first_offset, snapshot.next_offset
    size = count = 0
    with Client(options.url) as client:
        for fragment in list_fragments(client, options, snapshot):
            size += fragment.size
            count += fragment.next_offset - fragment.first_offset
    source = Source(options.url, options.stream, snapshot.stream_id)
    average = size / count if count else record_size_at(source, first, end) if first < end else 0
    offsets = max(1, int(round_size / max(average, _RECORD_SIZE_MIN)))
    if records_per_second is not None:
        offsets = max(1, min(offsets, int(records_per_second * _ROUND_SECONDS)))
    return Plan(snapshot.stream_id, first, end, offsets, digest)


def _digest(options: Options, where: str | None, select: Sequence[str] | None) -> str:
    """A digest of all that decides which records a range gives."""
    wanted = options.reading.wanted
    told = {
        "url": options.url,
        "stream": options.stream,
        "starting": repr(options.starting),
        "ending": repr(options.ending),
        "filter": None if wanted is None else _told(wanted),
        "where": where,
        "select": None if select is None else list(select),
    }
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _told(wanted: Filter) -> list[str | bool]:
    keys = [f"key {key.hex()}" for key in wanted.keys or ()]
    return [*(wanted.values or ()), wanted.match_unfiltered, *keys]


def _frame(
    spark: SparkSession, options: Mapping[str, str], plan: Plan, first: int, end: int
) -> DataFrame:
    kept = {
        name: text
        for name, text in options.items()
        if not name.lower().startswith(("starting", "ending", "columns", "leaseseconds"))
    }
    stream = {name.lower(): text for name, text in options.items()}["stream"]
    bounds = {
        name: json.dumps(position_of(offset, parse_stream_name(stream), plan.stream_id))
        for name, offset in (("startingOffsets", first), ("endingOffsets", end))
    }
    # Held by the round: a lease of the read itself would run on.
    read = spark.read.format("bottomless").options(
        **kept, columns=",".join(COLUMNS), leaseSeconds="0", **bounds
    )
    return read.load()
