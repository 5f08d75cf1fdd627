"""Guards of the services, with what it would be to do without them.

A guard that can be removed without any of these seeds noticing guards nothing here, or the
simulation is blind. Each names seeds that are tried first; one that fails has to hold with the
guard in its place, which is looked at once for all guards that name it with the same troubles.
"""

from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.guards import remove
from support.parts_as_transactions import as_a_transaction
from support.power_loss import PowerLossDisk

from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import FullName, NodeId
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.log.segments import Segment
from bottomless_server.ingest.producers import super_steps
from bottomless_server.ingest.staged import files as staged_files
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.clock_trust import ClockTrust
from bottomless_server.manifest.common.failing_deletes import FailingDeletes
from bottomless_server.manifest.mutators import takeover
from bottomless_server.manifest.removal import deleter
from bottomless_server.manifest.tree.committer import Committer, publish_bounds
from bottomless_server.manifest.tree.core import rebuild_decision, takeovers
from bottomless_server.manifest.tree.core.events import EditAsked, PutGroup, PutRoot, TakeOver
from bottomless_server.manifest.tree.core.publish_decision import Keeper
from bottomless_server.manifest.tree.publish_attempts import Publisher
from bottomless_server.node.core.admission import Admission, Ticket
from bottomless_server.node.core.belief import Belief, Moment
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.reader.follow_answer import Following
from bottomless_server.reader.pages import Page
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores import streams
from simulation import leaderless_guards as lg
from simulation import super_guards as sg
from simulation.flood import commits_beside_a_flood
from simulation.links import LinkedCoordination
from simulation.members import a_group_in_a_storm
from simulation.queue_guards import QUEUE_GUARDS
from simulation.queue_storm import queues_in_a_storm
from simulation.reborn import deleted_unheard
from simulation.replica_guards import REPLICA_GUARDS
from simulation.replica_storm import replicas_in_a_storm
from simulation.run import Simulation
from simulation.super_storm import a_super_stream_in_a_storm
from simulation.tier_guards import TIER_GUARDS
from simulation.tier_storm import two_tiers_in_a_storm


class Replaced(NamedTuple):
    """What stands for a guard where that is no function of the product with a name of its own."""

    owner: Any
    name: str
    value: object


class Removed(NamedTuple):
    """A guard of the product, and what is put in its place."""

    name: str
    variant: Callable[..., Any]


class Guard(NamedTuple):
    replaced: list[Replaced | Removed]
    seeds: list[int]
    troubles: str = "all"
    course: Callable[[Simulation], Coroutine[Any, Any, object]] = Simulation.run


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _unsynced_data(disk: PowerLossDisk, fd: int) -> None:
    if disk.file(fd).path.suffix != ".segment":
        disk.file(fd).sync()


def _unsynced_data_of_all(disk: PowerLossDisk, _: int) -> None:
    for file in disk.changed_files():
        if file.path.suffix != ".segment":
            file.sync()


def _unsynced_names(disk: PowerLossDisk, path: Path) -> None:
    """The names of segments are not synced; all others are."""
    if path.parent.name != "streams":
        _fsync_dir(disk, path)


def _unsynced_data_dir(disk: PowerLossDisk, path: Path) -> None:
    if not path.name.startswith("simulation-"):
        _fsync_dir(disk, path)


_fsync_dir: Final = PowerLossDisk.fsync_dir


def _make_dir(files: FileCalls, path: Path) -> None:
    files.make_dir(path)


def _mark_everything(segments: Sequence[Segment], _: int, now: int) -> None:
    for segment in segments[:-1]:
        segment.published_at = segment.published_at or now


def _counted_when_read(following: Following, page: Page) -> None:
    _remember(following, page)
    following.next_offset = page.next_offset


_remember: Final = Following.remember


def _lapse_by_its_begin(before: Belief | None, _: Moment, *, taken: bool, unheard: bool) -> bool:
    """What was believed at the begin of a renewal counts, whenever its answer comes."""
    del taken
    return unheard or before is None


