"""A small synchronous client: one method a request, errors as `StoreError`.

It neither batches nor retries: what was sent once was sent once, and the error's
`outcome` says whether a write that failed may be stored.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from bottomless.client.follow import FollowCalls
from bottomless.client.streams import StreamCalls
from bottomless.client.upkeep import UpkeepCalls
from bottomless.client.wire import (
    ARROW,
    JSON,
    LIST_PAGE_SIZE,
    OCTETS,
    members,
    segment,
    stream_path,
)
from bottomless.errors import Code, Unavailable, WrongOffset
from bottomless.model.limits import PAGE_SIZE_MAX
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import parse_timestamp


class Appended(NamedTuple):
    """Where an append was stored."""

    first_offset: int
    next_offset: int
    timestamp: int


class Offsets(NamedTuple):
    """Bounds of a stream. All `next` bounds are exclusive."""

    stream_id: StreamId
    first_offset: int
    next_offset: int
    object_store_next_offset: int
    """First offset that object storage does not hold yet."""


class Page(NamedTuple):
    """Records as JSON values, and where to go on."""

    records: list[dict[str, Any]]
    next_offset: int
    up_to_date: bool
    gaps: Sequence[Mapping[str, int]] = ()
    """Offsets that the page jumped over, since they were given up for good."""


class ArrowPage(NamedTuple):
    """Records as an Arrow table with `offset` and `timestamp` columns, and where to go on."""

    table: pa.Table
    next_offset: int


class Fragment(NamedTuple):
    """One fragment of the list, and where its object lies if that was asked for."""

    fragment_id: str
    first_offset: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int
    size: int
    """Bytes of the whole object."""
    index_position: int
    """Byte of the object at which index and footer start."""
    object_key: str | None
    store: Mapping[str, Any] | None
    """Kind (`file` or `s3`), root and endpoint of the store."""


class BottomlessClient(StreamCalls, UpkeepCalls, FollowCalls):
    """Talks to one server, or to the proxy in front of several."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> Appended:
        """Append records in their JSON form, all or none."""
        body = orjson.dumps({"records": list(records)})
        return self.append_body(name, body, JSON)

    def append_arrow(self, name: str, rows: pa.Table | pa.RecordBatch) -> Appended:
        """Append the rows of an Arrow table with the columns of api.md, section 3, all or none."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write(rows)
        return self.append_body(name, sink.getvalue().to_pybytes(), ARROW)

    def append_body(self, name: str, body: bytes, media_type: str) -> Appended:
        """Append a body that is encoded already."""
        path = f"{stream_path(name)}/records"
        value = members(self._send("POST", path, content=body, type_sent=media_type))
        return Appended(
            value["first_offset"], value["next_offset"], parse_timestamp(value["timestamp"])
        )

    def append_numbered(
        self, name: str, body: bytes, media_type: str, *, producer: str, epoch: int, sequence: int
    ) -> dict[str, Any]:
        """Append as a strict producer whose first record has this number.

        The same again stores nothing twice. Offsets are null in the answer to a repeat whose
        original is not remembered.
        """
        numbers = {
            "Producer-Id": producer,
            "Producer-Epoch": str(epoch),
            "Producer-Seq": str(sequence),
        }
        path = f"{stream_path(name)}/records"
        return members(
            self._send("POST", path, content=body, type_sent=media_type, headers=numbers)
        )

    def raise_producer_epoch(self, name: str, producer: str) -> dict[str, Any]:
        """Fence older instances of a producer; answers `epoch`, and `last_seq` to go on after."""
        return self._send_json("POST", f"{stream_path(name)}/producers/{segment(producer)}/epoch")

    def read(self, name: str, offset: int | str, **parameters: int | str) -> Page:
        """Read one page from an offset or an offset spec."""
        answer = self._send("GET", f"{stream_path(name)}/records", {"offset": offset, **parameters})
        value = members(answer)
        return Page(
            value["records"], value["next_offset"], value["up_to_date"], value.get("gaps") or ()
        )

    def read_arrow(self, name: str, offset: int | str, **parameters: int | str) -> ArrowPage:
        """Read one page as Arrow; its size is bounded by bytes."""
        query = {
            "offset": offset,
            "max_bytes": PAGE_SIZE_MAX,
            **parameters,
        }
        answer = self._send("GET", f"{stream_path(name)}/records", query, type_wanted=ARROW)
        with pa.ipc.open_stream(answer.content) as reader:
            table = reader.read_all()
        return ArrowPage(table, int(answer.headers["Page-Next-Offset"]))

    def resolve(self, name: str, spec: str, **parameters: int | str) -> dict[str, Any]:
        """The offset where a read with this offset spec would start."""
        path = f"{stream_path(name)}/offsets/resolve"
        return members(self._send("GET", path, {"spec": spec, **parameters}))

    def bounds(self, name: str) -> dict[str, Any]:
        """Everything that is known of a stream's offsets and times."""
        return members(self._send("GET", f"{stream_path(name)}/offsets"))

    def offsets(self, name: str) -> Offsets:
        value = self.bounds(name)
        return Offsets(
            StreamId(value["stream_id"]),
            value["first_offset"],
            value["next_offset"],
            value["object_store_next_offset"],
        )

    def wait_until_stored(self, name: str, *, timeout_seconds: float) -> Offsets:
        """Wait until object storage holds everything that the stream has now.

        Raises:
            Unavailable: it did not within the time.
        """
        deadline = time.monotonic() + timeout_seconds
        wanted = self.offsets(name).next_offset
        while True:
            offsets = self.offsets(name)
            if offsets.object_store_next_offset >= wanted:
                return offsets
            if time.monotonic() > deadline:
                raise Unavailable(
                    "object storage did not catch up in time",
                    facts={
                        "object_store_next_offset": offsets.object_store_next_offset,
                        "wanted": wanted,
                    },
                )
            time.sleep(0.05)

    def fragments(
        self,
        name: str,
        *,
        first_offset: int,
        next_offset: int,
        locations: bool = False,
        stream_id: StreamId | None = None,
    ) -> Iterator[Fragment]:
        """Every fragment that holds a record of the range, in order, page by page.

        The first and the last may stick out of the range; what object storage does not
        hold yet is not in the list.

        Raises:
            WrongOffset: `stream-replaced`, the name is that of another stream than `stream_id`.
        """
        query: dict[str, int | str] = {"from_offset": first_offset, "to_offset": next_offset}
        if locations:
            query["locations"] = "true"
        for item in self.list_fragments(name, query, stream_id=stream_id):
            # A gap has no object: nothing was ever stored under its offsets.
            if item.get("id") is not None:
                yield _fragment(item)

    def list_fragments(
        self,
        name: str,
        query: Mapping[str, int | str] | None = None,
        *,
        stream_id: StreamId | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The same list as it is answered, gaps included."""
        asked = {"limit": LIST_PAGE_SIZE, **(query or {})}
        while True:
            value = members(self._send("GET", f"{stream_path(name)}/fragments", asked))
            if stream_id not in {None, value["stream_id"]}:
                raise WrongOffset("another stream has taken the name", code=Code.STREAM_REPLACED)
            yield from value["fragments"]
            token = value.get("next_page_token")
            if not token:
                return
            asked["page_token"] = token

    @contextmanager
    def fragment_bytes(self, name: str, fragment_id: str) -> Iterator[Iterator[bytes]]:
        """The object of one fragment, piece by piece."""
        path = f"{stream_path(name)}/fragments/{segment(fragment_id)}"
        with self._open(path, {}, OCTETS) as answer:
            yield answer.pieces


def _fragment(item: Mapping[str, Any]) -> Fragment:
    return Fragment(
        fragment_id=item["id"],
        first_offset=item["first_offset"],
        next_offset=item["last_offset"] + 1,
        first_timestamp=parse_timestamp(item["first_timestamp"]),
        last_timestamp=parse_timestamp(item["last_timestamp"]),
        size=item["size_bytes"],
        index_position=item["index_position"],
        object_key=item.get("object_key"),
        store=item.get("store"),
    )
