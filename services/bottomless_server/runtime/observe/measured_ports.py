"""The object store and coordination, with every call counted and timed.

They stand around the real ones and promise the same. What is counted is one call of a port,
which is one attempt: retries above it are calls of their own.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from prometheus_client import Counter as CounterMetric
from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from bottomless.drives.base import (
    Body,
    Drive,
    DriveAmbiguous,
    DriveFull,
    DriveRefused,
    DriveUnavailable,
    Location,
    ObjectExists,
    ObjectMissing,
    Presigning,
)
from bottomless.errors import StoreError
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.coordination.base import (
    Coordination,
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
    Decide,
    Due,
    Hold,
    Room,
    StoreRun,
)
from bottomless_server.core.store_prices import REQUESTS, StorePrices, dollars_of_calls
from bottomless_server.drives.checked_parts import size_of
from bottomless_server.drives.sent_requests import PAGE_COUNT, CountsRequests, page_count
from bottomless_server.runtime.observe.metrics import SECONDS, Metrics, counted_by

T = TypeVar("T")

STORE_PRICES: Final = StorePrices()
_OUTCOMES: Final[Mapping[type[BaseException], str]] = {
    ObjectMissing: "missing",
    ObjectExists: "exists",
    DriveUnavailable: "unavailable",
    DriveRefused: "refused",
    DriveFull: "full",
    DriveAmbiguous: "unknown",
    CoordinationUnavailable: "unavailable",
    CoordinationUnknown: "unknown",
    CoordinationConflict: "conflict",
}
"""Everything else is `other`: a caller that gave up, bytes that could not be read while they were put, or
a change that decided to change nothing."""


class Calls:
    """The calls of one port."""

    def __init__(self, metrics: Metrics, name: str, what: str) -> None:
        self._counts = CounterMetric(
            f"bottomless_{name}_calls",
            f"Calls of the {what}, by what came of them.",
            ["operation", "outcome"],
            registry=metrics.registry,
        )
        self._durations = Histogram(
            f"bottomless_{name}_call_duration_seconds",
            f"How long calls of the {what} took.",
            ["operation"],
            buckets=SECONDS,
            registry=metrics.registry,
        )

    @contextmanager
    def one(self, operation: str) -> Iterator[None]:
        began_at = time.perf_counter()
        outcome = "ok"
        try:
            yield
        except BaseException as error:
            outcome = _OUTCOMES.get(type(error), "other")
            raise
        finally:
            self._counts.labels(operation, outcome).inc()
            self._durations.labels(operation).observe(time.perf_counter() - began_at)


def measured_drive(drive: Drive, metrics: Metrics, prices: StorePrices = STORE_PRICES) -> Drive:
    """A drive whose calls are measured, and priced; it presigns if the given one does."""
    return MeasuredDrives(metrics, prices).measured(drive)


class MeasuredDrives:
    """The calls of all drives of a process: counted together, and priced."""

    def __init__(self, metrics: Metrics, prices: StorePrices = STORE_PRICES) -> None:
        self._prices = prices
        self._drives: list[_MeasuredDrive] = []
        metrics.add(self)
        self.calls = Calls(metrics, "object_store", "object store")
        self.read_size = CounterMetric(
            "bottomless_object_store_read_bytes",
            "Bytes that the object store gave.",
            registry=metrics.registry,
        )
        self.written_size = CounterMetric(
            "bottomless_object_store_written_bytes",
            "Bytes that the object store took.",
            registry=metrics.registry,
        )

    def measured(self, drive: Drive) -> Drive:
        """The drive, measured with the others; it presigns if the given one does."""
        if isinstance(drive, Presigning):
            self._drives.append(_PresigningDrive(drive, self, drive))
        else:
            self._drives.append(_MeasuredDrive(drive, self))
        return self._drives[-1]

    def metrics(self) -> Iterable[Metric]:
        """What was sent, and what it comes to."""
        name = "bottomless_object_store"
        requests = {
            kind: sum(drive.requests.get(kind, 0) for drive in self._drives) for kind in REQUESTS
        }
        yield counted_by(
            f"{name}_requests", "Requests that a bill names, by kind.", "operation", requests
        )
        written = sum(drive.written for drive in self._drives)
        read = sum(drive.read for drive in self._drives)
        yield counted_by(
            f"{name}_dollars",
            "What requests, and bytes that went in and out, come to.",
            "operation",
            dollars_of_calls(self._prices, requests, written=written, read=read),
        )


class _MeasuredDrive:
    def __init__(self, drive: Drive, all_drives: MeasuredDrives) -> None:
        self._drive = drive
        self._calls_made = Counter[str]()
        self.requests: Mapping[str, int] = (
            drive.requests if isinstance(drive, CountsRequests) else self._calls_made
        )
        """Requests that were sent; where a drive sends none, those that S3 would have been sent."""
        self.read = self.written = 0
        self._calls = all_drives.calls
        self._read_size = all_drives.read_size
        self._written_size = all_drives.written_size

    @property
    def location(self) -> Location:
        return self._drive.location

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        self._calls_made["put"] += 1
        with self._calls.one("put"):
            await self._drive.put(object_key, body, crc)
        self.written += size_of(body)
        self._written_size.inc(size_of(body))

    async def get(
        self, object_key: str, start: int = 0, size: int | None = None
    ) -> bytes | memoryview:
        self._calls_made["get"] += 1
        with self._calls.one("get"):
            data = await self._drive.get(object_key, start, size)
        self.read += len(data)
        self._read_size.inc(len(data))
        return data

    async def head(self, object_key: str, *, checksum: bool = False) -> ObjectFacts:
        self._calls_made["head"] += 1
        with self._calls.one("head"):
            return await self._drive.head(object_key, checksum=checksum)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        self._calls_made["list"] += 1
        count = 0
        with self._calls.one("list"):
            async for facts in self._drive.list(prefix, after):
                count += 1
                if count % PAGE_COUNT == 0:
                    self._calls_made["list"] += 1
                yield facts

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        self._calls_made["delete"] += page_count(len(object_keys))
        with self._calls.one("delete"):
            return await self._drive.delete(object_keys)

    async def tidy(self, prefix: str) -> None:
        with self._calls.one("delete"):
            await self._drive.tidy(prefix)

    @property
    def has_own_clock(self) -> bool:
        return self._drive.has_own_clock

    async def clock(self) -> int:
        self._calls_made["head"] += 1
        with self._calls.one("clock"):
            return await self._drive.clock()

    async def aclose(self) -> None:
        await self._drive.aclose()


class _PresigningDrive(_MeasuredDrive):
    def __init__(self, drive: Drive, all_drives: MeasuredDrives, signer: Presigning) -> None:
        super().__init__(drive, all_drives)
        self._signer = signer

    async def presigned_get(self, object_key: str, *, valid_seconds: int) -> str:
        return await self._signer.presigned_get(object_key, valid_seconds=valid_seconds)


def coordination_calls(metrics: Metrics) -> Calls:
    """Where a process counts its calls of coordination, over whatever connections."""
    return Calls(metrics, "coordination", "coordination store")


class MeasuredCoordination:
    """A coordination whose calls are measured, together with those of others with the same `calls`."""

    def __init__(self, coordination: Coordination, calls: Calls) -> None:
        self._coordination = coordination
        self._calls = calls

    @property
    def connected_count(self) -> int:
        return self._coordination.connected_count

    async def get(self, redis_key: str) -> bytes | None:
        with self._calls.one("get"):
            return await self._coordination.get(redis_key)

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        with self._calls.one("get"):
            return await self._coordination.get_many(redis_keys)

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        with self._calls.one("transact"):
            return await self._coordination.transact(redis_keys, decide, attempts, room)

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        with self._calls.one("hold"):
            return await self._coordination.hold(redis_key, value, ttl_ms)

    async def release(self, redis_key: str, value: bytes) -> None:
        with self._calls.one("release"):
            await self._coordination.release(redis_key, value)

    async def remaining(self, redis_keys: Sequence[str]) -> list[int | None]:
        with self._calls.one("remaining"):
            return await self._coordination.remaining(redis_keys)

    async def due(self, redis_key: str, now: int, limit: int) -> list[Due]:
        with self._calls.one("due"):
            return await self._coordination.due(redis_key, now, limit)

    async def settle(self, dues: Sequence[Due]) -> None:
        with self._calls.one("settle"):
            await self._coordination.settle(dues)

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        with self._calls.one("due"):
            return await self._coordination.due_at(redis_key, members)

    async def bring_forward(self, redis_key: str, latest: int, limit: int) -> list[Due]:
        with self._calls.one("bring_forward"):
            return await self._coordination.bring_forward(redis_key, latest, limit)

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        with self._calls.one("members"):
            return await self._coordination.members(redis_key, after, limit)

    async def member_count(self, redis_key: str) -> int:
        with self._calls.one("members"):
            return await self._coordination.member_count(redis_key)

    async def clock(self) -> int:
        with self._calls.one("clock"):
            return await self._coordination.clock()

    async def fullness(self) -> float:
        with self._calls.one("fullness"):
            return await self._coordination.fullness()

    async def run(self) -> StoreRun:
        with self._calls.one("run"):
            return await self._coordination.run()

    async def check(self) -> None:
        with self._calls.one("check"):
            await self._coordination.check()

    def hurry(self, seconds: float) -> None:
        self._coordination.hurry(seconds)

    async def aclose(self) -> None:
        await self._coordination.aclose()
