"""An ingest service on a real directory, with coordination in memory, clocks that stand
still, a manifest of a few lines, and file calls that are recorded and can be made to fail."""

import errno
import io
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pyarrow as pa
from starlette.types import ASGIApp, Receive, Scope, Send
from support.harness import ServiceHarness, StandingClocks
from support.peers import SilentPeer

from bottomless.drives.base import Drive
from bottomless.errors import Code, Outcome, Unavailable
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.config import StreamConfig
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.app import create_service
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.replicas import Replicate
from bottomless_server.ingest.log.layout import stream_dir
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.core.file_systems import FileSystem
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.node.lease import NodeLease
from bottomless_server.protocol.paths import STREAM as STREAM_PATH
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes
from bottomless_server.protocol.registry import (
    NAMES,
    REGISTRY,
    ByNameAsked,
    NamesAsked,
    by_name,
    encode_registered,
    encode_stream,
    encode_streams,
)
from bottomless_server.protocol.supers import encode_super_stream, super_by_name
from bottomless_server.protocol.tail import (
    CHUNKS,
    PUBLISHED,
    ChunksAsked,
    Published,
    decode_run,
    encode_published,
)
from bottomless_server.stores.streams import GENERATION_KEY, Streams
from bottomless_server.stores.supers import Supers

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
NAME = StreamName("orders")
FULL_NAME = FullName(TENANT_DEFAULT, NAME)
ROUTE = f"/v1/streams/{NAME}/records"
INTERNAL = of_stream(STREAM_PATH, STREAM)
DEADLINE_SECONDS = 120


class Call(NamedTuple):
    name: str
    path: str
    end: int = 0
    """Position after the last byte of a write."""


