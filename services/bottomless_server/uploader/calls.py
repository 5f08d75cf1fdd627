"""The calls that the uploader makes, with typed answers. Contract: openapi/internal.yaml."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bottomless.errors import Code, Unavailable
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid, parse_uid
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.tail import (
    CHUNKS,
    COMMITS,
    ChunkRun,
    ChunksAsked,
    Commits,
    CommitsAsked,
    decode_commits,
    decode_run,
)

_T = TypeVar("_T")

POLL_MARGIN_SECONDS = 10.0
"""A long poll may answer this much later than it was asked to before it counts as lost."""
FETCH_SIZE_MAX = 16 * MIB
"""A fragment is fetched in parts, since the owner holds each of them in memory too."""
FETCH_TIMEOUT_SECONDS = 60.0
"""Room for a large fragment over a slow link."""
REGISTER_TIMEOUT_SECONDS = 30.0
"""Longer than the manifest waits for a fragment to be applied."""


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
    def __init__(self, peer: PeerPort) -> None:
        self._peer = peer

    async def commits(self, after: str | None, wait_ms: int) -> Commits:
        """Streams that changed since the token `after`; all with unpublished data without one."""
        answer = await self._peer.call(
            "GET",
            COMMITS,
            params=CommitsAsked(wait_ms, after).params(),
            timeout_seconds=wait_ms / 1000 + POLL_MARGIN_SECONDS,
        )
        return decode_commits(answer.body)

    async def chunks(self, stream_id: StreamId, first_offset: int, max_bytes: int) -> ChunkRun:
        """Whole committed chunks from the one that holds `first_offset`; fewer than asked for, maybe."""
        asked = ChunksAsked(first_offset, min(max_bytes, FETCH_SIZE_MAX))
        answer = await self._peer.fetch(
            of_stream(CHUNKS, stream_id),
            params=asked.params(),
            timeout_seconds=FETCH_TIMEOUT_SECONDS,
        )
        run = decode_run(answer)
        if not run.data:
            return run._replace(first_offset=first_offset, next_offset=first_offset)
        return run


class ManifestCalls:
    def __init__(self, peer: PeerPort) -> None:
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


def _read(name: str, value: Any, parse: Callable[[Any], _T]) -> _T:
    # A peer of another version may answer anything; that is the peer's fault, not a bug here.
    try:
        return parse(value)
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"{name} gave an answer that the protocol does not know", code=Code.PEER_UNAVAILABLE
        ) from error
