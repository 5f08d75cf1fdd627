"""Bottomless on an S3 store behind a proxy that disturbs it, with load on one stream at a time.

Everything is small, so that seconds of load make tens of fragments and several heights of
groups, and every wait that a fault can cause is short. The reader keeps nothing and ingest
frees at once, so that reads come from the store.
"""

import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bottomless.model.names import StreamId
from support.fault_proxy import FaultProxy
from support.on_s3 import OnS3, running_on_s3, stored_behind_proxy
from support.s3 import S3Server
from support.stored_stream import Found, StoredStream
from support.waiting import until

READ_SECONDS = 1.5
"""Silence of the store for so long is a lost reply."""
SETTINGS = {
    "BOTTOMLESS_STORE_CONNECT_SECONDS": "2",
    "BOTTOMLESS_STORE_READ_SECONDS": str(READ_SECONDS),
    "BOTTOMLESS_STORE_CALL_SECONDS": "4",
    "BOTTOMLESS_MANIFEST_FANOUT": "2",
    "BOTTOMLESS_MANIFEST_DEBOUNCE_MS": "10",
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "6000",
    "BOTTOMLESS_MANIFEST_ROOT_GRACE_MS": "1000",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    "BOTTOMLESS_UPLOADER_UPLOAD_DEADLINE_SECONDS": "5",
    "BOTTOMLESS_UPLOADER_RETRY_INITIAL_SECONDS": "0.02",
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "0.3",
    "BOTTOMLESS_UPLOADER_RETRY_JITTER_SECONDS": "0.05",
    "BOTTOMLESS_UPLOADER_DAMAGE_RETRY_SECONDS": "0.2",
    "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": "65536",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "0",
    "BOTTOMLESS_READER_CACHE_BYTES": "0",
    "BOTTOMLESS_READER_BLOCK_BYTES": "16384",
}
CONFIG = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
VALUE_SIZE = 3_000
RECORD_COUNT = 8
"""Of one append: three appends fill a fragment."""
APPEND_PAUSE_SECONDS = 0.03
"""Some ten fragments a second: what counts is what befalls them, not how many there are."""
PAGE_COUNT = 48
"""Records of a page: few enough that most pages meet no fault, however many there are."""
REFUSED = {
    httpx.codes.BAD_GATEWAY,
    httpx.codes.SERVICE_UNAVAILABLE,
    httpx.codes.GATEWAY_TIMEOUT,
}
"""What a read may answer while its store is in trouble: a problem, never wrong bytes."""


class Read(NamedTuple):
    record_count: int
    problems: list[tuple[int, str]]
    """Status and code of the answers that were none."""


