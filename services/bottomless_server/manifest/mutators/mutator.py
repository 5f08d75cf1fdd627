"""The verbs of a stream's manifest: all that it can be asked to do, as `mutators.of(stream_id).trim(...)`.

A verb sends its work to the one task of the stream and waits for what comes of it. Every verb
raises what its work raises, and besides: `Overloaded` where too much waits already, `NotFound`
where there is no such stream (any more), `Unavailable` where it cannot be done now, and
`Corrupt` where the manifest is damaged. Apart from the first these come from opening the stream.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from bottomless.errors import Fenced, Overloaded
from bottomless.model.config import RetentionConfig
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node
from bottomless.model.names import NodeId, StreamId, Uid
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators import (
    accept_gap,
    hot_fragments,
    losing,
    moves,
    range_moves,
    retention,
    sessions,
    takeover,
    tiering,
)
from bottomless_server.manifest.mutators.stream_task import StreamTask, draining
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.hot_ranges import Fetched
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.manifest.tree.core.takeovers import GoesOn
from bottomless_server.manifest.tree.core.tiering import Tiering
from bottomless_server.manifest.tree.outcomes import FragmentOutcome
from bottomless_server.protocol.uploads import Intended


class Mutator:
    """The verbs of one stream, and what its task knows of it."""

    def __init__(self, context: Context, stream_id: StreamId) -> None:
        self._context = context
        self._task = StreamTask(context, stream_id)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, waits, or is to be published later."""
        return self._task.idle

    @property
    def record(self) -> StreamRecord | None:
        """The last record that this process knows, if it knows one."""
        return self._task.record

    @property
    def next_change(self) -> asyncio.Event:
        """Set at the next change: of the version, or of what became of a fragment.

        Take it before looking, or a change in between is missed.
        """
        return self._task.next_change

    def outcomes(self, uids: Sequence[Uid]) -> dict[Uid, FragmentOutcome]:
        """Tell what became of fragments, as far as it is known."""
        return self._task.outcomes(uids)

    def tell_again(self) -> None:
        """Tell the owner of the stream's end once more what is published."""
        self._task.tell_again()

    async def refresh(self) -> tuple[StreamRecord, Node]:
        """Take up what others changed; returns the record and the root that it names."""

        async def work(committer: Committer) -> tuple[StreamRecord, Node]:
            await committer.refresh()
            return committer.record, committer.keeper.root

        return await self._task.run(work)

    async def root_for(self, record: StreamRecord) -> Node:
        """A root that is at least as new as `record`; it is read again only where it has to be."""

        async def work(committer: Committer) -> Node:
            if committer.record.root != record.root:
                await committer.refresh()
            return committer.keeper.root

        return await self._task.run(work)

    async def flush(self) -> None:
        """Publish what can be published without waiting for its time."""
        await self._task.run(Committer.flush)

    async def begin(self, session: str) -> StreamRecord:
        """Make an uploader session the live one, and resolve what others left.

        Raises:
            Unavailable: not now; the same again is right.
        """
        return await self._task.run(
            lambda committer: sessions.begin(self._context, committer, session)
        )

    async def intend(
        self, session: str, first_offsets: Sequence[int], able: Collection[int] = ()
    ) -> Intended:
        """Write down that objects may be put from now on; returns the uids to put them under, with
        what the record says of them. `able` are the drives beside drive 0 where they can be put.

        Raises:
            Fenced: another session is live.
            Overloaded: too many uploads are under way.
        """

        async def work(committer: Committer) -> Intended:
            uids = await sessions.intend(self._context, committer, session, first_offsets, able)
            # As of the EXEC that took the intents in, or later.
            record = committer.record
            drives = [intent.drive for intent in record.intents if intent.uid == uids[0]]
            if not drives:
                # Whoever takes over gives up what it finds, and nothing says a drive any more.
                raise Fenced("another session has given these uploads up")
            return Intended(list(uids), record.config.filter, drives[0])

        return await self._task.run(work)

    async def abandon(self, session: str, uids: Collection[Uid]) -> None:
        """Give up intents of the live session.

        Raises:
            Fenced: another session is live.
        """
        await self._task.run(
            lambda committer: sessions.abandon(self._context, committer, session, uids)
        )

    async def register(self, session: str, fragments: Sequence[FragmentInfo]) -> StreamRecord:
        """Take fragments whose objects are durable; `outcomes` tells what becomes of each."""

        async def work(committer: Committer) -> StreamRecord:
            await committer.register(session, fragments)
            return committer.record

        return await self._task.run(work)

    async def preview(self, asked: RetentionConfig | None) -> RetentionDecision:
        """Decide what an evaluation of retention would remove now; changes nothing."""
        return await self._task.run(
            lambda committer: retention.preview(self._context, committer, asked)
        )

    async def evaluate(self) -> RetentionDecision:
        """Remove what the configuration does not keep; afterwards the new floor is published."""
        return await self._task.run(lambda committer: retention.evaluate(self._context, committer))

    async def preview_trim(self, before_offset: int, *, allow_empty: bool) -> int:
        """The floor that a trim would lead to now; changes nothing.

        Raises:
            InvalidRequest: `offset-beyond-end`.
        """
        return await self._task.run(
            lambda committer: retention.preview_trim(
                self._context, committer, before_offset, allow_empty=allow_empty
            )
        )

    async def trim(self, before_offset: int, *, allow_empty: bool) -> int:
        """Remove whole fragments below an offset; returns the floor, which is published.

        Raises:
            InvalidRequest: `offset-beyond-end`.
        """
        return await self._task.run(
            lambda committer: retention.trim(
                self._context, committer, before_offset, allow_empty=allow_empty
            )
        )

    async def take_over(
        self, expect_home: NodeId, epoch: int, named: GoesOn | None = None
    ) -> dict[str, Any]:
        """Free the stream from a home that had `epoch`, with a gap for what it may have held, or with a
        member that goes on with what it holds.

        Raises:
            Fenced: `home-live`: the home is alive, or the stream is another's by now.
        """
        return await self._task.run(
            lambda committer: takeover.take_over(
                self._context, committer, expect_home, epoch, named
            )
        )

    async def accept_gap(self, next_offset: int) -> dict[str, Any]:
        """Publish the gap that ends where the owner's log begins.

        Raises:
            WrongOffset: `offset-mismatch`: there is no such hole any more.
        """
        return await self._task.run(
            lambda committer: accept_gap.accept_gap(self._context, committer, next_offset)
        )

    async def enter_move(self, wanted: moves.Wanted) -> Move:
        """Decide that fragments go to another drive.

        Raises:
            InvalidRequest: they go nowhere, or are not published.
            Overloaded: too many moves are under way, or one of some of these fragments.
        """
        return await self._task.run(lambda committer: moves.enter(self._context, committer, wanted))

    async def claim_move(self, copy: int, session: str) -> moves.Claimed:
        """Hand a move to the run of an uploader, and tell what is to be copied.

        Raises:
            Fenced: it has ended, or another session is at it.
        """
        return await self._task.run(
            lambda committer: moves.claim(self._context, committer, copy, session)
        )

    async def finish_move(
        self, copy: int, session: str, copied: Collection[Uid], damaged: Collection[Uid] = ()
    ) -> StreamRecord:
        """Name the copies of a move, and end it: those of the fragments that were `copied` are durable.

        Raises:
            Fenced: it has ended, or is another session's.
        """
        return await self._task.run(
            lambda committer: moves.finish(self._context, committer, copy, session, copied, damaged)
        )

    async def give_up_move(self, copy: int) -> StreamRecord:
        """End a move without it; its copies go.

        Raises:
            Fenced: it has ended.
        """
        return await self._task.run(lambda committer: moves.give_up(self._context, committer, copy))

    async def lose_drive(self, number: int) -> losing.Losses:
        """Put gaps in the place of all fragments on a drive that are on no other one."""
        return await self._task.run(
            lambda committer: losing.lose_drive(self._context, committer, number)
        )

    async def preview_tiers(self) -> Tiering | None:
        """Find what the stream's policy wants moved now; changes nothing. None without a policy."""
        return await self._task.run(lambda committer: tiering.preview(self._context, committer))

    async def evaluate_tiers(self) -> list[Move]:
        """Enter the first moves that the stream's policy wants, as many as there is room for."""
        return await self._task.run(lambda committer: tiering.evaluate(self._context, committer))

    async def move_range(
        self, first_offset: int, next_offset: int, drive: int
    ) -> range_moves.Entered:
        """Enter moves of all that lies between two offsets to a drive, as many as there is room for.

        Raises:
            InvalidRequest: there is no offset between, or not all are published.
            Overloaded: too many moves are under way.
        """
        return await self._task.run(
            lambda committer: range_moves.move_range(
                self._context, committer, first_offset, next_offset, drive
            )
        )

    async def promote_range(self, first_offset: int, next_offset: int) -> range_moves.Entered:
        """Enter moves one tier up of what lies between two offsets; it stays there for a while.

        Raises:
            InvalidRequest: there is no offset between, not all are published, or there are no tiers.
            Overloaded: too many moves are under way, or promotions.
        """
        return await self._task.run(
            lambda committer: range_moves.promote_range(
                self._context, committer, first_offset, next_offset
            )
        )

    async def promote_fetched(self, fetched: Sequence[Fetched]) -> int:
        """Enter moves one tier up of what was fetched as often as its tier says; how many."""
        return await self._task.run(
            lambda committer: hot_fragments.promote_fetched(self._context, committer, fetched)
        )

    async def aclose(self) -> None:
        """End the task; work that waits is refused as `draining`."""
        await self._task.aclose()


