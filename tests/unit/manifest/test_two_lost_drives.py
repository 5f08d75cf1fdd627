"""Two drives are lost one right after the other, and the second one has what the first one had."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.drives import register, take_away
from support.guards import remove
from support.moving import COLD, HOT, Moving, a_moving_stream
from unit.manifest.test_kept_of_lost_drives import gaps
from unit.manifest.test_lost_drives import NAME, Losing, take_it_away

from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators import losing
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.stores.operations import Operation
from bottomless_server.tree.drive_loss import Elsewhere

SHELF = 3


async def carried_out(there: Losing, operation: Operation) -> dict[str, Any]:
    """The result of a loss that one process carries out alone."""
    context = there.moving.harness.context
    while isinstance(outcome := await there.loss.step(context, operation), Again):
        operation = replace(operation, progress=dict(outcome.progress))
    assert isinstance(outcome, Done)
    return dict(outcome.result)


async def lost_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> tuple[Moving, int]:
    """Sources are on `SHELF`, and their copies on `COLD`, which is lost. Whoever tells the stream has found the
    sources, and stands still; `SHELF` is lost too, and the stream is told. Returns how many fragments were lost
    by what both say."""
    moving = await a_moving_stream(3, SHELF)
    await register(moving.harness.drive, SHELF, COLD)
    await moving.move(0, 20, HOT, SHELF)
    await moving.after_the_grace()
    await moving.move(0, 20, SHELF, COLD)
    there, other, find = Losing(moving), Losing(moving), losing.whole_elsewhere
    counts: list[int] = []

    async def find_and_be_late(
        context: Context, record: StreamRecord, entries: Sequence[np.void]
    ) -> dict[Uid, Elsewhere]:
        found = await find(context, record, entries)
        monkeypatch.setattr(losing, "whole_elsewhere", find)
        await take_away(context.drives, SHELF)
        shelf = await other.loss.begin(f"d{SHELF}", f"d{SHELF}", "default")
        counts.append((await carried_out(other, shelf))["fragment_count"])
        return found

    monkeypatch.setattr(losing, "whole_elsewhere", find_and_be_late)
    await take_it_away(there)
    cold = await there.loss.begin(NAME, NAME, "default")
    counts.append((await carried_out(there, cold))["fragment_count"])
    await moving.reopen()
    return moving, sum(counts)


async def test_what_is_about_to_be_named_on_a_drive_that_is_lost_by_then_becomes_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving, lost_count = await lost_one_after_the_other(monkeypatch)
    assert [info.drive for info in await moving.leaves()] == [HOT]
    assert await gaps(Losing(moving)) == [0, 10]
    assert lost_count == 2


async def test_without_telling_of_both_a_stream_names_what_is_on_a_lost_drive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "other drives that are lost when a stream is told of one", lambda *_: set())
    moving, lost_count = await lost_one_after_the_other(monkeypatch)
    assert [info.drive for info in await moving.leaves()] == [SHELF, SHELF, HOT]
    assert lost_count == 0
