"""Verify: read every fragment of a range in Spark's workers, and report all that is wrong.

It checks the checksum of every chunk and of every object, that offsets continue without a hole
within fragments and between them, that index and chunks agree, and that objects are what the
manifest says about them. Objects that the manifest does not name are not looked for: that is
garbage collection (`bottomless admin gc`).

Given a directory for the report, a job continues where an earlier run was:

    verify.json          stream, its id, and the range, which do not change any more
    fragments/A-B.parquet  a row per fragment of the offsets A to B; written round by round
    report.json          the verdict; the job is done

After a crash at any step what is there is whole, since files appear by renaming. The next run takes
range and id from the first, continues after the last of the second, and does the round that was
lost again; once the third is there, the job is done. It is the same from another machine that sees
the directory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from bottomless.errors import Code, InvalidRequest, NotFound, OffsetGone, StoreError, Unavailable
from bottomless.model.limits import MIB
from bottomless.model.offset_spec import parse_timestamp
from bottomless.spark.jobs.fragment_check import Checked, Fault, Listed, check_fragment
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.tasks import run_in_workers
from bottomless.spark.jobs.verify_report import REPORT, Book, Verdict
from bottomless.spark.leases import Lease, renew_lease
from bottomless.spark.options import Mode, Options, parse_options
from bottomless.spark.partitions import leased, place_of
from bottomless.spark.plan import Stored
from bottomless.spark.service import Source
from bottomless.spark.snapshot import Snapshot, take_snapshot
from bottomless.spark.store import Counts, Objects, StorePlace
from bottomless.spark.ways import Ways

ROUND_SIZE: Final = 256 * 1024 * MIB
"""Bytes that are verified before the report is extended: what a crash costs at most."""
ROUND_COUNT: Final = 10_000
"""Fragments of a round, which the driver holds."""
_CACHED_SIZE: Final = 2 * MIB


def verify(
    spark: SparkSession,
    options: Mapping[str, str],
    report: str | None = None,
    round_size: int = ROUND_SIZE,
) -> Verdict:
    """Verify what object storage holds of a stream.

    `options` are those of a read: url and stream, a range, how workers reach the store. Mode
    `reader` is refused, since the reader hides damage that it can work around. Fragments that
    extend beyond the range are verified whole.

    Raises:
        InvalidRequest: the mode is `reader`, or the report is of another stream, or done.
        Unavailable: a task could not do its work. Damage is no error but a fault in the report.
    """
    chosen = parse_options({**options, "includeTail": "false"})
    if chosen.mode is Mode.READER:
        raise InvalidRequest("objects are verified by who reads them: mode is not reader")
    book = None if report is None else Book(Place.named(report))
    snapshot = take_snapshot(chosen) if book is None else book.snapshot(chosen)
    verdict = Verdict(chosen.stream, *snapshot)
    for row in () if book is None else book.rows():
        verdict.add(row)
    first = snapshot.first_offset if book is None else book.next_offset
    rest = snapshot._replace(first_offset=first)
    with leased(chosen, rest) as lease:
        for items in rounds_of(chosen, rest, round_size):
            rows = _verify_round(spark, chosen, snapshot, lease, items)
            for row in rows:
                verdict.add(row)
            if book is not None:
                book.add(rows, first, items.next_offset)
            first = items.next_offset
    if book is not None:
        book.close(verdict)
    return verdict


@dataclass(slots=True)
class Round:
    """Fragments of one store, one after the other, and what is wrong with the list itself."""

    next_offset: int
    fragments: list[Listed] = field(default_factory=list)
    place: StorePlace | None = None
    size: int = 0
    faults: list[Fault] = field(default_factory=list)


def rounds_of(options: Options, snapshot: Snapshot, size: int) -> Iterator[Round]:
    """List the fragments of a range, in rounds of about `size` bytes, each of one store."""
    from bottomless.client import Client  # noqa: PLC0415  # executors have no library

    first, end = snapshot.first_offset, snapshot.next_offset
    if first >= end:
        return
    query: dict[str, int | str] = {"from_offset": first, "to_offset": end}
    if options.mode in (Mode.AUTO, Mode.DIRECT):
        query["locations"] = "true"
    held = Round(first)
    expected: int | None = None
    with Client(options.url) as client:
        for item in client.list_fragments(options.stream, query, stream_id=snapshot.stream_id):
            is_gap = item.get("id") is None
            place = None if is_gap else place_of(item.get("store"), options.s3)
            if held.fragments and not is_gap and place != held.place:
                # A task opens one store.
                yield held
                held = Round(held.next_offset)
            if expected is not None and item["first_offset"] != expected:
                sentence = f"the list goes on at {item['first_offset']}, not at {expected}"
                held.faults.append(Fault("manifest", expected, None, sentence))
            expected = held.next_offset = item["last_offset"] + 1
            if is_gap:
                # A gap was given up for good, and has no object.
                continue
            held.place = place
            held.fragments.append(_listed(item))
            held.size += item["size_bytes"]
            if held.size >= size or len(held.fragments) >= ROUND_COUNT:
                yield held
                held = Round(held.next_offset)
        if expected is not None and expected < end:
            sentence = f"the list ends before {expected}, not before {end}"
            held.faults.append(Fault("manifest", expected, None, sentence))
    if held.fragments or held.faults:
        yield held


def _listed(item: Mapping[str, Any]) -> Listed:
    return Listed(
        item["id"],
        item.get("object_key"),
        item["first_offset"],
        item["last_offset"] + 1,
        parse_timestamp(item["first_timestamp"]),
        parse_timestamp(item["last_timestamp"]),
        item["record_count"],
        item["size_bytes"],
        item["index_position"],
        int(item["crc32c"], 16),
    )


def _verify_round(
    spark: SparkSession,
    options: Options,
    snapshot: Snapshot,
    lease: Lease | None,
    items: Round,
) -> list[dict[str, Any]]:
    source = Source(options.url, options.stream, snapshot.stream_id)
    work = partial(_work, options, source, items.place, lease)
    shares = _shares(items.fragments, options.target_partition_bytes, options.min_partitions)
    rows = run_in_workers(spark, work, shares, REPORT, f"verify {options.stream}")
    if items.faults:
        first = items.fragments[0].first_offset if items.fragments else items.next_offset
        rows.append(_row(None, first, items.next_offset, 0, Checked(0, 0, items.faults)))
    return rows


def _shares(fragments: Sequence[Listed], target: int, least: int) -> list[list[Listed]]:
    """Consecutive fragments that one task reads."""
    wanted = min(target, max(1, sum(one.size for one in fragments) // least))
    shares: list[list[Listed]] = []
    held = wanted
    for one in fragments:
        if held >= wanted:
            shares.append([])
            held = 0
        shares[-1].append(one)
        held += one.size
    return shares


def _work(
    options: Options,
    source: Source,
    place: StorePlace | None,
    lease: Lease | None,
    fragments: Sequence[Listed],
) -> Iterator[pa.RecordBatch]:
    """What a task does with its share."""
    renew_lease(source, lease)
    ways = Ways(options.mode, source, fragments[-1].next_offset, place, options.s3.ca, Counts())
    rows = []
    for listed in fragments:
        checked = _checked(ways, listed, source, options)
        if checked is not None:
            rows.append(
                _row(
                    listed.fragment_id,
                    listed.first_offset,
                    listed.next_offset,
                    listed.size,
                    checked,
                )
            )
    yield pa.RecordBatch.from_pylist(rows, schema=REPORT)


def _checked(ways: Ways, listed: Listed, source: Source, options: Options) -> Checked | None:
    """What is found of one object, None where it was trimmed meanwhile and is gone."""
    stored = Stored(
        listed.fragment_id,
        listed.object_key,
        listed.first_offset,
        listed.next_offset,
        listed.size,
        listed.index_position,
    )
    failure: StoreError | None = None
    for way in ways.open():
        try:
            return check_fragment(
                partial(_read, way.objects, stored),
                listed,
                source.stream_id,
                _piece_size(ways.place, options),
            )
        except (NotFound, OffsetGone) as error:
            if error.code not in {Code.DATA_MISSING, Code.OFFSET_TRIMMED}:
                raise
            if _is_trimmed(source, listed):
                return None
            fault = Fault("object", listed.first_offset, None, "there is no such object")
            return Checked(0, 0, [fault])
        except Unavailable as error:
            failure = error
            if options.mode is Mode.AUTO:
                ways.leave(way)
    raise failure or Unavailable("this worker cannot reach the objects; try another mode")


def _piece_size(place: StorePlace | None, options: Options) -> int:
    """Bytes that are read at once: from a directory so few that they are still in the processor's cache
    when their checksums are made."""
    is_near = place is not None and place.kind == "file"
    return min(_CACHED_SIZE, options.reading.range_size) if is_near else options.reading.range_size


def _read(objects: Objects, stored: Stored, start: int, size: int) -> bytes:
    return objects.read(stored, start, size)


def _is_trimmed(source: Source, listed: Listed) -> bool:
    from bottomless.spark.service import ask_json  # noqa: PLC0415

    floor: int = ask_json(source, "offsets", {})["first_offset"]
    return listed.next_offset <= floor


def _row(
    fragment_id: str | None, first: int, end: int, size: int, checked: Checked
) -> dict[str, Any]:
    return {
        "fragment_id": fragment_id,
        "first_offset": first,
        "next_offset": end,
        "size": size,
        "chunks": checked.chunk_count,
        "records": checked.record_count,
        "faults": [fault._asdict() for fault in checked.faults],
    }
