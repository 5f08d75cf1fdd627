"""Carry out what the keeper decides: put groups, put the root, move the pointer.

One committer serves one stream, and one task calls it (`mutator.py`), so that there is
never a second change of the same manifest under way in this process; other processes
are excluded by the record's version.

What is there after a crash at each step:

1. Some groups put: nobody names them; the garbage sweep finds them.
2. The new root put: the same; the record still names the old root, which is whole.
3. EXEC done: the record names the new root, and with it `published_next`, the intents
   that are used up and the old root's place in the delete queue. All of it or nothing.

Nothing is deleted here: what an attempt has put in vain goes into the delete queue with
the next EXEC that succeeds, and a loser deletes nothing of the winner's. The answers of
an EXEC are told apart, since each asks for something else:

    published       the keeper goes on from the new root
    conflict        somebody else published: load their root, apply again
    fenced          a newer epoch: check again which fragments it allows
    unavailable     nothing was changed: the same again, later
    reply lost      first make it impossible (bump the version), then look: see `_decide`
    not found       the stream is being deleted: stop

On the record's path: after services/bottomless_server/manifest/core/keeper.py, before
services/bottomless_server/reader/core/locator.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from bottomless.coordination.base import CoordinationUnknown, Due
from bottomless.errors import Code, StoreError, Unavailable
from bottomless.formats.keys import group_key, root_key
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.stores.objects import put_object
from bottomless.stores.streams import delete_later, stream_not_found
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.core.events import (
    Action,
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
from bottomless_server.manifest.core.keeper import Keeper
from bottomless_server.manifest.core.publication import has_root, publish_in
from bottomless_server.manifest.fates import Fate, Fates
from bottomless_server.manifest.lookup import names
from bottomless_server.manifest.resolver import load_root, root_object_key

log = structlog.get_logger(__name__)

_DECIDE_RETRY_MS: Final = 500


class _Conflict(Exception):
    """The record is not what the plan was made for."""


class _NewEpoch(Exception):
    """The record's epoch is above the plan's; `record` is what was seen."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__("a newer epoch")
        self.record = record


