"""The tail of a stream, as its owner shows it: the feed of commits, the feed of chunks, the bounds.

Whoever provides a tail hands over the values of this module and never spells what they look
like on the wire; whoever reads one gets the same values back. So a second provider (streams
without an owner) and a second reader (a follower that copies the log) need no copy of it.

Contract: openapi/internal.yaml, tag `ingest`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from bottomless.errors import Code, InvalidRequest, OffsetGone, StoreError, Unavailable, WrongOffset
from bottomless.formats.chunk import ChunkHead
from bottomless.model.limits import GIB, KIB, LONG_POLL_MS_MAX, MIB, OFFSET_MAX, TIMESTAMP_MAX
from bottomless.model.names import NodeId, StreamId, parse_stream_id
from bottomless_server.protocol.parameters import Parser, integer, require, text
from bottomless_server.protocol.paths import INTERNAL, STREAM
from bottomless_server.protocol.peer import Params, PeerBytes, number, said_by, string

COMMITS: Final = f"{INTERNAL}/commits"
CHUNKS: Final = f"{STREAM}/chunks"
FOLLOWED_CHUNKS: Final = f"{STREAM}/replica/chunks"
LOCATE: Final = f"{STREAM}/locate"
PUBLISHED: Final = f"{STREAM}/published"
CLOSE: Final = f"{STREAM}/close"

RUN_MEDIA_TYPE: Final = "application/octet-stream"
RUN_SIZE_MAX: Final = 64 * MIB
_RUN_SIZE_DEFAULT: Final = 4 * MIB
BY_FILE_SIZE_MIN: Final = 256 * KIB
"""A shorter run comes in the answer: to open a file costs as much as its bytes."""
HEAD_SIZE: Final = 600
"""What the decoded header of a chunk takes in memory."""
PART_SIZE_MAX: Final = GIB
"""No run is larger, however much one append held; what claims to be is none."""

# Names of headers are found in any case; this is the one in which they are sent.
_EPOCH: Final = "chunks-epoch"
_FIRST_OFFSET: Final = "chunks-first-offset"
_NEXT_OFFSET: Final = "chunks-next-offset"
_LOG_END: Final = "chunks-log-end"
_LOCAL_FIRST_OFFSET: Final = "local-first-offset"
_COMMITTED_NEXT: Final = "committed-next-offset"
_PUBLISHED_NEXT: Final = "published-next-offset"
_VERSION: Final = "manifest-version"
_LAST_CHUNK_OFFSET: Final = "last-chunk-offset"
_LAST_TIMESTAMP: Final = "last-timestamp"
_FILE: Final = "chunks-file"
_FILE_POSITION: Final = "chunks-file-position"
_FILE_SIZE: Final = "chunks-file-size"
_SEGMENT_FIRST_OFFSET: Final = "chunks-segment-first-offset"
_SEGMENT_EPOCH: Final = "chunks-segment-epoch"
_FOLLOWERS: Final = "chunks-followers"


class Bounds(NamedTuple):
    """What the live owner of a stream says of it. All but `epoch` and `version` never go back."""

    epoch: int
    local_first_offset: int
    """Below it the owner has nothing: ask object storage."""
    committed_next: int
    published_next: int
    version: int
    """The version of the manifest that the owner's frees follow; a reader needs a root at least
    that new."""
    last_chunk_offset: int | None
    """First offset of the last local chunk, None if there is none."""
    last_timestamp: int | None
    """In ms since 1970; 0 or None where no record is left here: object storage knows it then."""


class SegmentPart(NamedTuple):
    """Where the chunks of a run lie, for whoever can open the file. All of it is durable and visible."""

    path: str
    """Absolute, as the owner sees it: whoever opens it has to see whether it is the file meant."""
    position: int
    size: int
    first_offset: int
    """First offset of the segment, as its header says."""
    epoch: int
    """Epoch of the owner that began the segment, as its header says: a later file of the same name
    has another one."""


class ChunkRun(NamedTuple):
    """A run of whole committed chunks, one after the other; none at the end of the stream."""

    bounds: Bounds
    first_offset: int
    """First offset of the first chunk."""
    next_offset: int
    """The offset after the last chunk; equal to the first where there is none."""
    log_end: int
    """Cumulative log bytes up to the end of the last chunk, on the scale of the epoch's owner."""
    data: bytes | memoryview
    part: SegmentPart | None = None
    """The chunks are there, and not in `data`."""
    followers: tuple[NodeId, ...] = ()
    """Nodes beside the owner that have all that it shows; they may be asked for what lies far below
    its end."""


class Located(NamedTuple):
    offset: int | None
    """First offset of the first local chunk that is late enough, None if none is."""
    bounds: Bounds


class Commit(NamedTuple):
    """A stream that has something which is not published yet."""

    stream_id: StreamId
    epoch: int
    committed_next: int
    published_next: int
    log_end: int
    """Bytes of committed log, on the scale of the epoch's owner."""
    target_bytes: int
    """How large its fragments should become."""
    max_age_ms: int
    """How old a record may become before it is cut into a fragment."""


