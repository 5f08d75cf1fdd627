"""Commits of staged batches of leaderless streams: what many have staged becomes one append, once.

A commit names batches in order, under a producer's number (`Txn-Number`). They are read one after the
other and put into WAL objects, each of which has as many as one append of the local profile may
have; then one EXEC gives all of them their offsets, with the number. So there are no parts that
others could see, no plan, and nothing to finish: whatever is cut off before that EXEC stores nothing.

Which number is stored coordination alone tells, so a repeat is answered by any node, with
whatever batches it comes.

What is there after a crash at each step, and what the same number then does:

    batches staged     objects of the stream; they go after an hour. Appends what it names.
    objects put        WAL objects that nothing names; they go with the prefix of their instance. The
                       same.
    EXEC               the records are visible, and the number is stored. Answers as a repeat.
    batches deleted    the same.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from bottomless.errors import Code, InvalidRequest, NotFound
from bottomless.formats.rows import Frame
from bottomless.model.limits import BINARY_BODY_SIZE_MAX
from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import name_of
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds, RememberedNames
from bottomless_server.ingest.leaderless.known_producers import KnownProducers
from bottomless_server.ingest.leaderless.staged_batches import StagedObjects
from bottomless_server.ingest.leaderless.writing import Writer
from bottomless_server.ingest.producers.commit_plan import PartSpace
from bottomless_server.ingest.producers.producers import Appended, known_of
from bottomless_server.ingest.records.conditions import Conditions, FromProducer, commit_of
from bottomless_server.ingest.records.intake import Append, take_staged
from bottomless_server.ingest.turns import Turns
from bottomless_server.node.room import MemoryRoom

_ROOM_SECONDS: Final = 30.0
"""Longer than small appends wait: a commit needs much room at once."""
_RECORD_COUNT_MAX: Final = 2**32 - 1
"""Records of one append, which has 32 bits for their number."""


class LeaderlessCommits:
    """Commits of staged batches, of each producer one at a time at this node."""

    def __init__(
        self,
        batches: StagedObjects,
        producers: KnownProducers,
        writer: Writer,
        room: MemoryRoom,
        bounds: KnownBounds,
        *,
        group_size_max: int,
        commit_size_max: int,
    ) -> None:
        """`group_size_max` are the bytes that one commit has in memory, `commit_size_max` those of all
        batches that it names."""
        self._batches = batches
        self._producers = producers
        self._writer = writer
        self._room = room
        self._bounds = bounds
        self._group_size_max = group_size_max
        self._commit_size_max = commit_size_max
        self._turns = Turns()

    async def commit(
        self, stream_id: StreamId, tenant: str, conditions: Conditions, staged_ids: Sequence[str]
    ) -> Appended:
        """Append staged batches, or answer what an earlier request with this number got.

        Raises:
            StoreError: with the outcome that is known; the same request again is right.
        """
        asked = commit_of(conditions)

        async def decided() -> Appended:
            answer = await self._repeated(stream_id, tenant, asked, conditions, staged_ids)
            if answer is not None:
                answer = await self._writer.noted(stream_id, answer)
            else:
                answer = await self._stored(stream_id, tenant, asked, conditions, staged_ids)
            await self._batches.drop(stream_id, tenant, staged_ids)
            return answer

        return await self._turns.take(stream_id, asked.producer_id, decided)

    async def _stored(
        self,
        stream_id: StreamId,
        tenant: str,
        asked: FromProducer,
        conditions: Conditions,
        staged_ids: Sequence[str],
    ) -> Appended:
        """Append what no number stands for yet.

        Raises:
            StoreError: as `commit`.
        """
        try:
            async with self._room.hold(stream_id, self._group_size_max, _ROOM_SECONDS):
                parts = self._parts(stream_id, tenant, conditions, staged_ids)
                async with aclosing(parts):
                    return await self._writer.commit_staged(stream_id, parts)
        except NotFound as error:
            if error.code is not Code.STAGED_NOT_FOUND:
                raise
            # Another node may have stored the same commit meanwhile, and have deleted its batches.
            answer = await self._repeated(stream_id, tenant, asked, conditions, staged_ids)
            if answer is None:
                raise
            return await self._writer.noted(stream_id, answer)

    async def stop(self) -> None:
        """Return when no commit is under way."""
        await self._turns.stop()

    async def _repeated(
        self,
        stream_id: StreamId,
        tenant: str,
        asked: FromProducer,
        conditions: Conditions,
        staged_ids: Sequence[str],
    ) -> Appended | None:
        """What the original of a repeat was answered, None if this is none. Where it is too old to be
        remembered the duplicates are what this one names, as far as that is there.

        Raises:
            StoreError: the producer may not append this.
        """
        tail, known = await self._producers.look(stream_id, [name_of(asked)])
        tracking = RememberedNames(known, self._bounds).tracking
        verdict = known_of(tracking, Append(0, 0, 0, conditions=conditions), tail.next_offset)
        if not isinstance(verdict, Appended):
            return None
        if verdict.first_offset is None:
            named = await self._batches.record_count(stream_id, tenant, staged_ids)
            return verdict._replace(duplicates=named)
        return verdict._replace(duplicates=verdict.next_offset - verdict.first_offset)

    async def _parts(
        self, stream_id: StreamId, tenant: str, conditions: Conditions, staged_ids: Sequence[str]
    ) -> AsyncGenerator[Append, None]:
        """The appends that are one: as many whole batches each as fit, with the next one in memory.

        Raises:
            NotFound: `staged-not-found`.
            InvalidRequest: they are more than one commit may have.
            Corrupt, Unavailable: with outcome none.
        """
        part: list[Frame] = []
        size_max = self._group_size_max - BINARY_BODY_SIZE_MAX
        space, total, record_count = PartSpace(size_max), 0, 0
        for staged_id in staged_ids:
            frames = await self._batches.read(stream_id, tenant, staged_id)
            size = sum(frame.size for frame in frames)
            count = sum(frame.record_count for frame in frames)
            total, record_count = total + size, record_count + count
            if total > self._commit_size_max or record_count > _RECORD_COUNT_MAX:
                raise self._too_large()
            if not space.take(size, count, len(frames)):
                yield take_staged(part, conditions)
                part, space = [], PartSpace(size_max)
                space.take(size, count, len(frames))
            part += frames
        yield take_staged(part, conditions)

    def _too_large(self) -> InvalidRequest:
        return InvalidRequest(
            "the staged batches are more than one commit may have",
            code=Code.BATCH_TOO_LARGE,
            facts={"limit_bytes": self._commit_size_max, "limit_count": _RECORD_COUNT_MAX},
        )
