"""Carry out what the keeper decides about one stream, and tell it what came of it.

One committer serves one stream, and one task calls it (`../mutators/stream_task.py`), so that there is
never a second change of the same manifest under way in this process; other processes
are excluded by the record's version.

The attempts themselves, and what a crash in one leaves, are `publish_attempts.py`'s. The answers
of an EXEC are told apart, since each asks for something else:

    published       the keeper goes on from the new root
    conflict        somebody else published: load their root, apply again
    fenced          a newer epoch: check again which fragments it allows
    unavailable     nothing was changed: the same again, later
    reply lost      first make it impossible (bump the version), then look: see `decide`
    not found       the stream is being deleted: stop

On the record's path: after services/bottomless_server/manifest/tree/core/publish_decision.py, before
services/bottomless_server/reader/core/locator.py.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from bottomless.errors import Outcome, StoreError, Unavailable
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, with_its_drives
from bottomless_server.coordination.base import CoordinationUnknown, Due
from bottomless_server.core.regressed import coordination_outdated
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import names
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.tree.core.events import (
    Action,
    Edit,
    EditAsked,
    Event,
    Failed,
    FragmentsRegistered,
    Publish,
    PublishAt,
    Published,
    PutGroup,
    PutRoot,
    Refuse,
    Resolved,
    TimeReached,
    Why,
)
from bottomless_server.manifest.tree.core.publish_decision import Keeper, PublishBounds
from bottomless_server.manifest.tree.going_back import require_not_gone_back
from bottomless_server.manifest.tree.outcomes import FragmentOutcome, FragmentOutcomes
from bottomless_server.manifest.tree.publish_attempts import (
    Publisher,
    Superseded,
    check_active,
    named,
)
from bottomless_server.manifest.tree.resolver import load_root

log = structlog.get_logger(__name__)

_EDIT_ATTEMPT_COUNT: Final = 4
"""Others change the same manifest only in a handover between processes."""


class Committer:
    """The manifest of one stream, as this process knows and changes it."""

    def __init__(self, context: Context, keeper: Keeper) -> None:
        self._context = context
        self.keeper = keeper
        self.outcomes = FragmentOutcomes()
        self._publisher = Publisher(context)
        self._edited: Edit | None = None
        """The last edit that is published."""

    @classmethod
    async def open(cls, context: Context, stream_id: StreamId) -> "Committer":
        """Take up a stream as the record and the root describe it.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
            Corrupt: `data-missing` or `data-corrupt`: its root is not there, or damaged.
            Unavailable: `coordination-regressed`: the record is older than the bucket.
            CoordinationUnavailable, DriveUnavailable, DriveRefused: not now.
        """
        record, root = await load_root(context, await context.streams.load(stream_id))
        check_active(record)
        await require_not_gone_back(context, record)
        bounds = publish_bounds(context.settings)
        return cls(context, Keeper(record, root, bounds, context.new_uid))

    @property
    def record(self) -> StreamRecord:
        return self.keeper.record

    @property
    def idle(self) -> bool:
        return self.keeper.idle and self._publisher.undecided is None

    @property
    def wake_at(self) -> int | None:
        """When `wake` has something to do, by `Context.elapsed`."""
        if self._publisher.undecided is not None:
            return self._publisher.decide_at
        return self.keeper.publish_at

    def outcome(self, uid: Uid) -> FragmentOutcome:
        return False if self.keeper.holds(uid) else self.outcomes.of(uid)

    async def wake(self) -> None:
        """Do what is due now."""
        await self._settle()
        await self._handle(TimeReached())

    async def flush(self) -> None:
        """Publish what can be published without waiting for its time."""
        await self._settle()
        if self.keeper.publish_at is not None:
            await self._handle(TimeReached(), now=self.keeper.publish_at)

    async def refresh(self) -> None:
        """Take up what others changed in the record since.

        Raises:
            NotFound, CoordinationUnavailable, DriveUnavailable, DriveRefused, Corrupt
        """
        await self._settle()
        await self.take_up(await self._context.streams.load(self.record.stream_id))

    async def take_up(self, record: StreamRecord) -> None:
        """Go on from a record that was just read or written."""
        await self._handle(await self._resolved(record))

    async def register(
        self, session: str | None, fragments: Sequence[FragmentInfo]
    ) -> tuple[Uid, ...]:
        """Take fragments whose objects are durable; returns the uids refused.

        Repeating is harmless: a fragment that waits goes on waiting, one that is in the
        manifest under this uid is applied. `outcome` tells the reason of a refusal.
        """
        await self.refresh()
        # On which drive a fragment lies says its intent, and never who has put it.
        drives = {intent.uid: intent.drive for intent in self.record.intents}
        new = []
        for told in fragments:
            fragment = told._replace(drive=drives.get(told.uid, told.drive))
            if fragment.first_offset >= self.record.published_next:
                new.append(fragment)
                continue
            self.outcomes.note(fragment.uid, True if await self._names(fragment) else Why.TAKEN)
        for fragment in new:
            self.outcomes.forget(fragment.uid)
        await self._handle(FragmentsRegistered(session, tuple(new)))
        outcomes = {fragment.uid: self.outcome(fragment.uid) for fragment in fragments}
        return tuple(uid for uid, outcome in outcomes.items() if isinstance(outcome, Why))

    async def change(
        self, decide: Callable[[StreamRecord], StreamRecord], queued: Sequence[Due] = ()
    ) -> StreamRecord:
        """Change the record otherwise, and go on from it. Drives that it names from then on become drives
        of the stream in the same transaction.

        Raises:
            NotFound, CoordinationUnavailable, CoordinationUnknown
        """

        def decide_active(record: StreamRecord) -> StreamRecord:
            check_active(record)
            return with_its_drives(decide(record))

        await self._settle()
        record = await self._context.streams.update(self.record.stream_id, decide_active, queued)
        await self.take_up(record)
        return self.record

    async def edit(
        self, work_out: Callable[[StreamRecord, Node], Awaitable[Edit | None]]
    ) -> StreamRecord:
        """Publish an edit that `work_out` finds from the manifest as it is; None asks for nothing.

        It is asked again where others changed the manifest in between. When this returns, the
        root that has the edit is the stream's root.

        Raises:
            Unavailable: it may be published or not; the same again is right.
            NotFound, and whatever `work_out` raises.
        """
        for _ in range(_EDIT_ATTEMPT_COUNT):
            await self.refresh()
            edit = await work_out(self.record, self.keeper.root)
            if edit is None:
                return self.record
            await self._handle(EditAsked(edit))
            if self._edited is edit:
                return self.record
        raise Unavailable("the manifest was not changed yet", outcome=Outcome.UNKNOWN)

    async def _handle(self, event: Event, now: int | None = None) -> None:
        """Feed the keeper, carry out what it says, until it says nothing more.

        `now` is the time of this event alone: what follows from it happens when it happens, or a
        flush that failed would be tried again as late as if its time had come first.
        """
        events = [event]
        while events:
            at, now = self._context.elapsed() if now is None else now, None
            follow_up = await self._carry_out(self.keeper.handle(events.pop(0), at))
            self.keeper.check()
            events += follow_up

    async def _carry_out(self, actions: Sequence[Action]) -> list[Event]:
        puts: list[PutGroup | PutRoot] = []
        follow_up: list[Event] = []
        for action in actions:
            match action:
                case Refuse(fragments, why):
                    for fragment in fragments:
                        await self._note_refused(fragment, why)
                case PublishAt():
                    pass  # the mutator asks for `wake_at`
                case PutGroup() | PutRoot():
                    puts.append(action)
                case Publish():
                    follow_up.append(await self._publish(puts, action))
        return follow_up

    async def _publish(self, puts: Sequence[PutGroup | PutRoot], publish: Publish) -> Event:
        """One attempt; the answer is what the keeper has to know."""
        try:
            record = await self._publisher.publish(puts, publish)
        except CoordinationUnknown:
            return await self._decide_now()
        except Superseded as superseded:
            self._context.counts.conflicts += 1
            log.info(
                "somebody else changed the record",
                **named(publish),
                newest_version=superseded.record.version,
                newest_epoch=superseded.record.epoch,
            )
            return await self._resolve()
        except Unavailable as error:
            log.warning("a root was not published", **named(publish), error=str(error))
            return Failed()
        self._note_applied(publish)
        return Published(record)

    def _note_applied(self, publish: Publish) -> None:
        self._context.counts.publishes += 1
        for uid in publish.uids:
            self.outcomes.note(uid, True)
        if publish.edit is not None:
            self._edited = publish.edit
        log.debug("published a root", **named(publish), next_offset=publish.next_offset)

    async def _resolve(self, record: StreamRecord | None = None) -> Event:
        """The state that somebody else made, or a later attempt where it cannot be read."""
        try:
            if record is None:
                record = await self._context.streams.load(self.record.stream_id)
            return await self._resolved(record)
        except Unavailable:
            return Failed()

    async def _resolved(self, record: StreamRecord) -> Resolved:
        check_active(record)
        if record.version < self.record.version:
            log.critical("the record went back", stream_id=record.stream_id)
            raise coordination_outdated("coordination shows less than it has shown before")
        return Resolved(*await load_root(self._context, record, self.keeper.root))

    async def _settle(self) -> None:
        """Decide a lost reply before anything else is done.

        Raises:
            CoordinationUnavailable, CoordinationUnknown: it still cannot be decided.
        """
        if self._publisher.undecided is not None:
            await self._handle(await self._decide())

    async def _decide_now(self) -> Event:
        try:
            return await self._decide()
        except Unavailable as error:
            # Until it is decided nothing else is done: `wake_at` says when to try again.
            log.warning("a lost reply is not decided yet", error=str(error))
            return Failed()

    async def _decide(self) -> Event:
        publish = self._publisher.undecided
        assert publish is not None
        record, applied = await self._publisher.decide()
        if applied:
            self._note_applied(publish)
            uid = publish.pointer.uid
            if record.root is not None and record.root.uid == uid and self.keeper.plans(uid):
                return Published(record)
        return await self._resolve(record)

    async def _note_refused(self, fragment: FragmentInfo, why: Why) -> None:
        # Another process may have published this very fragment: its intent is used up then.
        if fragment.next_offset <= self.record.published_next:
            try:
                applied = await self._names(fragment)
            except StoreError:
                # Not known now; who asks again is told then.
                self.outcomes.forget(fragment.uid)
                return
            if applied:
                self.outcomes.note(fragment.uid, True)
                return
        self.outcomes.note(fragment.uid, why)

    async def _names(self, fragment: FragmentInfo) -> bool:
        drive, root = self._context.drive, self.keeper.root
        return await names(drive, self.record.tenant, root, fragment.first_offset, fragment.uid)


def publish_bounds(settings: ManifestSettings) -> PublishBounds:
    """The settings that say when to publish, and how much to hold."""
    return PublishBounds(
        fanout=settings.manifest_fanout,
        debounce_ms=settings.manifest_debounce_ms,
        debounce_count=settings.manifest_debounce_count,
        held_count_max=settings.manifest_held_count_max,
        root_wait_ms=settings.manifest_root_wait_ms,
    )
