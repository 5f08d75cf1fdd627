"""Give up a drive that is lost for good: an operation, begun by an operator's word.

What is there after a crash at each step; the operation goes on with the next one:

1. A new version of the registry says that the drive is lost, before the operation is entered (and once
   more in its step `marking`). From here on nothing is put on it, deletions of streams, rebuilds and
   collections of garbage do not ask it, and nothing makes it used again. A crash before it leaves nothing;
   after it the same request goes on. So a rebuild that waits for the drive goes on at once, and the
   operation, if it was not entered before the rebuild began, after it.
2. `streams`: of every stream, a page at a time, what is under way on the drive is given up, and fragments
   that the manifest names there become gaps (`mutators/losing.py`). Reads are told of these, as of the
   gap of a takeover. What waits to be deleted elsewhere is named again, but nothing whose deletion may be under
   way (`claims.py`). A crash leaves some streams done, and the page is done again. Which streams of the
   page have something there was noted before, so that the result names them all the same; what its sums
   lack then is what was done before the crash.
3. `supers`: the records of super streams are looked at, a page at a time, for policies that name the
   drive. Of their partitions nobody changes one alone, and one may not have the policy yet.
4. `queue`: what waited to be deleted from the drive is forgotten.

A stream that is being deleted needs nothing: its deletion does not ask the drive any more. One whose
record or manifest cannot be read, or that cannot be changed now, is told in the result, and the same
request once more tries it again. If coordination is lost meanwhile the operation is lost with it, and the
drive stays lost: a rebuild believes roots that name fragments there, and the same request makes gaps of
these.

Drive 0 can never be said to be lost: all metadata is on it.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from bottomless.errors import Code, Corrupt, Exists, InvalidRequest, NotFound, StoreError
from bottomless.model.config import StreamConfig
from bottomless.model.drive import DEFAULT_NAME, DriveRegistry, RegisteredDrive
from bottomless.model.names import StreamId, SuperId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.model.super_stream import SuperState
from bottomless_server.coordination.base import (
    Coordination,
    CoordinationUnavailable,
    CoordinationUnknown,
)
from bottomless_server.drives.table import load_registry
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.losing import give_up_uploads
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.manifest.registry.drive_versions import change_registry
from bottomless_server.manifest.tree.core.on_drive import lies_on
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.streams import STREAMS_KEY, deletes_key, failing_deletes_key
from bottomless_server.stores.supers import SUPERS_KEY, Supers
from bottomless_server.tree.retention import SUMMED

KIND: Final = "lose-drive"

_PAGE_COUNT: Final = 16
"""Streams of one step."""
_QUEUE_PAGE_COUNT: Final = 500
_NAMED_COUNT_MAX: Final = 100
"""Streams that a result names of each kind; it counts all of them."""
_SUPER_PAGE_COUNT: Final = 64
_LISTS: Final = ("with_gaps", "left", "named_by_policy")
"""Streams that have gaps now, that could not be changed, and streams and super streams whose policy
names the drive."""
_ABOUT: Final = "_about"
"""Streams of the page that is next that have fragments on the drive."""
_KEPT: Final = "kept_fragment_count"
_FOREVER: Final = 2**52

log = structlog.get_logger(__name__)


class DriveLoss:
    """Begins the loss of drives and carries it out; registered with `Operations`."""

    def __init__(
        self,
        context: Context,
        operations: Operations,
        mutators: Mutators,
        *,
        page_count: int = _PAGE_COUNT,
    ) -> None:
        self._context = context
        self._operations = operations
        self._mutators = mutators
        self._supers = Supers(context.coordination, context.streams)
        self._page_count = page_count
        operations.register(KIND, self.step, endless=True, long=True)

    async def begin(self, name: str, confirmed: str, tenant: str) -> Operation:
        """Enter the loss of a drive. One that is entered twice finds less to do.

        Raises:
            InvalidRequest: it is drive 0; the registry has none of this name (`drive-unknown`); or
                `confirmed` is another name.
            Exists: `drive-in-use`: the drive is there.
            DriveUnavailable: this process cannot tell, since its settings do not name the drive.
            Overloaded, Unavailable, Corrupt
        """
        require_other_than_default(name)
        if confirmed != name:
            raise InvalidRequest(
                "`confirm` must be the name of the drive: what lies on it is given up for ever"
            )
        for drive in (await load_registry(self._context.drive)).drives:
            if drive.name == name:
                await self._require_away(drive)
                log.critical("an operator says that a drive is lost", drive=drive.number)
                await self._mark(drive.number)
                arguments = {"name": name, "number": drive.number}
                return await self._operations.begin(KIND, tenant=tenant, arguments=arguments)
        raise InvalidRequest("no drive of this name is registered", code=Code.DRIVE_UNKNOWN)

    async def _mark(self, number: int) -> None:
        await change_registry(self._context, lambda registry: _as_lost(registry, number))

    async def _require_away(self, drive: RegisteredDrive) -> None:
        """Refuse to give up what can be read, as of a drive whose name was mistaken."""
        if drive.lost:
            return
        # Not below: that it is not known here does not say that it is away.
        marked = self._context.drives.marked(drive.number)
        try:
            await marked.look()
        except StoreError:
            return
        raise Exists(
            "the drive is there, so nothing on it is lost. Move away what streams have on it and "
            "retire it; or unmount it first, if it is to be given up all the same",
            code=Code.DRIVE_IN_USE,
            facts={"drive": drive.number},
        )

    async def step(self, context: Context, operation: Operation) -> Again | Done | Failed:
        """One step of a loss that has begun."""
        number, name = int(operation.arguments["number"]), str(operation.arguments["name"])
        progress = {"phase": "marking", **operation.progress}
        match progress["phase"]:
            case "marking":
                await self._mark(number)
                await reach("manifest.drives.after-lost")
                return Again({**progress, "phase": "streams"})
            case "streams":
                return await self._lose_some(number, name, progress)
            case "supers":
                return await self._look_at_supers(name, progress)
        await forget_deletes(context.coordination, number)
        return Done({"number": number, "state": "lost", **_told(progress)})

    async def _lose_some(self, number: int, name: str, progress: dict[str, Any]) -> Again:
        after = str(progress.get("_after", "")).encode("ascii")
        coordination = self._context.coordination
        members = await coordination.members(STREAMS_KEY, after, self._page_count)
        if not members:
            return Again({**progress, "phase": "supers"})
        stream_ids = [StreamId(member.decode("ascii")) for member in members]
        loaded = await self._context.streams.load_many(stream_ids)
        if _ABOUT not in progress:
            about = [one.stream_id for one in loaded.records if await self._has_some(one, number)]
            if about:
                return Again({**progress, _ABOUT: about})
        about = progress.pop(_ABOUT, [])
        for stream_id in loaded.unreadable:
            _note(progress, "left", stream_id)
        for record in loaded.records:
            if record.state is StreamState.ACTIVE:
                await self._lose(record, number, progress, noted=record.stream_id in about)
                if record.partition_of is None and _names(record.config, name):
                    _note(progress, "named_by_policy", record.name)
        streams = int(progress.get("streams", 0)) + len(stream_ids)
        return Again({**progress, "_after": stream_ids[-1], "streams": streams})

    async def _look_at_supers(self, name: str, progress: dict[str, Any]) -> Again:
        after = str(progress.get("_after_super", "")).encode("ascii")
        members = await self._context.coordination.members(SUPERS_KEY, after, _SUPER_PAGE_COUNT)
        if not members:
            return Again({**progress, "phase": "queue"})
        super_ids = [SuperId(member.decode("ascii")) for member in members]
        for super_id in super_ids:
            try:
                record = await self._supers.load(super_id)
            except NotFound:
                continue
            except Corrupt:
                _note(progress, "left", super_id)
                continue
            if record.state is not SuperState.DELETING and _names(record.config, name):
                _note(progress, "named_by_policy", record.name)
        return Again({**progress, "_after_super": super_ids[-1]})

    async def _has_some(self, record: StreamRecord, number: int) -> bool:
        """Whether a manifest names a fragment on the drive; not of one that cannot be read."""
        if number not in record.drives or record.state is not StreamState.ACTIVE:
            return False
        try:
            record, root = await load_root(self._context, record)
            descent = lies_on(root, number)
            return await self._context.groups.descend(record.tenant, root, descent)
        except (NotFound, Corrupt):
            return False

    async def _lose(
        self, record: StreamRecord, number: int, progress: dict[str, Any], *, noted: bool
    ) -> None:
        """Give up what one stream has on the drive, or note that this could not be done; `noted` if it
        had something there."""
        if number not in record.drives:
            return
        try:
            await give_up_uploads(self._context, record, number)
            losses = await self._mutators.of(record.stream_id).lose_drive(number)
        except NotFound:
            return
        except (CoordinationUnavailable, CoordinationUnknown):
            raise
        except StoreError as error:
            log.warning(
                "a stream was not told that a drive is lost",
                stream_id=record.stream_id,
                error=str(error),
            )
            _note(progress, "left", record.stream_id)
            return
        lost, kept = losses
        for counted, value in zip(SUMMED, lost, strict=True):
            progress[counted] = progress.get(counted, 0) + value
        progress[_KEPT] = progress.get(_KEPT, 0) + kept.fragment_count
        if lost.fragment_count or (noted and not kept.fragment_count):
            _note(progress, "with_gaps", record.name)


def _told(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What the result says of the streams."""
    counts = ("streams", *SUMMED, _KEPT, *(f"{what}_count" for what in _LISTS))
    return {
        **{name: progress.get(name, 0) for name in counts},
        **{name: progress.get(name, []) for name in _LISTS},
    }