class Commits(NamedTuple):
    """Streams in the order of their last change."""

    token: str
    """Ask with it for what changes after this; it lives as long as the process that gave it."""
    streams: tuple[Commit, ...]


class CommitsAsked(NamedTuple):
    wait_ms: int = 0
    after: str | None = None
    """The token of the last answer; without one all streams with unpublished data are named."""

    def params(self) -> Params:
        return {name: value for name, value in self._asdict().items() if value is not None}


class ChunksAsked(NamedTuple):
    first_offset: int
    max_bytes: int = _RUN_SIZE_DEFAULT
    wait_ms: int = 0
    by_file: int = 0
    """1: whoever asks can open files of the owner's machine. The answer may be bytes all the same."""

    def params(self) -> Params:
        # The release before refuses a parameter that it does not know.
        return {name: value for name, value in self._asdict().items() if name != "by_file" or value}


class FollowedAsked(NamedTuple):
    """What a reader asks a node that follows the log of a stream."""

    epoch: int
    """The epoch of the owner: a node that follows another one may have other bytes."""
    first_offset: int
    max_bytes: int = _RUN_SIZE_DEFAULT

    def params(self) -> Params:
        return self._asdict()


class RunGone(Unavailable):
    """The bytes of a run cannot be had any more where they were to be read from."""

    default_code = Code.PEER_UNAVAILABLE


class RunBytes(Protocol):
    """The bytes of a run that were not read yet. They do not change."""

    async def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from `position` on; so many are there. A buffer whose reading
        failed or was given up may still be written to.

        Raises:
            RunGone: they are not there any more, or what is there is something else.
        """
        ...


class HeadsRun(NamedTuple):
    """A run of which only the headers of its chunks were read."""

    run: ChunkRun
    """Its `data` is empty."""
    heads: tuple[ChunkHead, ...]
    """Headers of its chunks, in their order."""
    size: int
    bytes: RunBytes


class ChunkSource(Protocol):
    """Where the chunks of a tail come from: one owner of streams, whatever way the bytes take."""

    def reads_files(self, stream_id: StreamId) -> bool:
        """Whether `heads` will usually read the headers of this stream alone."""
        ...

    async def heads(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun | HeadsRun:
        """The run that `chunks` would bring, with its headers alone where its bytes can be read later
        just as well, and with its bytes where not.

        Raises:
            As `chunks`.
        """
        ...

    async def chunks(
        self, stream_id: StreamId, asked: ChunksAsked, *, timeout_seconds: float
    ) -> ChunkRun:
        """A run with its bytes: from the chunk that holds the offset asked for, at least one.

        Raises:
            OffsetGone: `moved`: below what the owner still has.
            StoreError: what else it answered, or that it does not answer.
        """
        ...


class LocateAsked(NamedTuple):
    timestamp: int

    def params(self) -> Params:
        return self._asdict()


class Published(NamedTuple):
    """What the last EXEC of the manifest made part of it."""

    next_offset: int
    version: int


_WAIT_MS: Final = integer(0, LONG_POLL_MS_MAX)
COMMITS_QUERY: Final[Mapping[str, Parser]] = {"after": text, "wait_ms": _WAIT_MS}
CHUNKS_QUERY: Final[Mapping[str, Parser]] = {
    "first_offset": integer(0, OFFSET_MAX + 1),
    "max_bytes": integer(1, RUN_SIZE_MAX),
    "wait_ms": _WAIT_MS,
    "by_file": integer(0, 1),
}
FOLLOWED_QUERY: Final[Mapping[str, Parser]] = {
    "epoch": integer(0, OFFSET_MAX),
    "first_offset": CHUNKS_QUERY["first_offset"],
    "max_bytes": CHUNKS_QUERY["max_bytes"],
}
LOCATE_QUERY: Final[Mapping[str, Parser]] = {"timestamp": integer(0, TIMESTAMP_MAX)}


def decode_chunks_asked(values: Mapping[str, Any]) -> ChunksAsked:
    """What a query asks for, of which `CHUNKS_QUERY` made these values.

    Raises:
        InvalidRequest: the first offset is missing.
    """
    return ChunksAsked(**require(values, "first_offset"))


def decode_followed_asked(values: Mapping[str, Any]) -> FollowedAsked:
    """What a query asks for, of which `FOLLOWED_QUERY` made these values.

    Raises:
        InvalidRequest: the epoch or the first offset is missing.
    """
    return FollowedAsked(**require(require(values, "epoch"), "first_offset"))


def decode_locate_asked(values: Mapping[str, Any]) -> LocateAsked:
    """What a query asks for, of which `LOCATE_QUERY` made these values.

    Raises:
        InvalidRequest: the time is missing.
    """
    return LocateAsked(**require(values, "timestamp"))


def encode_commits(commits: Commits) -> dict[str, Any]:
    streams = [stream._asdict() for stream in commits.streams]
    return {**commits._asdict(), "streams": streams}


@said_by("ingest")
def decode_commits(body: Any) -> Commits:
    return Commits(string(body["token"]), tuple(map(_commit, body["streams"])))


def encode_run(run: ChunkRun) -> dict[str, str]:
    """The headers that stand above the chunks of a run."""
    bounds = run.bounds
    values = {
        _EPOCH: bounds.epoch,
        _FIRST_OFFSET: run.first_offset,
        _NEXT_OFFSET: run.next_offset,
        _LOG_END: run.log_end,
        _LOCAL_FIRST_OFFSET: bounds.local_first_offset,
        _COMMITTED_NEXT: bounds.committed_next,
        _PUBLISHED_NEXT: bounds.published_next,
        _VERSION: bounds.version,
        _LAST_CHUNK_OFFSET: bounds.last_chunk_offset,
        _LAST_TIMESTAMP: bounds.last_timestamp,
    }
    headers = {_FOLLOWERS: " ".join(run.followers)} if run.followers else {}
    if run.part is not None:
        path, position, size, first_offset, epoch = run.part
        values |= {
            _FILE_POSITION: position,
            _FILE_SIZE: size,
            _SEGMENT_FIRST_OFFSET: first_offset,
            _SEGMENT_EPOCH: epoch,
        }
        headers |= {_FILE: quote(path, errors="surrogateescape")}
    return headers | _shown(values)


def _shown(values: Mapping[str, int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


@said_by("ingest")
def decode_run(answer: PeerBytes) -> ChunkRun:
    headers = answer.headers
    bounds = Bounds(
        epoch=int(headers[_EPOCH]),
        local_first_offset=int(headers[_LOCAL_FIRST_OFFSET]),
        committed_next=int(headers[_COMMITTED_NEXT]),
        published_next=int(headers[_PUBLISHED_NEXT]),
        version=int(headers[_VERSION]),
        last_chunk_offset=_optional(headers.get(_LAST_CHUNK_OFFSET)),
        last_timestamp=_optional(headers.get(_LAST_TIMESTAMP)),
    )
    return ChunkRun(
        bounds,
        int(headers[_FIRST_OFFSET]),
        int(headers[_NEXT_OFFSET]),
        int(headers[_LOG_END]),
        answer.data,
        _part_of(headers) if _FILE in headers else None,
        tuple(map(NodeId, headers.get(_FOLLOWERS, "").split())),
    )


def _part_of(headers: Mapping[str, str]) -> SegmentPart:
    part = SegmentPart(
        unquote(headers[_FILE], errors="surrogateescape"),
        int(headers[_FILE_POSITION]),
        int(headers[_FILE_SIZE]),
        int(headers[_SEGMENT_FIRST_OFFSET]),
        int(headers[_SEGMENT_EPOCH]),
    )
    if not part.path.startswith("/") or part.position < 0 or not 0 < part.size <= PART_SIZE_MAX:
        raise ValueError
    return part


def encode_located(located: Located) -> dict[str, Any]:
    return {"offset": located.offset, **located.bounds._asdict()}


@said_by("ingest")
def decode_located(body: Any) -> Located:
    offset = body["offset"]
    return Located(None if offset is None else number(offset), _bounds(body))


def encode_published(published: Published) -> dict[str, Any]:
    return published._asdict()


def decode_published(body: Any) -> Published:
    """What the body of a request says.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    if not isinstance(body, dict) or body.keys() != set(Published._fields):
        raise InvalidRequest(f"the members are {Published._fields}", code=Code.VALIDATION_FAILED)
    if not all(type(value) is int and 0 <= value <= OFFSET_MAX + 1 for value in body.values()):
        raise InvalidRequest("the members are integers", code=Code.VALIDATION_FAILED)
    return Published(**body)


