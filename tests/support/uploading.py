"""What the uploader talks to, small: an ingest and a manifest in memory, served over HTTP."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from bottomless.errors import Code, Fenced, NotFound, StoreError, Unavailable
from bottomless.formats.chunk import split_chunks
from bottomless.formats.fragment import HEADER_SIZE, decode_fragment_header
from bottomless.formats.segment import HEADER_SIZE as HEADER_SIZE_OF_SEGMENT
from bottomless.formats.segment import encode_segment_header
from bottomless.model.config import FilterConfig
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, StreamId, Uid
from bottomless.model.segment import SegmentHeader
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.protocol.paths import stream_id_in
from bottomless_server.protocol.registry import NODES, NodeSaid, encode_nodes
from bottomless_server.protocol.tail import (
    BY_FILE_SIZE_MIN,
    CHUNKS,
    CHUNKS_QUERY,
    COMMITS,
    COMMITS_QUERY,
    RUN_MEDIA_TYPE,
    Bounds,
    ChunkRun,
    Commit,
    Commits,
    CommitsAsked,
    SegmentPart,
    decode_chunks_asked,
    encode_commits,
    encode_run,
    moved,
)
from bottomless_server.protocol.uploads import (
    ABANDON,
    FRAGMENTS,
    INTENTS,
    UPLOADS,
    AbandonAsked,
    BeginAsked,
    IntentsAsked,
    Opened,
    RegisterAsked,
    Registered,
    encode_intended,
    encode_opened,
    encode_registered,
)
from bottomless_server.runtime.http.app import create_api, json_response, parse_query, wrap
from support.object_keys import fragment_key

STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")


class Group(NamedTuple):
    """One append: its chunks are never parted."""

    data: bytes
    first_offset: int
    next_offset: int
    log_end: int


class Asked(NamedTuple):
    first_offset: int
    max_bytes: int
    sent: int


class FakeIngest:
    """The tail of streams that this test appends to, and its two feeds."""

    def __init__(self, target_bytes: int = 2**20, max_age_ms: int = 20) -> None:
        self.target_bytes = target_bytes
        self.max_age_ms = max_age_ms
        self.groups: dict[str, list[Group]] = {}
        self.epoch = 1
        self.local_first_offset = 0
        self.asked: list[Asked] = []
        self.commits_asked = 0
        self.failures: list[StoreError] = []
        """Raised by the chunk feed, one a call."""
        self.directory: Path | None = None
        """Where the logs lie in files of which whoever asks by file is told, as long as they are
        there."""
        self.restart()

    def restart(self) -> None:
        """Come up as a new process: tokens given out before are not known any more."""
        self._instance = secrets.token_hex(4)
        self._changed: dict[str, int] = {}
        self._news = asyncio.Event()

    def append(self, *chunks: bytes, stream_id: str = STREAM_ID) -> None:
        groups = self.groups.setdefault(stream_id, [])
        data = b"".join(chunks)
        headers = [header for header, _ in split_chunks(data)]
        log_end = (groups[-1].log_end if groups else 0) + len(data)
        groups.append(Group(data, headers[0].first_offset, headers[-1].next_offset, log_end))
        self.epoch = headers[-1].epoch
        if self.directory is not None:
            self._write(stream_id)
        self._changed[stream_id] = len(self._changed) + max(self._changed.values(), default=0) + 1
        self._news.set()

    def segment(self, stream_id: str = STREAM_ID) -> Path:
        """The file that holds the log of a stream."""
        assert self.directory is not None
        return self.directory / f"{stream_id}.segment"

    def _write(self, stream_id: str) -> None:
        header = encode_segment_header(SegmentHeader(StreamId(stream_id), 0, self.epoch))
        data = b"".join(group.data for group in self.groups[stream_id])
        self.segment(stream_id).write_bytes(header + data)

    def _part(self, stream_id: str, sent: list[Group], size: int) -> SegmentPart | None:
        if self.directory is None or size < BY_FILE_SIZE_MIN:
            return None
        path = self.segment(stream_id)
        position = HEADER_SIZE_OF_SEGMENT + sent[-1].log_end - size
        return SegmentPart(str(path), position, size, 0, self.epoch) if path.exists() else None

    def app(self) -> ASGIApp:
        api = create_api("ingest")
        api.add_route(COMMITS, self._commits)
        api.add_route(CHUNKS, self._chunks)
        return wrap(api)

    async def _commits(self, request: Request) -> Response:
        self.commits_asked += 1
        asked = CommitsAsked(**parse_query(request.scope, COMMITS_QUERY))
        instance, _, after = (asked.after or "").partition(":")
        seen = int(after) if instance == self._instance else None
        if seen is not None and max(self._changed.values(), default=0) <= seen:
            self._news.clear()
            try:
                async with asyncio.timeout(asked.wait_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass
            if instance != self._instance:
                raise unavailable()
        streams = tuple(
            self._commit(stream_id, groups)
            for stream_id, groups in self.groups.items()
            if seen is None or self._changed.get(stream_id, 0) > seen
        )
        token = f"{self._instance}:{max(self._changed.values(), default=0)}"
        return json_response(encode_commits(Commits(token, streams)))

    def _commit(self, stream_id: str, groups: list[Group]) -> Commit:
        return Commit(
            stream_id=StreamId(stream_id),
            epoch=self.epoch,
            committed_next=groups[-1].next_offset,
            published_next=0,
            log_end=groups[-1].log_end,
            target_bytes=self.target_bytes,
            max_age_ms=self.max_age_ms,
        )

    def _bounds(self, groups: list[Group]) -> Bounds:
        committed_next = groups[-1].next_offset if groups else 0
        return Bounds(self.epoch, self.local_first_offset, committed_next, 0, 0, None, 0)

    async def _chunks(self, request: Request) -> Response:
        asked = decode_chunks_asked(parse_query(request.scope, CHUNKS_QUERY))
        first = asked.first_offset
        run_of = stream_id_in(request.path_params)
        groups = self.groups[run_of]
        if self.failures:
            raise self.failures.pop(0)
        if first < self.local_first_offset:
            raise moved(self._bounds(groups))
        sent: list[Group] = []
        for group in groups:
            size = sum(len(taken.data) for taken in sent)
            if group.next_offset > first and (
                not sent or size + len(group.data) <= asked.max_bytes
            ):
                sent.append(group)
            elif sent:
                break
        data = b"".join(group.data for group in sent)
        self.asked.append(Asked(first, asked.max_bytes, len(data)))
        run = ChunkRun(
            self._bounds(groups),
            sent[0].first_offset if sent else first,
            sent[-1].next_offset if sent else first,
            sent[-1].log_end if sent else 0,
            data,
        )
        if asked.by_file and (part := self._part(run_of, sent, len(data))):
            data, run = b"", run._replace(data=b"", part=part)
        return Response(data, 200, encode_run(run), RUN_MEDIA_TYPE)


class FakeManifest:
    """Intents, quarantine and the list of applied fragments of one stream; publishes at once."""

    def __init__(self, drive: MemoryDrive, stream_id: str = STREAM_ID) -> None:
        self.drive = drive
        self.stream_id = StreamId(stream_id)
        self.published_next = 0
        self.session = ""
        self.sessions: list[str] = []
        self.intents: dict[Uid, int] = {}
        self.quarantine: set[Uid] = set()
        self.applied: list[FragmentInfo] = []
        self.adopted: list[Uid] = []
        self.waiting: dict[int, FragmentInfo] = {}
        self.registered: list[Uid] = []
        """Every uid of every registration, as often as it came."""
        self.intent_gates: dict[int, asyncio.Event] = {}
        """Intents for these first offsets are answered when the event is set."""
        self.failures: list[StoreError] = []
        """Raised by registrations, one a call."""
        self.shares_roots = False
        """Whether what is registered waits for more, until the same session begins again."""
        self.register_wait_seconds = 0.05
        self.first_tier = DEFAULT_NUMBER
        """The drive of its new fragments, where the uploader reaches it."""
        self.filter = FilterConfig()
        """Which filters its fragments are to have."""
        self.gone = False
        self.gone_count = 0
        """Times that it was said."""
        self.epoch = 1
        """Of the stream's record."""
        self._published = asyncio.Condition()

    def fence(self) -> None:
        """Let somebody else be the uploader, who then goes away."""
        self.session = "somebody else"

    def has_heard_of(self, fragment_count: int) -> bool:
        return len(set(self.registered)) == fragment_count

    async def answer(self, path: str, body: Any) -> Any:
        if self.gone:
            self.gone_count += 1
            raise NotFound("there is no such stream")
        answers = {
            UPLOADS: self._uploads,
            INTENTS: self._intents,
            FRAGMENTS: self._fragments,
            ABANDON: self._abandon,
        }
        return await answers[path](body)

    async def _uploads(self, body: Any) -> Any:
        session = BeginAsked.model_validate(body).session
        self.sessions.append(session)
        if session == self.session:
            async with self._published:
                self._publish()
            return encode_opened(Opened(self.published_next, 1, self.epoch, TENANT_DEFAULT))
        self.session = session
        for uid, first_offset in sorted(self.intents.items(), key=lambda item: item[1]):
            await self._resolve(uid, first_offset)
        self.waiting.clear()
        return encode_opened(Opened(self.published_next, 1, self.epoch, TENANT_DEFAULT))

    async def _resolve(self, uid: Uid, first_offset: int) -> None:
        del self.intents[uid]
        try:
            raw = await self.drive.get(
                fragment_key(self.stream_id, first_offset, uid), 0, HEADER_SIZE
            )
        except StoreError:
            raw = b""
        if raw and first_offset == self.published_next:
            self.published_next = decode_fragment_header(raw).next_offset
            self.adopted.append(uid)
        else:
            self.quarantine.add(uid)

    async def _intents(self, body: Any) -> Any:
        asked = IntentsAsked.model_validate(body)
        self._check(asked.session)
        uids = [Uid(secrets.token_hex(16)) for _ in asked.first_offsets]
        self.intents.update(zip(uids, asked.first_offsets, strict=True))
        for first_offset in asked.first_offsets:
            if first_offset in self.intent_gates:
                await self.intent_gates[first_offset].wait()
        drive = self.first_tier if self.first_tier in asked.drives else DEFAULT_NUMBER
        return encode_intended(uids, self.filter, drive)

    async def _fragments(self, body: Any) -> Any:
        asked = RegisterAsked.model_validate(body)
        self._check(asked.session)
        if self.failures:
            raise self.failures.pop(0)
        infos = asked.infos()
        for info in infos:
            self.registered.append(info.uid)
            if info.uid in self.intents:
                self.waiting[info.first_offset] = info
        async with self._published:
            if not self.shares_roots:
                self._publish()
            try:
                async with asyncio.timeout(self.register_wait_seconds):
                    await self._published.wait_for(
                        lambda: self.published_next >= infos[-1].next_offset
                    )
            except TimeoutError:
                pass
        done = {info.uid for info in self.applied}
        uids = [info.uid for info in infos]
        applied = tuple(uid for uid in uids if uid in done)
        waiting = tuple(uid for uid in uids if uid not in done)
        return encode_registered(Registered(self.published_next, 1, applied, waiting))

    def _publish(self) -> None:
        while self.published_next in self.waiting:
            info = self.waiting.pop(self.published_next)
            self.applied.append(info)
            del self.intents[info.uid]
            self.published_next = info.next_offset
            self._published.notify_all()

    async def _abandon(self, body: Any) -> Any:
        asked = AbandonAsked.model_validate(body)
        self._check(asked.session)
        for uid in asked.uids:
            self.intents.pop(Uid(uid), None)
            self.quarantine.add(Uid(uid))
        return {}

    def _check(self, session: str) -> None:
        if session != self.session:
            raise Fenced("another session uploads this stream")


def manifest_app(manifests: Mapping[str, FakeManifest], node_urls: Sequence[str]) -> ASGIApp:
    """One service for the manifests of several streams, which knows these ingest nodes."""
    api = create_api("manifest")

    async def nodes(_: Request) -> Response:
        return json_response(encode_nodes(NodeSaid(url, url) for url in node_urls))

    def add(path: str) -> None:
        async def respond(request: Request) -> Response:
            manifest = manifests[stream_id_in(request.path_params)]
            body = orjson.loads(await request.body())
            return json_response(await manifest.answer(path, body))

        api.add_route(path, respond, methods=["POST"])

    for path in (UPLOADS, INTENTS, FRAGMENTS, ABANDON):
        add(path)
    api.add_route(NODES, nodes)
    return wrap(api)


def unavailable() -> Unavailable:
    return Unavailable("not now", code=Code.COORDINATION_UNAVAILABLE)
