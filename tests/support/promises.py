"""What answers to appends promised, kept beside the server, and held against what is there.

The oracle knows requests and responses alone. After the scenarios of a module it reads every
stream from `first` and every fragment that the list names: what was acknowledged is there at
its offset, nothing else is, times never go back, and each object is what the list says.
"""

import base64
import io
import json
import threading
from collections import defaultdict
from typing import Any

import httpx
import pyarrow as pa

from bottomless.formats.checks import crc32c
from support.contract import ARROW, JSON
from support.stored import Stored

PAGE = 10_000
PAGE_BYTES = 16 * 1024 * 1024


class Promises:
    """By stream id: the offsets that were acknowledged, with their values where those are known."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, Any]] = defaultdict(dict)
        self._ranges: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, answer: httpx.Response) -> None:
        """Remember an answer, if it acknowledges an append. Hook of a client."""
        request = answer.request
        path = request.url.path
        if request.method != "POST" or not path.endswith("/records") or answer.status_code != 200:
            return
        if "idempotent-replayed" in answer.headers:
            return
        body = json.loads(answer.read())
        if not body["count"]:
            return
        first, end = int(body["first_offset"]), int(body["last_offset"]) + 1
        assert end - first == body["count"], body
        with self._lock:
            stream_id = body["stream_id"]
            self._names[stream_id] = path.split("/")[3]
            for other_first, other_end in self._ranges[stream_id]:
                assert end <= other_first or other_end <= first, "an offset was promised twice"
            self._ranges[stream_id].add((first, end))
            if not body["duplicates"]:
                self._values[stream_id].update(enumerate(_values_of(request), first))

    def check(self, client: httpx.Client, stored: Stored) -> None:
        """Read everything and compare; streams that were deleted since are passed over."""
        for stream_id, name in self._names.items():
            path = f"/v1/streams/{name}"
            described = client.get(path)
            if described.status_code == 404 or described.json()["stream_id"] != stream_id:
                continue
            assert described.status_code == 200, described.text
            self._check_records(client, path, stream_id)
            _check_fragments(client, path, stored)

    def _check_records(self, client: httpx.Client, path: str, stream_id: str) -> None:
        found, floor = everything(client, path)
        promised = {
            offset for first, end in self._ranges[stream_id] for offset in range(first, end)
        }
        kept = {offset for offset in promised if offset >= floor}
        assert kept <= found.keys(), f"{path} lost {sorted(kept - found.keys())[:5]}"
        for offset, value in self._values[stream_id].items():
            if offset >= floor:
                assert _same(value, found[offset]), f"{path} has another value at {offset}"


def everything(client: httpx.Client, path: str) -> tuple[dict[int, bytes], int]:
    """All values of a stream by offset, in the order in which they come; and its floor."""
    found: dict[int, bytes] = {}
    times: list[int] = []
    offset, floor = "first", None
    while True:
        parameters = {"offset": offset, "limit": str(PAGE), "max_bytes": str(PAGE_BYTES)}
        answer = client.get(f"{path}/records", params=parameters, headers={"accept": ARROW})
        assert answer.status_code == 200, answer.text
        table = pa.ipc.open_stream(answer.content).read_all()
        offsets: list[Any] = table["offset"].to_pylist()
        values: list[Any] = table["value"].to_pylist()
        stamps: list[Any] = table["timestamp"].cast(pa.int64()).to_pylist()
        floor = int(answer.headers["page-start-offset"]) if floor is None else floor
        if "page-gaps" not in answer.headers:
            start = int(answer.headers["page-start-offset"])
            assert offsets == list(range(start, start + len(offsets))), f"{path} has a hole"
        assert not found.keys() & set(offsets), f"{path} came twice"
        found.update(zip(offsets, values, strict=True))
        times += stamps
        offset = answer.headers["page-next-offset"]
        if answer.headers["stream-up-to-date"] == "true":
            break
    assert times == sorted(times), f"the time of {path} goes back"
    assert int(offset) == int(answer.headers["stream-next-offset"])
    return found, floor


def _check_fragments(client: httpx.Client, path: str, stored: Stored) -> None:
    """The list has no hole, and each object that it names is what it says."""
    parameters = {"locations": "true", "limit": "1000"}
    end: int | None = None
    while True:
        answer = client.get(f"{path}/fragments", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        for item in page["fragments"]:
            assert end in (None, item["first_offset"]), f"{path}: a hole before {item}"
            end = item["last_offset"] + 1
            if item.get("gap"):
                continue
            key = item["object_key"]
            data = stored.read(key)
            assert (len(data), f"{crc32c(data):08x}") == (item["size_bytes"], item["crc32c"]), key
        if page["next_page_token"] is None:
            break
        parameters["page_token"] = page["next_page_token"]
    assert end in (None, page["object_store_next_offset"])


def _values_of(request: httpx.Request) -> list[Any]:
    """What a request asked to store: bytes, or what JSON stands for; empty if it cannot be told."""
    kind = request.headers.get("content-type", "")
    if request.headers.get("content-encoding"):
        return []
    if kind == "application/octet-stream":
        return [request.content]
    if kind == ARROW:
        column = pa.ipc.open_stream(io.BytesIO(request.content)).read_all()["value"]
        return [one.encode() if isinstance(one, str) else one for one in column.to_pylist()]
    if kind != JSON:
        return []
    return [_value_of(record) for record in json.loads(request.content)["records"]]


def _value_of(record: dict[str, Any]) -> Any:
    if "value" in record:
        return record["value"].encode()
    if "value_base64" in record:
        return base64.b64decode(record["value_base64"])
    return ("json", record["json"])


def _same(promised: Any, found: bytes) -> bool:
    if isinstance(promised, tuple):
        return bool(json.loads(found) == promised[1])
    return bool(promised == found)