def moved(bounds: Bounds) -> OffsetGone:
    """The answer for what is in object storage only, with all that is needed to find it."""
    return OffsetGone(
        "these offsets are not kept here any more",
        code=Code.MOVED,
        retryable=True,
        facts=bounds._asdict(),
    )


@said_by("ingest")
def bounds_of_moved(error: StoreError) -> Bounds:
    """The bounds that the answer `moved` tells."""
    return _bounds(error.facts)


def not_committed(committed_next: int) -> WrongOffset:
    """The answer to who says that more is published than was ever committed."""
    return WrongOffset(
        "more is said to be published than was committed",
        facts={"committed_next": committed_next},
    )


def _bounds(members: Mapping[str, Any]) -> Bounds:
    last_chunk_offset = members.get("last_chunk_offset")
    last_timestamp = members.get("last_timestamp")
    return Bounds(
        epoch=number(members["epoch"]),
        local_first_offset=number(members["local_first_offset"]),
        committed_next=number(members["committed_next"]),
        published_next=number(members["published_next"]),
        version=number(members["version"]),
        last_chunk_offset=None if last_chunk_offset is None else number(last_chunk_offset),
        last_timestamp=None if last_timestamp is None else number(last_timestamp),
    )


def _commit(members: Any) -> Commit:
    return Commit(
        stream_id=parse_stream_id(members["stream_id"]),
        epoch=number(members["epoch"]),
        committed_next=number(members["committed_next"]),
        published_next=number(members["published_next"]),
        log_end=number(members["log_end"]),
        target_bytes=number(members["target_bytes"]),
        max_age_ms=number(members["max_age_ms"]),
    )


def _optional(value: str | None) -> int | None:
    return int(value) if value else None
