"""A writer that is stopped in the midst of something tells everybody who waits."""

import asyncio
from collections.abc import Callable

import pytest

from bottomless.drives.base import Body
from bottomless.errors import Outcome, StoreError
from bottomless_server.stores import wal
from unit.ingest.leaderless.harness import a_house, until
from unit.ingest.leaderless.making import an_append


def test_a_stop_while_puts_of_a_lost_instance_end_tells_their_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores, writer = a_house()
    run = writer.writer.run
    assert run is not None
    begun: list[str] = []

    async def stubborn(object_key: str, _: Body, __: int) -> None:
        begun.append(object_key)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            # Like one in a thread, which goes on for a moment.
            await asyncio.sleep(1)
            raise

    monkeypatch.setattr(stores.drive, "put", stubborn)
    future = writer.put(0, an_append())
    until(stores, lambda: bool(begun))
    instance = run.numbers.instance
    stores.do(stores.coordination.release(wal.live_key(instance), instance.encode()))
    stores.do(wal.settle(stores.coordination, instance, 0))
    use_up(run.sequences.take)
    run.committer.wake()
    until(stores, lambda: writer.writer.run is None)

    writer.stop()
    stores.do(asyncio.sleep(0))

    said = future.result()
    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.NONE


def use_up(take: Callable[[], int | None]) -> None:
    """Give sequences until more have to be reserved, which asks about the instance."""
    while take() is not None:
        pass
