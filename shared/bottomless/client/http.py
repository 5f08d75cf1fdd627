"""A small synchronous client: one method a request, errors as `StoreError`.

It neither batches nor retries: what was sent once was sent once, and the error's
`outcome` says whether a write that failed may be stored.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx
import orjson
import pyarrow as pa

from bottomless.client.problems import error_from_problem
from bottomless.errors import Code, Outcome, Unavailable, WrongOffset
from bottomless.model.limits import PAGE_SIZE_MAX
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import parse_timestamp

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"

_FRAGMENT_PAGE_SIZE: Final = 1000
"""What a page of the fragment list holds at most, so that a plan costs few requests."""


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


class BottomlessClient:
    """Talks to one server, or to the proxy in front of several."""

    def __init__(self, url: str, *, timeout_seconds: float = 60) -> None:
        # No proxy from the environment: a stream server is named, never found.
        self._http = httpx.Client(
            base_url=url.rstrip("/"), timeout=timeout_seconds, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def create_stream(self, name: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Declare a stream; the same again is the same stream."""
        answer = self._send("PUT", _path(name), content=orjson.dumps(config or {}), type_sent=JSON)
        return _members(answer)

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
        path = f"{_path(name)}/records"
        value = _members(self._send("POST", path, content=body, type_sent=media_type))
        return Appended(
            value["first_offset"], value["next_offset"], parse_timestamp(value["timestamp"])
        )

    def read(self, name: str, offset: int | str, **parameters: int | str) -> Page:
        """Read one page from an offset or an offset spec."""
        answer = self._send("GET", f"{_path(name)}/records", {"offset": offset, **parameters})
        value = _members(answer)
        return Page(value["records"], value["next_offset"], value["up_to_date"])

    def read_arrow(self, name: str, offset: int | str, **parameters: int | str) -> ArrowPage:
        """Read one page as Arrow; its size is bounded by bytes."""
        query = {
            "offset": offset,
            "max_bytes": PAGE_SIZE_MAX,
            **parameters,
        }
        answer = self._send("GET", f"{_path(name)}/records", query, type_wanted=ARROW)
        with pa.ipc.open_stream(answer.content) as reader:
            table = reader.read_all()
        return ArrowPage(table, int(answer.headers["Page-Next-Offset"]))

    def offsets(self, name: str) -> Offsets:
        value = _members(self._send("GET", f"{_path(name)}/offsets"))
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
        query: dict[str, int | str] = {
            "from_offset": first_offset,
            "to_offset": next_offset,
            "limit": _FRAGMENT_PAGE_SIZE,
        }
        if locations:
            query["locations"] = "true"
        while True:
            value = _members(self._send("GET", f"{_path(name)}/fragments", query))
            if stream_id not in {None, value["stream_id"]}:
                raise WrongOffset("another stream has taken the name", code=Code.STREAM_REPLACED)
            for item in value["fragments"]:
                # A gap has no object: nothing was ever stored under its offsets.
                if item.get("id") is not None:
                    yield _fragment(item)
            token = value.get("next_page_token")
            if not token:
                return
            query["page_token"] = token

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, int | str] | None = None,
        *,
        content: bytes | None = None,
        type_sent: str | None = None,
        type_wanted: str = JSON,
    ) -> httpx.Response:
        headers = {"Accept": f"{type_wanted}, application/problem+json"}
        if type_sent:
            headers["Content-Type"] = type_sent
        try:
            answer = self._http.request(
                method, path, params=query, content=content, headers=headers
            )
        except httpx.TransportError as error:
            sent = method != "GET" and not isinstance(error, httpx.ConnectError)
            raise Unavailable(
                "the server does not answer", outcome=Outcome.UNKNOWN if sent else Outcome.NONE
            ) from error
        if not answer.is_success:
            raise error_from_problem(
                answer.status_code,
                _json_or_none(answer),
                retry_after=answer.headers.get("Retry-After"),
            )
        return answer


def _path(name: str) -> str:
    return f"/v1/streams/{quote(name, safe='')}"


def _members(answer: httpx.Response) -> dict[str, Any]:
    value = _json_or_none(answer)
    if not isinstance(value, dict):
        # Something answered, but not one of our services: a proxy's page, another port.
        raise Unavailable("the answer is not that of a Bottomless server")
    return value


def _json_or_none(answer: httpx.Response) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


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
