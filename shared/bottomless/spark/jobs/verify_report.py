"""The result of a verification: a verdict, and a directory in which a killed run continues.

verify.py says which files there are, and what is there after a crash.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bottomless.errors import InvalidRequest
from bottomless.spark.jobs import places
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.tasks import answer_schema
from bottomless.spark.options import Options
from bottomless.spark.snapshot import Snapshot, check_same_stream, take_snapshot

FAULTS_SHOWN_MAX: Final = 1_000

_FAULT: Final = pa.struct(
    [
        ("what", pa.string()),
        ("offset", pa.int64()),
        ("position", pa.int64()),
        ("sentence", pa.string()),
    ]
)
REPORT: Final = answer_schema(
    {
        "fragment_id": pa.string(),
        "first_offset": pa.int64(),
        "next_offset": pa.int64(),
        "size": pa.int64(),
        "chunks": pa.int64(),
        "records": pa.int64(),
        "faults": pa.list_(_FAULT),
    }
)
"""A row a fragment; what is wrong between fragments is a row without an id."""


@dataclass(slots=True)
class Verdict:
    """What a verification found."""

    stream: str
    stream_id: str
    first_offset: int
    next_offset: int
    """The end (exclusive) of what was verified: the end of the range, or of object storage."""
    fragments: int = 0
    """Fragments that were read."""
    chunks: int = 0
    """Chunks that were read."""
    records: int = 0
    """Records in these chunks."""
    size: int = 0
    """Bytes of all objects."""
    fault_count: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    """The first thousand faults."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.fault_count

    def add(self, row: Mapping[str, Any]) -> None:
        """Add what was found in one fragment: a row of the report."""
        self.fragments += row["fragment_id"] is not None
        self.chunks += row["chunks"]
        self.records += row["records"]
        self.size += row["size"]
        self.fault_count += len(row["faults"])
        left = FAULTS_SHOWN_MAX - len(self.faults)
        self.faults += [
            {"fragment_id": row["fragment_id"], **fault} for fault in row["faults"][:left]
        ]

    def members(self) -> dict[str, Any]:
        """Make the members of `report.json`."""
        names = [name for name in self.__slots__ if name != "faults"]
        return {"sound": self.sound, **{n: getattr(self, n) for n in names}, "faults": self.faults}


class Book:
    """The directory of a report."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts = place / "fragments"
        self.next_offset = 0

    def snapshot(self, options: Options) -> Snapshot:
        """Find the range of an earlier run, or take a new one, which is written down first.

        Raises:
            InvalidRequest: the report is done, or is of another stream.
            WrongOffset: `stream-replaced`, another stream has taken the name.
        """
        if places.read(self._place / "report.json") is not None:
            raise InvalidRequest("the report is done; name another directory for another one")
        begun = places.read(self._place / "verify.json")
        snapshot = take_snapshot(options)
        if begun is None:
            members = {"stream": options.stream, **snapshot._asdict()}
            places.write(self._place / "verify.json", json.dumps(members).encode())
        else:
            members = json.loads(begun)
            if members["stream"] != options.stream:
                raise InvalidRequest("this report is of another stream")
            check_same_stream(members["stream_id"], snapshot.stream_id)
            snapshot = snapshot._replace(
                first_offset=members["first_offset"], next_offset=members["next_offset"]
            )
        ends = [int(name.removesuffix(".parquet").split("-")[1]) for name in self._names()]
        self.next_offset = max([snapshot.first_offset, *ends])
        return snapshot

    def rows(self) -> Iterator[dict[str, Any]]:
        """Read the rows of all rounds that were written, a row per fragment."""
        for name in self._names():
            files, path = (self._parts / name).open()
            yield from pq.read_table(path, filesystem=files).to_pylist()

    def add(self, rows: Sequence[Mapping[str, Any]], first: int, end: int) -> None:
        """Write the rows of one round, from offset `first` to `end`, exclusive."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=REPORT), sink)
        name = f"{first:020d}-{end:020d}.parquet"
        places.write(self._parts / name, sink.getvalue().to_pybytes())

    def close(self, verdict: Verdict) -> None:
        """Write the verdict, which ends the report."""
        data = json.dumps(verdict.members(), indent=2).encode()
        places.write(self._place / "report.json", data)

    def _names(self) -> list[str]:
        return [name for name in places.names(self._parts) if name.endswith(".parquet")]
