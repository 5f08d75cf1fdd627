"""Make one attempt to publish: put groups, put the root, move the pointer.

What is there after a crash at each step:

1. Some groups put: nobody names them; the garbage sweep finds them.
2. The new root put: the same; the record still names the old root, which is whole.
3. EXEC done: the record names the new root, and with it `published_next`, the intents
   that are used up, and in the delete queues the old root and what an edit made
   unreachable; of a relocation, what it displaced, and without the move. All of it or nothing.

Nothing is deleted here: what an attempt has put in vain goes into the delete queue with
the next EXEC that succeeds, and a loser deletes nothing of the winner's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from bottomless.formats.keys import group_key, root_key
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import CoordinationUnknown, Due
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.core import publication
from bottomless_server.manifest.tree.core.delete_queue import (
    copies_target,
    delete_target,
    displaced_target,
)
from bottomless_server.manifest.tree.core.events import Publish, PutGroup, PutRoot
from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.streams import delete_later, deletes_key

log = structlog.get_logger(__name__)

_DECIDE_RETRY_MS: Final = 500


class Superseded(Exception):
    """The record is not what the plan was made for; `record` is what was seen."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__("the record changed")
        self.record = record


class Publisher:
    """The attempts of one stream in this process, and what they have put."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._put: set[str] = set()
        """Groups and roots that are durable, and not named by a published root that we know of."""
        self._tried: set[str] = set()
        """The keys in `_put`, and those that an attempt without an answer may have put."""
        self.undecided: Publish | None = None
        """The reply to its EXEC was lost; until it is decided nothing else may be tried."""
        self.decide_at = 0
        self._known: tuple[Uid | None, int] = None, 0
        """The root that is to be put, and since when its plan is known to hold, by `elapsed`."""

    async def publish(self, puts: Sequence[PutGroup | PutRoot], publish: Publish) -> StreamRecord:
        """One attempt; the record that says so.

        Raises:
            Superseded: certainly not published: somebody else changed the record.
            CoordinationUnknown: it is `undecided` now.
            NotFound, Unavailable: certainly not published.
        """
        assert self.undecided is None, "one thing at a time"
        if self._known[0] != publish.pointer.uid:
            self._known = publish.pointer.uid, self._context.elapsed()
        for put in puts:
            if isinstance(put, PutRoot):
                await self._look_again(publish)
            await self.put_node(put, publish.base)
            if isinstance(put, PutGroup):
                await reach("manifest.publish.after-groups")
        await reach("manifest.publish.before-exec")
        try:
            record = await self._exec(puts, publish)
        except CoordinationUnknown:
            self.undecided = publish
            log.warning("the reply to a publish was lost", **named(publish))
            raise
        await reach("manifest.publish.after-exec")
        self._done()
        return record

    async def _look_again(self, publish: Publish) -> None:
        """Look at the record before a root is put long after its plan was made, as after a stand-still.

        What the plan names may have been given up and deleted meanwhile, with all roots that named it.
        One that comes later would be the newest of the bucket, and a rebuild would believe it.

        Raises:
            Superseded: the plan does not hold any more.
        """
        now = self._context.elapsed()
        if not is_stale(now - self._known[1], self._context.settings.manifest_upload_deadline_ms):
            return
        record = await self._context.streams.load(publish.base.stream_id)
        check_active(record)
        if not publication.all_hold(record, publish):
            raise Superseded(record)
        self._known = publish.pointer.uid, now

    async def decide(self) -> tuple[StreamRecord, bool]:
        """Find out whether a publish without a reply happened, when it cannot happen any more.

        Reading back alone decides nothing: the EXEC may still be on its way. Any change of
        the record kills it, since it watches the record; so the version is bumped first. A
        newer epoch is such a change, and then there is nothing to bump. After a crash here
        the record is as it was, or with a higher version: both are sound.

        Raises:
            NotFound, Unavailable: it still cannot be decided.
        """
        publish = self.undecided
        assert publish is not None
        self.decide_at = self._context.elapsed() + _DECIDE_RETRY_MS

        def bump(record: StreamRecord) -> StreamRecord:
            if not publication.epoch_holds(record, publish):
                raise Superseded(record)
            return replace(record, version=record.version + 1)

        try:
            record = await self._context.streams.update(publish.base.stream_id, bump)
        except Superseded as fenced:
            record = fenced.record
        applied = publication.has_root(record, publish.pointer.uid)
        log.info("a lost reply is decided", **named(publish), applied=applied)
        self.undecided = None
        if applied:
            self._done()
        return record, applied

    async def put_node(self, put: PutGroup | PutRoot, record: StreamRecord) -> None:
        """Put a group or a root of a stream, unless an attempt before has done it."""
        sealed = put.group if isinstance(put, PutGroup) else put.root
        object_key = _object_key(put, record)
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

    async def _exec(self, puts: Sequence[PutGroup | PutRoot], publish: Publish) -> StreamRecord:
        """The transaction that makes it so: pointer, bounds, intents and the ends of objects."""

        def decide(record: StreamRecord) -> StreamRecord:
            check_active(record)
            for holds in (publication.epoch_holds, publication.version_holds):
                if not holds(record, publish):
                    raise Superseded(record)
            for condition in (publication.intents_hold, publication.move_holds):
                if not condition(record, publish):
                    raise Superseded(record)
            return publication.publish_in(record, publish)

        queued = self._retired(puts, publish)
        return await self._context.streams.update(publish.base.stream_id, decide, queued)

    def _retired(self, puts: Sequence[PutGroup | PutRoot], publish: Publish) -> list[Due]:
        """What this transaction makes unreachable, with the time that running readers have."""
        now, settings = self._context.time.latest(), self._context.settings
        root_due_at = now + settings.manifest_root_grace_ms
        mine = {_object_key(put, publish.base) for put in puts}
        strays = sorted(self._tried - mine)
        old = [] if publish.base.root is None else [root_object_key(publish.base)]
        due_at = now + settings.manifest_delete_grace_ms
        gone = [delete_target(publish.base, one) for one in publish.retired]
        gone += [displaced_target(publish.base, entry) for entry in publish.displaced]
        return [
            *(delete_later(object_key, root_due_at) for object_key in (*strays, *old)),
            *(Due(deletes_key(one.drive), one.member, due_at) for one in gone),
            *self._copies_of_what_was_cut(publish, now),
        ]

    def _copies_of_what_was_cut(self, publish: Publish, now: int) -> list[Due]:
        """Copies that a move has made of what was cut meanwhile: nothing will ever name them."""
        relocate = publish.relocate
        if relocate is None:
            return []
        move, floor = relocate.move, relocate.relocated.root.first_offset
        if move.first_offset >= floor:
            return []
        cut = move._replace(next_offset=min(move.next_offset, floor))
        target = copies_target(publish.base, cut)
        due_at = now + self._context.settings.manifest_upload_deadline_ms
        return [Due(deletes_key(target.drive), target.member, due_at)]

    def _done(self) -> None:
        # The strays went into the queue with the same EXEC.
        self._put.clear()
        self._tried.clear()


@guard("a look before a late root")
def is_stale(ms: int, deadline_ms: int) -> bool:
    """Whether a plan is so old that what it names may be deleted soon; `deadline_ms` is the time from
    which on what was given up may be."""
    return ms >= deadline_ms // 2


def named(publish: Publish) -> dict[str, object]:
    """What a log line says of a publish."""
    return {
        "stream_id": publish.base.stream_id,
        "version": publish.pointer.version,
        "epoch": publish.pointer.epoch,
    }


def _object_key(put: PutGroup | PutRoot, record: StreamRecord) -> str:
    if isinstance(put, PutGroup):
        node = put.group.node
        return group_key(node.stream_id, node.first_offset, node.uid, node.height, record.tenant)
    node = put.root.node
    return root_key(
        node.stream_id, node.generation, node.epoch, node.version, node.uid, record.tenant
    )


def check_active(record: StreamRecord) -> None:
    """Refuse to change a stream that is being deleted.

    Raises:
        NotFound: the stream is being deleted.
    """
    if record.state is not StreamState.ACTIVE:
        raise stream_not_found()
