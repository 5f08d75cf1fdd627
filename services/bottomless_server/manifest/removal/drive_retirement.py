"""Retire a drive on which nothing lies any more: an operation.

What is there after a crash at each step; the operation goes on with the next one:

1. `marking`: a new version of the registry says that the drive is about to be retired, by this
   operation. From here on nothing new is put on it (`common/drive_states.py`); it is read as before.
   A crash before it leaves nothing, and one after it a drive that takes nothing new.
2. `looking`: every stream's record is looked at, a page at a time. The drive is in use if a policy
   names it, also that of its super stream, which may not have reached it yet; if a move or an intent does, or one that was given up; if the manifest names a fragment
   there; if the stream is being deleted and may have something there; or if nobody can tell. Then, if
   anything waits to be deleted from it. Nothing is written but how far the look has come.
3. `ending`: a new version of the registry says that it is retired, if it still is to be by this
   operation. A crash after it: the same step finds that it is.

A drive that is in use is `reopening` instead: a new version of the registry says that it is used as
before, and the operation fails with `drive-in-use` and why. A crash before that version leaves a drive
that takes nothing new, and the same step goes on.

Who enters a move meanwhile: its record has it before the look in the registry that says whether the
drive is open. So either the look here finds the move, or that one finds the drive closed. A policy is
looked at before it is taken; one that comes in between names a drive on which nothing is put.
Who registers the drive again meanwhile takes it back, and the operation fails. Objects that no manifest
names stay on the drive, as does its marker: so it can be registered again, and nobody else can.

If coordination is lost in between, the operation is lost with it: the drive takes nothing new until
somebody asks again, for its retirement or its registration. What an operation of before the loss still
puts is refused by the registry, if anybody has asked by then, and right otherwise: nothing came.
"""

from typing import Any, Final

from bottomless.errors import Code, Corrupt, Exists, InvalidRequest, NotFound
from bottomless.model.drive import DriveRegistry, RegisteredDrive
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import StreamRecord, StreamState, drives_under_way
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.registry.drive_versions import change_registry
from bottomless_server.manifest.removal.drive_loss import forget_deletes
from bottomless_server.manifest.tree.core.on_drive import lies_on
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import STREAMS_KEY, deletes_key
from bottomless_server.stores.supers import Supers

KIND: Final = "retire-drive"

_PAGE_COUNT: Final = 64
"""Streams of one step."""
_ID_PREFIX: Final = "op_"