class Mutators:
    """The mutators of this process, a bounded number; the longest unused idle one goes first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mutators: OrderedDict[StreamId, Mutator] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def of(self, stream_id: StreamId) -> Mutator:
        """The mutator of a stream; whether there is such a stream shows when it works.

        Raises:
            Overloaded: too many streams have work under way.
            Unavailable: `draining`.
        """
        if self._closed:
            raise draining()
        mutator = self._mutators.get(stream_id)
        if mutator is None:
            self._make_room()
            mutator = self._mutators[stream_id] = Mutator(self._context, stream_id)
        self._mutators.move_to_end(stream_id)
        return mutator

    def _make_room(self) -> None:
        if len(self._mutators) < self._context.settings.manifest_stream_count_max:
            return
        for stream_id, mutator in self._mutators.items():
            if mutator.idle:
                del self._mutators[stream_id]
                task = asyncio.create_task(mutator.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
                return
        raise Overloaded("too many streams are changed at once", retry_after_seconds=1)

    async def flush(self) -> None:
        """Publish all that can be published now."""
        waiting = [mutator.flush() for mutator in self._mutators.values() if not mutator.idle]
        await asyncio.gather(*waiting, return_exceptions=True)

    async def aclose(self) -> None:
        self._closed = True
        await self.forget()

    async def forget(self) -> None:
        """End all that is under way, and know nothing of any stream."""
        mutators = list(self._mutators.values())
        self._mutators.clear()
        await asyncio.gather(*(mutator.aclose() for mutator in mutators), *self._closing)
