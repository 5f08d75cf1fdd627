"""The calls that the uploader makes, with typed answers. Contract: openapi/internal.yaml."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from bottomless.errors import Code, Unavailable
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid, parse_stream_id, parse_uid
from bottomless_server.runtime.peers.peers import PeerAnswer, PeerBytes
from bottomless_server.uploader.core.cutter import ChunksFetched, CommitSeen

_T = TypeVar("_T")

POLL_MARGIN_SECONDS = 10.0
"""A long poll may answer this much later than it was asked to before it counts as lost."""
FETCH_SIZE_MAX = 16 * MIB
"""A fragment is fetched in parts, since the owner holds each of them in memory too."""
FETCH_TIMEOUT_SECONDS = 60.0
"""Room for a large fragment over a slow link."""
REGISTER_TIMEOUT_SECONDS = 30.0
"""Longer than the manifest waits for a fragment to be applied."""


class CallPeer(Protocol):
    """What is used of runtime.peers.Peer."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Any = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer: ...

    async def fetch(
        self,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes: ...

    async def aclose(self) -> None: ...


class CallPeers(Protocol):
    """What is used of runtime.peers.Peers."""

    def at(self, url: str, /) -> CallPeer: ...

    async def aclose(self) -> None: ...


class StreamCommit(NamedTuple):
    stream_id: StreamId
    published_next: int
    seen: CommitSeen


class Commits(NamedTuple):
    token: str
    streams: tuple[StreamCommit, ...]


class ChunkRun(NamedTuple):
    data: bytes | memoryview
    fetched: ChunksFetched
    epoch: int
    """The epoch of the owner that gave it."""


class Opened(NamedTuple):
    """Where a new session begins."""

    published_next: int
    version: int
    epoch: int
    tenant: str
    """Under whose prefix the stream's objects are."""


class Registered(NamedTuple):
    published_next: int
    applied: frozenset[Uid]


class IngestCalls:
    def __init__(self, peer: CallPeer) -> None:
        self._peer = peer

    async def commits(self, after: str | None, wait_ms: int) -> Commits:
        """Streams that changed since the token `after`; all with unpublished data without one."""
        params: dict[str, str | int] = {"wait_ms": wait_ms}
        if after is not None:
            params["after"] = after
        answer = await self._peer.call(
            "GET",
            "/internal/v1/commits",
            params=params,
            timeout_seconds=wait_ms / 1000 + POLL_MARGIN_SECONDS,
        )
        return _read("ingest", answer.body, _commits)

    async def chunks(self, stream_id: StreamId, first_offset: int, max_bytes: int) -> ChunkRun:
        """Whole committed chunks from the one that holds `first_offset`; fewer than asked for, maybe."""
        size_max = min(max_bytes, FETCH_SIZE_MAX)
        answer = await self._peer.fetch(
            f"/internal/v1/streams/{stream_id}/chunks",
            params={"first_offset": first_offset, "max_bytes": size_max, "wait_ms": 0},
            timeout_seconds=FETCH_TIMEOUT_SECONDS,
        )
        headers = {name.lower(): value for name, value in answer.headers.items()}
        fetched = _read("ingest", headers, lambda h: _fetched(h, len(answer.data)))
        epoch = _read("ingest", headers, lambda h: int(h["chunks-epoch"]))
        if not answer.data:
            fetched = fetched._replace(first_offset=first_offset, next_offset=first_offset)
        return ChunkRun(answer.data, fetched, epoch)


class ManifestCalls:
    def __init__(self, peer: CallPeer) -> None:
        self._peer = peer

    async def node_urls(self) -> list[str]:
        """Where the ingest nodes are that are alive."""
        answer = await self._peer.call("GET", "/internal/v1/nodes")
        return _read("manifest", answer.body, lambda b: [str(node["url"]) for node in b["nodes"]])

    async def uploads(self, stream_id: StreamId, session: str) -> Opened:
        """Begin a session; the manifest adopts or gives up what other sessions left."""
        body = await self._post(stream_id, "uploads", {"session": session})
        return _read(
            "manifest",
            body,
            lambda b: Opened(
                int(b["published_next"]), int(b["version"]), int(b["epoch"]), str(b["tenant"])
            ),
        )

    async def intents(
        self, stream_id: StreamId, session: str, first_offsets: Sequence[int]
    ) -> list[Uid]:
        """One uid for each fragment that is about to be put."""
        body = await self._post(
            stream_id, "intents", {"session": session, "first_offsets": list(first_offsets)}
        )
        return _read(
            "manifest",
            body,
            lambda b: [
                uid for uid, _ in zip(map(parse_uid, b["uids"]), first_offsets, strict=True)
            ],
        )

    async def register(
        self, stream_id: StreamId, session: str, fragments: Sequence[FragmentInfo]
    ) -> Registered:
        """Tell of uploaded fragments; waits a bounded time until they are applied."""
        body = await self._post(
            stream_id,
            "fragments",
            {"session": session, "fragments": [info._asdict() for info in fragments]},
        )
        return _read(
            "manifest",
            body,
            lambda b: Registered(int(b["published_next"]), frozenset(map(parse_uid, b["applied"]))),
        )

    async def abandon(self, stream_id: StreamId, session: str, uids: Sequence[Uid]) -> None:
        await self._post(stream_id, "abandon", {"session": session, "uids": list(uids)})

    async def aclose(self) -> None:
        await self._peer.aclose()

    async def _post(self, stream_id: StreamId, what: str, body: Mapping[str, Any]) -> Any:
        answer = await self._peer.call(
            "POST",
            f"/internal/v1/streams/{stream_id}/{what}",
            body=body,
            timeout_seconds=REGISTER_TIMEOUT_SECONDS,
        )
        return answer.body


def _commits(body: Any) -> Commits:
    return Commits(str(body["token"]), tuple(map(_stream_commit, body["streams"])))


def _stream_commit(item: Any) -> StreamCommit:
    seen = CommitSeen(
        epoch=int(item["epoch"]),
        committed_next=int(item["committed_next"]),
        log_end=int(item["log_end"]),
        target_bytes=int(item["target_bytes"]),
        max_age_ms=int(item["max_age_ms"]),
    )
    return StreamCommit(parse_stream_id(item["stream_id"]), int(item["published_next"]), seen)


def _fetched(headers: Mapping[str, str], size: int) -> ChunksFetched:
    return ChunksFetched(
        first_offset=int(headers["chunks-first-offset"]),
        next_offset=int(headers["chunks-next-offset"]),
        size=size,
        log_end=int(headers["chunks-log-end"]),
    )


def _read(name: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    # A peer of another version may answer anything; that is the peer's fault, not a bug here.
    try:
        return parse(value)
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"{name} gave an answer that the protocol does not know", code=Code.PEER_UNAVAILABLE
        ) from error
