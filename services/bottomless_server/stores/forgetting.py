"""Take out of coordination what is kept of a stream and named by an index: consumers, groups.

Page by page, each in one EXEC with the index, so after a crash at any moment the rest of it is
there, and whoever begins again takes that out.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bottomless.model.names import StreamId, SuperId
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import is_restored
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.supers import super_key


class Forgetting(NamedTuple):
    """On what condition things are taken out."""

    watched: tuple[str, ...] = ()
    stays: Callable[[Values], bool] = lambda _: False
    """Whether all of it stays, by the values of what is watched; raises to take nothing out."""


FOR_GOOD = Forgetting()
"""Whatever it belongs to is being deleted."""


def unless_restored(stream_id: StreamId, step: RebuildStep) -> Forgetting:
    """Forget what is of a stream as a rebuild begins: what was restored already for its generation
    stays. It raises `Unavailable` where the step is not what goes on: the stream may be in use."""
    return _unless_restored(stream_key(stream_id), step)


def unless_super_restored(super_id: SuperId, step: RebuildStep) -> Forgetting:
    """Forget what is of a super stream as a whole, unless it was restored already."""
    return _unless_restored(super_key(super_id), step)


def _unless_restored(record: str, step: RebuildStep) -> Forgetting:
    def stays(found: Values) -> bool:
        step.require(found)
        return is_restored(found[record], step.generation)

    return Forgetting((record, *step.watched), stays)


async def forget_indexed(
    coordination: Coordination,
    index: str,
    count: int,
    keys_of: Callable[[Sequence[bytes]], Sequence[str]],
    gone: Callable[[Sequence[bytes], Values], Changes],
    forgetting: Forgetting,
) -> bool:
    """Take out all that an index names, `count` at a time; false if it stays.

    `gone` makes the changes for a page of members, with those of the index itself, and sees the
    values of the keys that `keys_of` names.
    """
    while page := await coordination.members(index, b"", count):

        def forget(found: Values, page: Sequence[bytes] = page) -> tuple[Changes, bool]:
            return (Changes(), False) if forgetting.stays(found) else (gone(page, found), True)

        if not await coordination.transact([*keys_of(page), *forgetting.watched], forget):
            return False
    return True