class Load:
    """One stream, a producer that sends every value once, and what it was told."""

    def __init__(self, deployment: "FaultDeployment") -> None:
        self.name = f"faults-{secrets.token_hex(4)}"
        self.path = f"/v1/streams/{self.name}"
        self.acknowledged: dict[int, str] = {}
        self.sent: set[str] = set()
        self._deployment = deployment
        self._client = deployment.server.client()
        self._client.timeout = httpx.Timeout(60)
        answer = self._client.put(self.path, json=CONFIG)
        assert answer.is_success, answer.text
        self.stream_id: StreamId = answer.json()["stream_id"]

    def append(self) -> None:
        values = [
            f"{self.name}-{len(self.sent) + number:06d}".ljust(VALUE_SIZE, "x")
            for number in range(RECORD_COUNT)
        ]
        self.sent.update(values)
        body = {"records": [{"value": value} for value in values]}
        answer = self._client.post(f"{self.path}/records", json=body)
        # Appends live on the disk of the ingest node: a store in trouble is none of theirs.
        assert answer.is_success, answer.text
        first_offset = answer.json()["first_offset"]
        for offset, value in enumerate(values, first_offset):
            assert offset not in self.acknowledged, f"offset {offset} was given twice"
            self.acknowledged[offset] = value

    def append_until_it_happened(self, *facts: Any, seconds: float = 30) -> None:
        """Keep the load on until all of these are true."""
        clock = threading.Event()

        def happened() -> bool:
            self.append()
            clock.wait(APPEND_PAUSE_SECONDS)
            return all(fact() for fact in facts)

        until(happened, seconds, f"faults to happen; so far: {self._deployment.told()}")

    def read(self, *, offset: int = 0) -> Read:
        """Read to the end, again where it was refused; what is answered has to be right."""
        problems: list[tuple[int, str]] = []
        first = offset

        def to_the_end() -> bool:
            nonlocal offset
            page = self._client.get(
                f"{self.path}/records",
                params={"offset": offset, "limit": PAGE_COUNT, "on_out_of_range": "error"},
            )
            if page.status_code in REFUSED:
                problems.append((page.status_code, page.json()["code"]))
                return False
            assert page.is_success, page.text
            body = page.json()
            for record in body["records"]:
                assert record["offset"] == offset, "a record is skipped, or comes twice"
                self._check(offset, record["value"])
                offset += 1
            assert body["next_offset"] == offset
            return bool(body["up_to_date"])

        until(to_the_end, 240, "all records to be read")
        return Read(offset - first, problems)

    def refusal(self, *, offset: int) -> tuple[int, str]:
        """Status and code of the answer to one read, which must not be a page."""
        page = self._client.get(f"{self.path}/records", params={"offset": offset, "limit": 100})
        assert page.status_code in REFUSED, page.text
        return page.status_code, page.json()["code"]

    def is_stored(self) -> bool:
        bounds = self._client.get(f"{self.path}/offsets").json()
        return bool(bounds["object_store_next_offset"] == bounds["next_offset"])

    def local_is_free(self) -> bool:
        """Whether only the newest segments are still on the ingest node's disk."""
        directory = self._deployment.server.ingest_dir
        segments = [path for path in directory.rglob("*.segment") if self.stream_id in str(path)]
        return len(segments) <= 2

    def listed(self) -> list[dict[str, Any]]:
        answer = self._client.get(f"{self.path}/fragments", params={"limit": 1000})
        assert answer.is_success, answer.text
        listed: list[dict[str, Any]] = answer.json()["fragments"]
        return listed

    def check(self, fault: str, *, strays: bool = False) -> Found:
        """Everything acknowledged is there once, whoever looks, and nothing that nobody knows of.

        With `strays`, roots and groups may be left of attempts that the manifest forgot, as a
        crash leaves them: garbage collection is for those. A fragment never may.
        """
        until(self.is_stored, 240, f"the tail to be uploaded after: {fault}")
        stream = self._deployment.stored_stream(self.stream_id)
        found = stream.look()
        left = {key for key in found.strangers if not strays or key.endswith(".fragment")}
        assert not left, f"nobody knows of, after: {fault}\n{self._deployment.told(left)}"
        for offset, value in enumerate(found.values):
            self._check(offset, value)
        assert len(found.values) == len(self.acknowledged), f"records are missing after: {fault}"
        listed = [(one["id"], one["first_offset"], one["last_offset"] + 1) for one in self.listed()]
        there = [(one.fragment_id, one.first_offset, one.next_offset) for one in found.fragments]
        assert listed == there, f"the list of fragments is wrong after: {fault}"
        assert self.read().record_count == len(self.acknowledged)
        self._deployment.checked[self.stream_id] = found.strangers
        return found

    def close(self) -> None:
        self._client.close()

    def _check(self, offset: int, value: str) -> None:
        expected = self.acknowledged.get(offset)
        assert expected == value, (
            f"offset {offset} holds {value[:32]!r} instead of {(expected or '')[:32]!r}"
        )


@dataclass
class FaultDeployment(OnS3):
    """It runs already; the store is seen past the proxy."""

    proxy: FaultProxy
    checked: dict[StreamId, frozenset[str]] = field(default_factory=dict)
    """Streams that are at rest, and the strays that they have."""

    def check_cleaned(self) -> None:
        """What was put in vain is gone, after the upload deadline and the grace of old roots."""
        for stream_id, strays in self.checked.items():
            stream = self.stored_stream(stream_id)

            def cleaned(stream: StoredStream = stream, strays: frozenset[str] = strays) -> bool:
                return stream.look().unreachable <= strays

            until(cleaned, 240, f"all that nothing names to be deleted of {stream_id}")

    @contextmanager
    def load(self) -> Iterator[Load]:
        """A stream of its own, which nothing disturbs before and after."""
        load = Load(self)
        try:
            yield load
        finally:
            load.close()

    def told(self, object_keys: Collection[str] = ()) -> str:
        """What the proxy did to these objects, or the last of what it did to any."""
        story = [
            deed
            for deed in self.proxy.story
            if not object_keys or any(key in deed.path for key in object_keys)
        ]
        deeds = [
            f"{deed.rule.fault}: {deed.method} {deed.path} ({deed.stored_status})"
            for deed in story[-20:]
        ]
        return "\n".join([*sorted(object_keys), *deeds])


@contextmanager
def fault_deployment(
    directory: Path,
    seaweed: S3Server,
    settings: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
) -> Iterator[FaultDeployment]:
    """Start one on an empty directory and a prefix of its own."""
    with (
        stored_behind_proxy(seaweed, seed) as (proxy, stored),
        running_on_s3(directory, stored, {**SETTINGS, **(settings or {})}) as (server, url),
    ):
        yield FaultDeployment(server, stored, url, proxy)
