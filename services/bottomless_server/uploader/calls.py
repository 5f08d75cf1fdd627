"""The calls that the uploader makes, with typed answers. Contract: openapi/internal.yaml."""

from collections.abc import Mapping, Sequence
from typing import Any

from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless_server.protocol.moves import (
    CLAIM,
    FINISH,
    GIVE_UP,
    MOVES,
    MoveClaimed,
    MovesAsked,
    MovesFound,
    decode_claimed,
    decode_found,
    encode_claim,
    encode_finish,
    encode_give_up,
)
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import NODES, decode_nodes
from bottomless_server.protocol.tail import (
    COMMITS,
    ChunkRun,
    ChunksAsked,
    Commits,
    CommitsAsked,
    HeadsRun,
    decode_commits,
)
from bottomless_server.protocol.uploads import (
    ABANDON,
    FRAGMENTS,
    INTENTS,
    UPLOADS,
    Intended,
    Opened,
    Registered,
    decode_intended,
    decode_opened,
    decode_registered,
    encode_abandon,
    encode_begin,
    encode_intents_asked,
    encode_register,
)
from bottomless_server.runtime.peers.tail_chunks import chunk_source

POLL_MARGIN_SECONDS = 10.0
"""A long poll may answer this much later than it was asked to before it counts as lost."""
FETCH_SIZE_MAX = 16 * MIB
"""A fragment is fetched in parts, since the owner holds each of them in memory too."""
FETCH_TIMEOUT_SECONDS = 60.0
"""Room for a large fragment over a slow link."""
REGISTER_TIMEOUT_SECONDS = 30.0
"""Longer than the manifest waits for a fragment to be applied."""


class IngestCalls:
    def __init__(self, peer: PeerPort, url: str) -> None:
        self._peer = peer
        self._source = chunk_source(peer, url)

    async def commits(self, after: str | None, wait_ms: int) -> Commits:
        """Streams that changed since the token `after`; all with unpublished data without one."""
        answer = await self._peer.call(
            "GET",
            COMMITS,
            params=CommitsAsked(wait_ms, after).params(),
            timeout_seconds=wait_ms / 1000 + POLL_MARGIN_SECONDS,
        )
        return decode_commits(answer.body)

    def reads_files(self, stream_id: StreamId) -> bool:
        """Whether what `chunks` brings of a stream usually is not in memory."""
        return self._source.reads_files(stream_id)

    async def chunks(
        self, stream_id: StreamId, first_offset: int, max_bytes: int
    ) -> ChunkRun | HeadsRun:
        """Fetch whole committed chunks from the one that holds `first_offset`, or their headers;
        perhaps fewer than asked for.
        """
        asked = ChunksAsked(first_offset, min(max_bytes, FETCH_SIZE_MAX))
        run = await self._source.heads(stream_id, asked, timeout_seconds=FETCH_TIMEOUT_SECONDS)
        if isinstance(run, ChunkRun) and not run.data:
            return run._replace(first_offset=first_offset, next_offset=first_offset)
        return run


class ManifestCalls:
    def __init__(self, peer: PeerPort) -> None:
        self._peer = peer

    async def node_urls(self) -> list[str]:
        """Where the ingest nodes are that are alive."""
        answer = await self._peer.call("GET", NODES)
        return [node.url for node in decode_nodes(answer.body)]

    async def uploads(self, stream_id: StreamId, session: str) -> Opened:
        """Begin a session; the manifest adopts or gives up what other sessions left."""
        return decode_opened(await self._post(UPLOADS, stream_id, encode_begin(session)))

    async def intents(
        self,
        stream_id: StreamId,
        session: str,
        first_offsets: Sequence[int],
        drives: Sequence[int] = (),
    ) -> Intended:
        """One uid for each fragment that is about to be put, which filters they are to have, and the
        drive where they are to be put: drive 0, or one of those that are given."""
        asked = encode_intents_asked(session, first_offsets, drives)
        return decode_intended(await self._post(INTENTS, stream_id, asked), first_offsets)

    async def register(
        self, stream_id: StreamId, session: str, fragments: Sequence[FragmentInfo]
    ) -> Registered:
        """Tell of uploaded fragments; waits a bounded time until they are applied."""
        asked = encode_register(session, fragments)
        return decode_registered(await self._post(FRAGMENTS, stream_id, asked))

    async def abandon(self, stream_id: StreamId, session: str, uids: Sequence[Uid]) -> None:
        await self._post(ABANDON, stream_id, encode_abandon(session, uids))

    async def find_moves(self, session: str, after: str | None = None) -> MovesFound:
        """Look at some streams after the stream `after` for moves that no other session is at."""
        answer = await self._peer.call(
            "GET", MOVES, params=MovesAsked(session, after or "").params()
        )
        return decode_found(answer.body)

    async def claim_move(self, stream_id: StreamId, copy: int, session: str) -> MoveClaimed:
        """Take up a move, or say that this session is still at it.

        Raises:
            Fenced: it has ended, or another session is at it.
        """
        return decode_claimed(await self._post(CLAIM, stream_id, encode_claim(session, copy)))

    async def finish_move(
        self,
        stream_id: StreamId,
        copy: int,
        session: str,
        uids: Sequence[Uid],
        damaged: Sequence[Uid] = (),
    ) -> None:
        """Have the manifest name the copies of these fragments of a move, all of which are durable, and
        leave alone for a while those that are `damaged`.

        Raises:
            Fenced: it has ended, perhaps by an earlier try of this; or another session is at it.
        """
        await self._post(FINISH, stream_id, encode_finish(session, copy, uids, damaged))

    async def give_up_move(self, stream_id: StreamId, copy: int) -> None:
        """End a move without it; its copies go.

        Raises:
            Fenced: it has ended.
        """
        await self._post(GIVE_UP, stream_id, encode_give_up(copy))

    async def aclose(self) -> None:
        await self._peer.aclose()

    async def _post(self, path: str, stream_id: StreamId, body: Mapping[str, Any]) -> Any:
        answer = await self._peer.call(
            "POST",
            of_stream(path, stream_id),
            body=body,
            timeout_seconds=REGISTER_TIMEOUT_SECONDS,
        )
        return answer.body