class RecordedFiles(RealFileCalls):
    """Real calls, in a list; those in `faults` fail instead, once for each entry."""

    def __init__(self, lies_on: FileSystem | None = None) -> None:
        self.calls: list[Call] = []
        self.faults: defaultdict[str, list[OSError | int]] = defaultdict(list)
        """By call; a number makes a write short by so many bytes."""
        self.only_on = ".segment"
        """Faults meet files with this in their name."""
        self.lies_on = lies_on
        """What the data directory lies on, as far as ingest is told."""
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """Held by each call that changes a file or a directory, while the system does it."""

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within, no call changes a file: what a kill at this moment would leave can be copied."""
        with self._changing:
            yield

    def note(self, name: str, path: str = "", end: int = 0) -> None:
        with self._lock:
            self.calls.append(Call(name, path, end))

    def open(self, path: Path, *, create: bool = False) -> int:
        self._meet("create" if create else "open", path.name)
        with self._changing:
            fd = super().open(path, create=create)
        self._paths[fd] = path.name
        return fd

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        name = self._paths[fd]
        cut = self._meet("pwritev", name)
        if cut:
            whole = b"".join(parts)
            with self._changing:
                return super().pwritev(fd, [whole[: max(len(whole) - cut, 1)]], position)
        with self._changing:
            written = super().pwritev(fd, parts, position)
        self.note("pwritev", name, position + written)
        return written

    def fdatasync(self, fd: int) -> None:
        self._meet("fdatasync", self._paths[fd])
        super().fdatasync(fd)
        self.note("fdatasync", self._paths[fd])

    def syncfs(self, _: int) -> None:
        # Not of the real one: who else writes there, and how much, is nothing that a test knows.
        self._meet("syncfs", ".segment")
        self.note("syncfs")

    def file_system(self, _: Path) -> FileSystem | None:
        return self.lies_on

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        self.note("fsync_dir", path.name)

    def truncate(self, fd: int, size: int) -> None:
        self._meet("truncate", self._paths[fd])
        with self._changing:
            super().truncate(fd, size)
        self.note("truncate", self._paths[fd], size)

    def rename(self, old: Path, new: Path) -> None:
        with self._changing:
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._changing:
            super().unlink(path)
        self.note("unlink", path.name)

    def make_dir(self, path: Path) -> None:
        with self._changing:
            super().make_dir(path)

    def remove_dir(self, path: Path) -> None:
        with self._changing:
            super().remove_dir(path)

    def _meet(self, call: str, name: str) -> int:
        if self.faults[call] and self.only_on in name:
            fault = self.faults[call].pop(0)
            if isinstance(fault, OSError):
                raise fault
            return fault
        return 0


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class SmallManifest(SilentPeer):
    """Answers who a name is, from the same coordination."""

    def __init__(self, streams: Streams, supers: Supers | None = None) -> None:
        self._streams = streams
        self.supers = supers
        self.registry: dict[StreamId, StreamRecord] = {}
        """What the bucket says of streams: their records as they were when it was told last."""
        self.questions = 0
        self.asked_together: list[list[FullName]] = []
        """The names of each question that was for many."""
        self.is_away = False
        self.homes: list[str] = []
        """Streams of which the bucket was asked to say where they are."""
        self.knows_homes = True
        """Whether it can put them into the bucket now."""

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Params | None = None,
        body: Any = None,
        **_: Any,
    ) -> PeerAnswer:
        if method == "POST":
            assert path == NAMES
            self.questions += 1
            names = NamesAsked.model_validate(body).full_names()
            self.asked_together.append(names)
            if self.is_away:
                raise Unavailable(
                    "the manifest does not answer", code=Code.PEER_UNAVAILABLE, outcome=Outcome.NONE
                )
            found = await self._streams.find_many(names)
            streams = {
                name: stream_id
                for name, stream_id in found.items()
                if (await self._streams.load(stream_id)).state is StreamState.ACTIVE
            }
            return PeerAnswer(200, {}, encode_streams(streams))
        if method == "PUT":
            if not self.knows_homes:
                raise Unavailable("the manifest does not answer", outcome=Outcome.UNKNOWN)
            stream_id = StreamId(path.split("/")[4])
            assert path == of_stream(REGISTRY, stream_id)
            self.homes.append(stream_id)
            self.registry[stream_id] = await self._streams.load(stream_id)
            return PeerAnswer(200, {}, encode_registered(1))
        last = path.rsplit("/", 1)[1]
        if params is None:
            assert path == of_stream(STREAM_PATH, StreamId(last))
            record = await self._streams.load(StreamId(last))
            return PeerAnswer(200, {}, encode_stream(record))
        self.questions += 1
        if self.is_away:
            raise Unavailable(
                "the manifest does not answer", code=Code.PEER_UNAVAILABLE, outcome=Outcome.NONE
            )
        asked = ByNameAsked(**{key: str(value) for key, value in params.items()})
        name = FullName(asked.tenant, StreamName(last))
        if path == super_by_name(name):
            assert self.supers is not None, "of a harness that knows super streams"
            whole = await self.supers.load(await self.supers.find(name))
            return PeerAnswer(200, {}, encode_super_stream(whole))
        assert path == by_name(name)
        record = await self._streams.load(await self._streams.find(name))
        return PeerAnswer(200, {}, encode_stream(record))


class IngestHarness(ServiceHarness):
    """One data directory with a service on it."""

    def __init__(
        self,
        data_dir: Path,
        before: "IngestHarness | None" = None,
        files: RecordedFiles | None = None,
        replicate: Replicate | None = None,
        drive: Drive | None = None,
        **settings: Any,
    ) -> None:
        self.data_dir = data_dir
        self.replicate = replicate
        self.drive: Drive | None = drive if before is None else before.drive
        """The object store, if it has one."""
        self.time: StandingClocks = StandingClocks() if before is None else before.time
        self.coordination: MemoryCoordination = (
            MemoryCoordination(lambda: self.time.wall) if before is None else before.coordination
        )
        if before is None:
            self.show_generation(0)
        self.streams = Streams(self.coordination)
        self.supers = Supers(self.coordination, self.streams)
        self.manifest: SmallManifest = SmallManifest(self.streams, self.supers)
        if before is not None:
            self.manifest.registry = before.manifest.registry
        self.files = files or RecordedFiles()
        self.settings: dict[str, Any] = (
            settings if before is None else {**before.settings, **settings}
        )
        self.service = self._service()
        super().__init__(self.service)

    @property
    def internal_app(self) -> ASGIApp:
        """What the internal listener serves, as a server takes it: not as a method."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self.service.internal(scope, receive, send)

        return app

    def _service(self) -> IngestService:
        # Time stands still, so leases are renewed when a test says so. Of a node that lives on beside
        # its copies after a crash, a renewal of its own would take the lease that a copy gave up.
        given = {
            "ingest_url": "unix:///here.sock",
            "ingest_renew_ms": 3_600_000,
            # All are started with the first stream; more of them wait in no test but those that say so.
            "ingest_thread_count": 4,
            **self.settings,
        }
        settings = IngestSettings(data_dir=self.data_dir, **given)
        return create_service(
            settings,
            self.coordination,
            manifest=self.manifest,
            files=self.files,
            clocks=self.time.clocks(),
            replicate=self.replicate,
            drive=self.drive,
        )

    async def declare(self) -> "IngestHarness":
        await self.streams.create(
            StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, StreamConfig())
        )
        return self

    def show_generation(self, generation: int | None) -> None:
        """What coordination says it is; None where it was lost."""
        value = None if generation is None else b'{"generation":%d,"bucket":true}' % generation
        self.coordination.write(Changes({GENERATION_KEY: value}))

    async def start(self) -> "IngestHarness":
        await self.service.start()
        return self

    def after_crash(self, replicate: Replicate | None = None, **settings: Any) -> "IngestHarness":
        """The same node after a kill at this moment, on a copy of its files."""
        copy = self.data_dir.with_name(self.data_dir.name + "-")
        # The service lives on meanwhile: its threads write, delete and rename.
        with self.files.standing_still():
            shutil.copytree(self.data_dir, copy)
        return IngestHarness(copy, before=self, replicate=replicate, **settings)

    @property
    def lease(self) -> NodeLease:
        return self.service.lease

    async def advance(self, ms: int) -> None:
        """Let time go on, with the lease renewed as often as it would be."""
        while ms > 0:
            self.time.advance(min(ms, 3_000))
            await self.lease.renew()
            ms -= 3_000

    @property
    def directory(self) -> Path:
        return stream_dir(self.data_dir, STREAM)

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.segment"))

    @property
    def appender(self) -> LocalAppender:
        found = self.service.streams.find(STREAM)
        assert found is not None
        return found

    async def record(self) -> StreamRecord:
        return await self.streams.load(STREAM)

    async def append(self, *values: str) -> httpx.Response:
        return await self.client.post(ROUTE, json={"records": [{"value": v} for v in values]})

    async def append_raw(self, body: bytes, **headers: str) -> httpx.Response:
        sent = {"content-type": "application/json", **headers}
        return await self.client.post(ROUTE, content=body, headers=sent)

    async def published(self, next_offset: int, version: int = 1) -> httpx.Response:
        """What manifest does after an EXEC: the record first, then the word."""
        await self.streams.update(
            STREAM,
            lambda record: replace(record, published_next=next_offset, version=version),
        )
        told = encode_published(Published(next_offset, version))
        answer = await self.internal.put(of_stream(PUBLISHED, STREAM), json=told)
        assert answer.status_code == 200, answer.text
        return answer

    async def chunks(self, first_offset: int, **params: int) -> httpx.Response:
        asked = ChunksAsked(first_offset, **params)
        return await self.internal.get(of_stream(CHUNKS, STREAM), params=asked.params())

    async def rows(self, first_offset: int = 0) -> list[dict[str, Any]]:
        """Every record from the chunk that holds `first_offset`, with its offset."""
        rows: list[dict[str, Any]] = []
        while True:
            answer = await self.chunks(first_offset)
            assert answer.status_code == 200, answer.text
            for header, chunk in split_chunks(answer.content):
                offset = header.first_offset
                for batch in decode_frames(batches_of(header, chunk)):
                    for row in batch.to_pylist():
                        rows.append({"offset": offset, **row})
                        offset += 1
                assert offset == header.next_offset
            if not answer.content:
                return rows
            first_offset = decode_run(PeerBytes(answer.headers, answer.content)).next_offset

    async def values(self) -> list[bytes]:
        rows = await self.rows()
        assert [row["offset"] for row in rows] == list(range(len(rows)))
        return [row["value"] for row in rows]


def problem(answer: httpx.Response) -> tuple[int, str]:
    members = orjson.loads(answer.content)
    assert answer.headers["content-type"] == "application/problem+json"
    assert members["status"] == answer.status_code
    return answer.status_code, members["code"]


def pointers(answer: httpx.Response) -> list[str]:
    return [fault["pointer"] for fault in answer.json()["errors"]]


def arrow_of_batches(*batches: pa.RecordBatch) -> bytes:
    """An Arrow stream of these batches, empty ones too, which a table leaves out."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return stream.getvalue()


def arrow(table: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(
        stream, table.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table)
    return stream.getvalue()