def _take_what_fits(admission: Admission, owner: Hashable, size: int, own: int = 0) -> bool:
    """Who comes looks at the room, and not at who waits for it."""
    fits = admission._fits(owner, size, own)
    if fits:
        admission._hold(owner, size)
    return fits


def _grant_what_fits(admission: Admission) -> list[Ticket]:
    """Room that is freed goes to everybody who fits in, whoever has waited for more."""
    granted = []
    for waiting in admission._waiting.values():
        for _, ticket in sorted(waiting, key=lambda entry: entry[0]):
            waits = not (ticket.gone or ticket.granted)
            if waits and _take_what_fits(admission, ticket.owner, ticket.size, ticket.own):
                ticket.granted = True
                granted.append(ticket)
    return granted


def _the_first(dues: Iterable[Due], _: object, count: int) -> list[Due]:
    """A page of the queue is what is due longest."""
    return list(dues)[:count]


async def _pass_by(*_: object) -> None:
    pass


async def _root_before_the_fence(
    context: Context,
    committer: Committer,
    home: NodeId,
    epoch: int,
    named: takeovers.GoesOn | None = None,
) -> dict[str, Any]:
    """A root with the gap is put under an epoch that no record has yet, as it was once."""
    await committer.refresh()
    record = committer.record
    if (record.home, record.epoch) == (home, epoch) and record.dirty:
        fenced = takeovers.fence(record, home, epoch, home_held=False)
        bounds = publish_bounds(context.settings)
        keeper = Keeper(fenced, committer.keeper.root, bounds, context.new_uid)
        for action in keeper.handle(EditAsked(TakeOver(fenced.reserved_next)), 0):
            if isinstance(action, PutGroup | PutRoot):
                await Publisher(context).put_node(action, fenced)
        await reach("manifest.publish.before-exec")
    return await _take_over(context, committer, home, epoch, named)


_take_over: Final = takeover.take_over


async def _look_for_nothing(*_: object) -> list[FragmentInfo]:
    return []


def _free_unmarked(name: FullName) -> Changes:
    return Changes({streams.name_key(name): None})