class Committer:
    """The manifest of one stream, as this process knows and changes it."""

    def __init__(self, context: Context, keeper: Keeper) -> None:
        self._context = context
        self.keeper = keeper
        self.fates = Fates()
        self._put: set[str] = set()
        """Groups and roots that are durable, and not named by a published root that we know of."""
        self._tried: set[str] = set()
        """Those, and the ones that an attempt without an answer may have put."""
        self._undecided: Publish | None = None
        self._decide_at = 0

    @classmethod
    async def open(cls, context: Context, stream_id: StreamId) -> "Committer":
        """Take up a stream as the record and the root describe it.

        Raises:
            NotFound: there is no such stream, or it is being deleted.
            Corrupt: `data-missing` or `data-corrupt`: its root is not there, or damaged.
            CoordinationUnavailable, DriveUnavailable, DriveRefused: not now.
        """
        record, root = await load_root(context, await context.streams.load(stream_id))
        _check_active(record)
        bounds = context.settings.bounds()
        return cls(context, Keeper(record, root, bounds, context.new_uid))

    @property
    def record(self) -> StreamRecord:
        return self.keeper.record

    @property
    def idle(self) -> bool:
        return self.keeper.idle and self._undecided is None

    @property
    def wake_at(self) -> int | None:
        """When `wake` has something to do, ms since 1970."""
        return self.keeper.publish_at if self._undecided is None else self._decide_at

    def fate(self, uid: Uid) -> Fate:
        return False if self.keeper.holds(uid) else self.fates.of(uid)

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
        manifest under this uid is applied. `fate` tells the reason of a refusal.
        """
        await self.refresh()
        new = []
        for fragment in fragments:
            if fragment.first_offset >= self.record.published_next:
                new.append(fragment)
                continue
            self.fates.note(fragment.uid, True if await self._names(fragment) else Why.TAKEN)
        for fragment in new:
            self.fates.forget(fragment.uid)
        await self._handle(FragmentsRegistered(session, tuple(new)))
        fates = {fragment.uid: self.fate(fragment.uid) for fragment in fragments}
        return tuple(uid for uid, fate in fates.items() if isinstance(fate, Why))

    async def change(
        self, decide: Callable[[StreamRecord], StreamRecord], queued: Sequence[Due] = ()
    ) -> StreamRecord:
        """Change the record otherwise, and go on from it.

        Raises:
            NotFound, CoordinationUnavailable, CoordinationUnknown
        """

        def decide_active(record: StreamRecord) -> StreamRecord:
            _check_active(record)
            return decide(record)

        await self._settle()
        record = await self._context.streams.update(self.record.stream_id, decide_active, queued)
        await self.take_up(record)
        return self.record

    async def _handle(self, event: Event, now: int | None = None) -> None:
        """Feed the keeper, carry out what it says, until it says nothing more."""
        events = [event]
        while events:
            actions = self.keeper.handle(
                events.pop(0), self._context.clock() if now is None else now
            )
            follow_up = await self._carry_out(actions)
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
            for put in puts:
                await self._put_node(put)
            record = await self._exec(publish)
        except CoordinationUnknown:
            self._undecided = publish
            log.warning("the reply to a publish was lost", **self._named(publish))
            return await self._decide_now()
        except _Conflict:
            log.info("somebody else changed the manifest", **self._named(publish))
            return await self._resolve()
        except _NewEpoch as fenced:
            log.info("a newer epoch", **self._named(publish), newest=fenced.record.epoch)
            return await self._resolve()
        except Unavailable as error:
            log.warning("a root was not published", **self._named(publish), error=str(error))
            return Failed()
        return self._applied(publish, record)

    async def _put_node(self, put: PutGroup | PutRoot) -> None:
        sealed = put.group if isinstance(put, PutGroup) else put.root
        object_key = self._object_key(put)
        if object_key in self._put:
            return
        self._tried.add(object_key)
        await put_object(
            self._context.drive,
            object_key,
            [sealed.data],
            sealed.crc,
            deadline_seconds=self._context.settings.manifest_put_seconds,
        )
        self._put.add(object_key)

    def _object_key(self, put: PutGroup | PutRoot) -> str:
        tenant = self.record.tenant
        if isinstance(put, PutGroup):
            node = put.group.node
            return group_key(node.stream_id, node.first_offset, node.uid, node.height, tenant)
        node = put.root.node
        return root_key(node.stream_id, node.generation, node.epoch, node.version, node.uid, tenant)

    async def _exec(self, publish: Publish) -> StreamRecord:
        """The transaction that makes it so: pointer, bounds, intents and the old root's end."""

        def decide(record: StreamRecord) -> StreamRecord:
            _check_active(record)
            if record.epoch > publish.base.epoch:
                raise _NewEpoch(record)
            if record.version != publish.base.version:
                raise _Conflict
            if not publish.uids <= {intent.uid for intent in record.intents}:
                raise _Conflict
            return publish_in(record, publish)

        return await self._context.streams.update(
            publish.base.stream_id, decide, self._retired(publish)
        )

    def _retired(self, publish: Publish) -> list[Due]:
        due_at = self._context.clock() + self._context.settings.manifest_root_grace_ms
        mine = {self._object_key(put) for put in self._named_by(publish)}
        strays = sorted(self._tried - mine)
        old = [] if publish.base.root is None else [root_object_key(publish.base)]
        return [delete_later(object_key, due_at) for object_key in (*strays, *old)]

    def _named_by(self, publish: Publish) -> list[PutGroup | PutRoot]:
        actions = self.keeper.planned(publish.pointer.uid)
        return [action for action in actions if isinstance(action, PutGroup | PutRoot)]

    def _applied(self, publish: Publish, record: StreamRecord) -> Event:
        # The strays went into the queue with the same EXEC.
        self._put.clear()
        self._tried.clear()
        for uid in publish.uids:
            self.fates.note(uid, True)
        log.debug("published a root", **self._named(publish), next_offset=record.published_next)
        return Published(record)

    async def _resolve(self) -> Event:
        """The state that somebody else made, or a later attempt where it cannot be read."""
        try:
            return await self._resolved(await self._context.streams.load(self.record.stream_id))
        except Unavailable:
            return Failed()

    async def _resolved(self, record: StreamRecord) -> Resolved:
        _check_active(record)
        if record.version < self.record.version:
            log.critical("the record went back", stream_id=record.stream_id)
            raise Unavailable(
                "coordination shows less than it has shown before",
                code=Code.COORDINATION_REGRESSED,
                retryable=False,
            )
        return Resolved(*await load_root(self._context, record, self.keeper.root))

    async def _settle(self) -> None:
        """Decide a lost reply before anything else is done.

        Raises:
            CoordinationUnavailable, CoordinationUnknown: it still cannot be decided.
        """
        if self._undecided is not None:
            await self._handle(await self._decide())

    async def _decide_now(self) -> Event:
        try:
            return await self._decide()
        except Unavailable as error:
            # Until it is decided nothing else is done: `wake_at` says when to try again.
            log.warning("a lost reply is not decided yet", error=str(error))
            return Failed()

    async def _decide(self) -> Event:
        """Find out whether a publish without a reply happened, when it cannot happen any more.

        Reading back alone decides nothing: the EXEC may still be on its way. Any change of
        the record kills it, since it watches the record; so the version is bumped first. A
        newer epoch is such a change, and then there is nothing to bump. After a crash here
        the record is as it was, or with a higher version: both are sound.
        """
        publish = self._undecided
        assert publish is not None
        self._decide_at = self._context.clock() + _DECIDE_RETRY_MS

        def bump(record: StreamRecord) -> StreamRecord:
            if record.epoch > publish.base.epoch:
                raise _NewEpoch(record)
            return replace(record, version=record.version + 1)

        try:
            record = await self._context.streams.update(publish.base.stream_id, bump)
        except _NewEpoch as fenced:
            record = fenced.record
        applied = has_root(record, publish.pointer.uid)
        log.info("a lost reply is decided", **self._named(publish), applied=applied)
        if applied:
            published = self._applied(publish, record)
            newest = record.root is not None and record.root.uid == publish.pointer.uid
            self._undecided = None
            if newest:
                return published
        resolved = await self._resolved(record)
        self._undecided = None
        return resolved

    async def _note_refused(self, fragment: FragmentInfo, why: Why) -> None:
        # Another process may have published this very fragment: its intent is used up then.
        if fragment.next_offset <= self.record.published_next:
            try:
                applied = await self._names(fragment)
            except StoreError:
                # Not known now; who asks again is told then.
                self.fates.forget(fragment.uid)
                return
            if applied:
                self.fates.note(fragment.uid, True)
                return
        self.fates.note(fragment.uid, why)

    async def _names(self, fragment: FragmentInfo) -> bool:
        drive, root = self._context.drive, self.keeper.root
        return await names(drive, root, fragment.first_offset, fragment.uid)

    def _named(self, publish: Publish) -> dict[str, object]:
        return {
            "stream_id": publish.base.stream_id,
            "version": publish.pointer.version,
            "epoch": publish.pointer.epoch,
        }


def _check_active(record: StreamRecord) -> None:
    if record.state is not StreamState.ACTIVE:
        raise stream_not_found()