class DriveRetirement:
    """Begins the retirement of drives and carries it out; registered with `Operations`."""

    def __init__(
        self, context: Context, operations: Operations, *, page_count: int = _PAGE_COUNT
    ) -> None:
        self._context = context
        self._operations = operations
        self._supers = Supers(context.coordination, context.streams)
        self._page_count = page_count
        operations.register(KIND, self.step, endless=True, long=True)

    async def begin(self, name: str, tenant: str) -> Operation:
        """Enter the retirement of a drive, or find the one that is under way.

        Raises:
            InvalidRequest: `drive-unknown`: the registry has none of this name.
            Overloaded, Unavailable, Corrupt
        """
        for drive in (await load_registry(self._context.drive)).drives:
            if drive.name == name:
                return await self._under_way(drive) or await self._operations.begin(
                    KIND, tenant=tenant, arguments={"name": name, "number": drive.number}
                )
        raise InvalidRequest("no drive of this name is registered", code=Code.DRIVE_UNKNOWN)

    async def _under_way(self, drive: RegisteredDrive) -> Operation | None:
        if drive.retiring is None:
            return None
        try:
            operation = await self._operations.find(f"{_ID_PREFIX}{drive.retiring}")
        except (NotFound, Corrupt):
            return None
        return None if operation.finished else operation

    async def step(self, context: Context, operation: Operation) -> Again | Done | Failed:
        """One step of a retirement that has begun."""
        number = int(operation.arguments["number"])
        progress = {"phase": "marking", "streams": 0, **operation.progress}
        mine = Uid(operation.operation_id.removeprefix(_ID_PREFIX))
        try:
            match progress["phase"]:
                case "marking":
                    await change_registry(context, _Marking(number, mine).decide)
                    await reach("manifest.drives.after-closing")
                    return Again({**progress, "phase": "looking"})
                case "looking":
                    return await self._look(number, str(operation.arguments["name"]), progress)
                case "reopening":
                    await change_registry(context, _Reopening(number, mine).decide)
                    return Failed(Exists(str(progress["in_use"]), code=Code.DRIVE_IN_USE))
            await reach("manifest.drives.before-retired")
            await change_registry(context, _Ending(number, mine).decide)
            await reach("manifest.drives.after-retired")
        except _Overtaken:
            return Failed(
                Exists(
                    "the drive was registered again, or another request retires it",
                    code=Code.DRIVE_IN_USE,
                )
            )
        return Done({"number": number, "state": "retired", "streams": progress["streams"]})

    async def _look(self, number: int, name: str, progress: dict[str, Any]) -> Again:
        """Look at one page of streams, or, after the last one, at what waits to be deleted."""
        coordination = self._context.coordination
        after = str(progress.get("_after", "")).encode("ascii")
        members = await coordination.members(STREAMS_KEY, after, self._page_count)
        if not members:
            if await self._context.drive_states.lost([number]):
                await forget_deletes(coordination, number)
            count = await coordination.member_count(deletes_key(number))
            if not count:
                return Again({**progress, "phase": "ending"})
            return _in_use(progress, f"{count} objects wait to be deleted from it; ask again later")
        stream_ids = [StreamId(member.decode("ascii")) for member in members]
        loaded = await self._context.streams.load_many(stream_ids)
        for stream_id in loaded.unreadable:
            unread = f"the record of the stream {stream_id} cannot be read, so nobody can tell"
            return _in_use(progress, unread, stream_id)
        for record in loaded.records:
            if why := await self._use(record, number, name):
                sentence = f"stream {record.name} of the tenant {record.tenant} {why}"
                return _in_use(progress, sentence, record.stream_id)
        looked_at = int(progress["streams"]) + len(loaded.records)
        return Again({**progress, "_after": stream_ids[-1], "streams": looked_at})

    async def _use(self, record: StreamRecord, number: int, name: str) -> str | None:
        """What a stream uses a drive for; None if it does not."""
        try:
            if number in record.drives and record.state is StreamState.ACTIVE:
                # Moves go into the manifest: so the two have to be of one moment.
                record, root = await load_root(self._context, record)
                descent = lies_on(root, number)
                if await self._context.groups.descend(record.tenant, root, descent):
                    return "has fragments on it"
        except NotFound:
            return None
        except Corrupt:
            return "has a manifest that cannot be read, so nobody can tell"
        is_lost = bool(await self._context.drive_states.lost([number]))
        if number in record.drives and record.state is StreamState.DELETING and not is_lost:
            return "is being deleted, and may have objects on it"
        if number in drives_under_way(record):
            return "has moves or uploads to it, or from it, under way"
        if number in record.unseen:
            return "was rebuilt while the drive was away, and has not looked at it yet"
        if any(tier.drive == name for tier in record.config.tiers):
            return "has a policy that names it"
        return await self._of_its_super(record, name)

    async def _of_its_super(self, record: StreamRecord, name: str) -> str | None:
        """What the super stream of a partition uses a drive for: its policy may not have reached this
        one yet, and will, whoever dies on the way."""
        if record.partition_of is None:
            return None
        try:
            whole = await self._supers.load(record.partition_of.super_id)
        except NotFound:
            return None
        except Corrupt:
            return "is of a super stream whose record cannot be read, so nobody can tell"
        named = any(tier.drive == name for tier in whole.config.tiers)
        return "is of a super stream that has a policy that names it" if named else None


def _in_use(progress: dict[str, Any], why: str, stream_id: StreamId | None = None) -> Again:
    sentence = f"the drive is in use: {why}"
    named = {} if stream_id is None else {"stream_id": stream_id}
    return Again({**progress, "phase": "reopening", "in_use": sentence, **named})


class _Overtaken(Exception):
    """The registry says something else of the drive than this operation has made it say."""


class _Change:
    """What a step makes of a drive in the newest registry."""

    def __init__(self, number: int, operation: Uid) -> None:
        self._number = number
        self._operation = operation

    def decide(self, registry: DriveRegistry) -> RegisteredDrive | None:
        return self._of(next(one for one in registry.drives if one.number == self._number))

    def _of(self, drive: RegisteredDrive) -> RegisteredDrive | None:
        raise NotImplementedError

    def _is_mine(self, drive: RegisteredDrive) -> bool:
        return drive.retiring == self._operation


class _Marking(_Change):
    def _of(self, drive: RegisteredDrive) -> RegisteredDrive | None:
        if drive.retired or self._is_mine(drive):
            return None
        return drive._replace(retiring=self._operation)


class _Reopening(_Change):
    def _of(self, drive: RegisteredDrive) -> RegisteredDrive | None:
        return drive._replace(retiring=None) if self._is_mine(drive) else None


class _Ending(_Change):
    def _of(self, drive: RegisteredDrive) -> RegisteredDrive | None:
        if drive.retired:
            return None
        if not self._is_mine(drive):
            raise _Overtaken
        return drive._replace(retired=True, retiring=None)