GUARDS: Final[dict[str, Guard]] = {
    "a sync before the answer": Guard(
        [
            Replaced(PowerLossDisk, "fdatasync", _unsynced_data),
            Replaced(PowerLossDisk, "syncfs", _unsynced_data_of_all),
        ],
        [1, 2, 3],
        "crashes",
    ),
    "a sync of a segment's name": Guard(
        [Replaced(PowerLossDisk, "fsync_dir", _unsynced_names)], [1, 2, 3], "crashes"
    ),
    "a sync of the data directory's name": Guard(
        [Replaced(PowerLossDisk, "fsync_dir", _unsynced_data_dir)],
        [2, 4, 7, 8, 13, 16],
        "crashes",
    ),
    "a sync of the name of the directory of all that is staged": Guard(
        [Replaced(staged_files, "make_dir_durable", _make_dir)], [10, 2, 4], "crashes"
    ),
    "the generation in the commit's EXEC": Guard(
        [Removed("the generation in the commit's EXEC", lambda *_: None)],
        [3, 5],
        "crashes",
        a_group_in_a_storm,
    ),
    "the generation in a fenced read": Guard(
        [Removed("the generation in a fenced read", lambda *_: None)],
        [7],
        "crashes",
        a_group_in_a_storm,
    ),
    "producers": Guard([Replaced(Tracking, "take_chunk", _nothing)], [1, 2, 3], "crashes"),
    "a free after its EXEC": Guard(
        [Removed("local frees after the EXEC, at the owner", _mark_everything)],
        [1, 2, 3],
        "crashes",
    ),
    "the time of the answer, for a lease": Guard(
        [Removed("the time at which a renewal is answered", _lapse_by_its_begin)], [3, 2], "jams"
    ),
    "the boot clock": Guard(
        [Removed("the boot clock beside the monotonic one", lambda *_: False)],
        [11, 8, 5, 2, 3],
        "clocks",
    ),
    "a fence heard in the background": Guard(
        [Removed("a fence that is heard in the background", _nothing)], [10, 6], "clocks"
    ),
    "a clock that is believed": Guard(
        [
            Replaced(ClockTrust, "look", _nothing),
            Replaced(ClockTrust, "earliest", lambda _, wall, *__: wall),
        ],
        [1, 2, 3],
        "ahead",
    ),
    "a deleter that goes past what it cannot delete": Guard(
        [
            Replaced(deleter, "fair_page", _the_first),
            Replaced(FailingDeletes, "put_off", _pass_by),
        ],
        [1, 2, 3],
        "crashes",
    ),
    "the line for room": Guard(
        [
            Replaced(Admission, "take", _take_what_fits),
            Replaced(Admission, "grant", _grant_what_fits),
        ],
        [1, 2],
        course=commits_beside_a_flood,
    ),
    "another try to open what lies there": Guard(
        [Removed("another try to open what lies on the disk", lambda *_: [])],
        [1, 2],
        "crashes",
    ),
    "the fence before a root of its epoch": Guard(
        [Replaced(takeover, "take_over", _root_before_the_fence)], [9, 11, 2], "losses"
    ),
    "what is adopted before a gap": Guard(
        [Removed("what is adopted before a gap", _look_for_nothing)], [1, 2, 9], "losses"
    ),
    "offsets that a lost home may have given out": Guard(
        [Replaced(rebuild_decision, "RESERVED_COUNT", 0)], [2, 7, 3, 5], "losses"
    ),
    "the mark of a name that is freed": Guard(
        [Replaced(streams, "freeing", _free_unmarked)], [1, 4, 5], course=deleted_unheard
    ),
    "the name, looked at again when the body is there": Guard(
        [Removed("the name, looked at again when the body is there", _pass_by)],
        [1, 2, 3],
        course=deleted_unheard,
    ),
    "an end that names what was sent": Guard(
        [Replaced(Following, "remember", _counted_when_read)], [1, 2, 3]
    ),
    "a tail that is watched": Guard(
        [Replaced(LinkedCoordination, "watch", lg.unwatched_tails)], [1, 2, 3], lg.TROUBLES
    ),
    "what is not decided before a loss": Guard(
        [Removed("what is not noted before a loss, taken for undecided", lg.nothing_undecided)],
        [3, 7, 1, 2],
        lg.TROUBLES,
    ),
    **{
        name: Guard(
            [Replaced(*one.place, one.variant) if one.place else Removed(name, one.variant)],
            one.seeds,
            one.troubles,
            queues_in_a_storm,
        )
        for name, one in QUEUE_GUARDS.items()
    },
    **{
        name: Guard([Removed(name, one.variant)], one.seeds, one.troubles, replicas_in_a_storm)
        for name, one in REPLICA_GUARDS.items()
    },
    **{
        name: Guard([Removed(name, one.variant)], one.seeds, one.troubles, two_tiers_in_a_storm)
        for name, one in TIER_GUARDS.items()
    },
    **{
        guard: Guard([Removed(guard, variant)], seeds, "crashes", a_super_stream_in_a_storm)
        for guard, variant, seeds in (
            (
                "the look at the coordinating partition before a part is appended",
                sg.going_on,
                [1],
            ),
            ("the layout of a part at its partition", _nothing, [7, 4]),
            ("the first number and the body of a part", as_a_transaction, [2, 1]),
            (
                "the epoch of a producer, raised in all partitions first",
                sg.raised_at_one_partition,
                [6, 13],
            ),
            ("the layout by which a request was begun", sg.by_the_newest, [9, 2]),
            ("owners that have heard of a growth before it is done", sg.all_told, [3]),
        )
    },
    "the layout of the request before, as it is remembered": Guard(
        [
            Replaced(super_steps, "require_all_layouts", sg.noting_layout),
            Removed("the layout of the request before, as it is remembered", sg.begun_since),
        ],
        [3, 2],
        "crashes",
        a_super_stream_in_a_storm,
    ),
}


@contextmanager
def without(guard: str) -> Iterator[None]:
    """Take a guard away for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for one in GUARDS[guard].replaced:
            if isinstance(one, Removed):
                remove(patch, *one)
            else:
                patch.setattr(*one)
        yield