def _names(config: StreamConfig, name: str) -> bool:
    """Whether a policy names a drive."""
    return any(tier.drive == name for tier in config.tiers)


def _note(progress: dict[str, Any], what: str, who: str) -> None:
    progress[what] = [*progress.get(what, []), who][:_NAMED_COUNT_MAX]
    progress[f"{what}_count"] = progress.get(f"{what}_count", 0) + 1


def require_other_than_default(name: str) -> None:
    """Refuse to give up the drive on which all metadata is.

    Raises:
        InvalidRequest
    """
    if name == DEFAULT_NAME:
        raise InvalidRequest(
            "drive 0 holds all metadata and cannot be given up; restore it from a copy"
        )


def _as_lost(registry: DriveRegistry, number: int) -> RegisteredDrive | None:
    for drive in registry.drives:
        if drive.number == number:
            return None if drive.lost else drive._replace(lost=True)
    raise Corrupt("the registry of drives has forgotten a drive")


async def forget_deletes(coordination: Coordination, number: int) -> None:
    """Take out of the queue of a drive that is lost what waits to be deleted from it."""
    for queue in (deletes_key(number), failing_deletes_key(number)):
        while dues := await coordination.due(queue, _FOREVER, _QUEUE_PAGE_COUNT):
            await coordination.settle(dues)
