"""Compaction and rewrites whose power goes at any call: nothing that is needed is lost or wrong.

After each loss any mixture of old and new sectors of what was not synced is looked at: by the files
alone, which have to tile and to show each message that is needed, and through the ledger after a start;
then messages are acknowledged and the power goes again.
"""

import os
import random
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest
from support.every_choice import every_way
from support.guards import remove

from bottomless.errors import Corrupt
from bottomless_server.queues.core.start_plan import Refused
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.store.compaction import CompactionResult, Ended, compact
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from bottomless_server.queues.store.steps import Step
from unit.queues.store_harness import ROOT, PowerLost, Store

STATES: Final = int(os.environ.get("BOTTOMLESS_TEST_CRASHES", "300"))
"""States of the disk after a crash that are looked at, over all tests of this module."""
PER_POINT: Final = 5
Work = Callable[[Store, int], Generator[Step, Any, CompactionResult]]


def in_place(store: Store, number: int) -> Generator[Step, Any, CompactionResult]:
    return compact(store.disk, ROOT, number, live_share=1.0, has_room=False)


def anew(store: Store, number: int) -> Generator[Step, Any, CompactionResult]:
    return rewrite(store.disk, ROOT, number)


def a_store(seed: int) -> Store:
    """A sealed file of which less than half is needed; gaps of every size, some with perfect records."""
    chance = random.Random(seed)
    store = Store()
    ids = []
    for _ in range(chance.randint(4, 8)):
        sizes = [chance.choice((0, 3, 40, 300, 470, 512, 900)) for _ in range(4)]
        ids += (
            store.publish(
                [chance.randbytes(size) + bytes([chance.randrange(4)] * size) for size in sizes],
                checksum=True,
            )
            or []
        )
    needed = chance.sample(ids, len(ids) // 3)
    store.ack(set(ids) - set(needed))
    store.seal()
    return store


def crashes(seed: int, work: Work, *, second: bool = True) -> int:
    """Let the power go at each call of some work; returns how many states of the disk were looked at."""
    looked = 0
    for point in range(1_000):
        chance = random.Random(f"{seed} {point}")
        store = a_store(seed)
        store.calls, store.dies_at = 0, point
        try:
            result = store.drive(work(store, 0))
        except PowerLost:
            ended = False
        else:
            ended = True
            assert result.ended in (Ended.COMPACTED, Ended.NOT_NEEDED)
        store.died()
        store.check_files()
        for _ in range(PER_POINT):
            found = store.after_power_loss(chance)
            found.check_files()
            found.check_started()
            looked += 1
            if second:
                again(found, work, chance)
                looked += 1
        if ended:
            return looked
    raise AssertionError("it never ended")


def again(store: Store, work: Work, chance: random.Random) -> None:
    """Some messages are acknowledged, all files are worked on, and the power goes somewhere in it."""
    live = [message.msg_id for message in store.live()]
    store.ack(chance.sample(live, len(live) // 3))
    store.calls, store.dies_at = 0, chance.randrange(25)
    try:
        for row in store.ledger.files():
            if row.state is FileState.SEALED:
                store.drive(work(store, row.number))
        for row in store.ledger.files():
            if row.state is FileState.DOOMED:
                store.drive(remove_doomed(store.disk, ROOT, row.number, store.descriptors))
    except PowerLost:
        pass
    store.died()
    last = store.after_power_loss(chance)
    last.check_files()
    last.check_started()


def looked_at(work: Work, count: int) -> int:
    looked = seed = 0
    while looked < count:
        looked += crashes(seed, work)
        seed += 1
    return looked


@pytest.mark.parametrize("work", [in_place, anew])
def test_whatever_a_loss_of_power_leaves_of_a_compaction_shows_every_message(work: Work) -> None:
    print(work.__name__, looked_at(work, STATES // 2), "states were looked at")


def a_small_store() -> Store:
    """Two gaps and three messages that move, over a few sectors."""
    store = Store()
    ids = store.publish([bytes([number]) * size for number, size in enumerate(SMALL)]) or []
    store.ack(one for number, one in enumerate(ids) if number in (0, 2, 3))
    store.seal()
    return store


SMALL: Final = (700, 40, 300, 290, 60, 400, 310)


def every_state(work: Work) -> int:
    """The power goes at each call, and each sector that was not synced is old or new, in every way."""
    looked = 0
    for point in range(100):
        store = a_small_store()
        store.calls, store.dies_at = 0, point
        try:
            store.drive(work(store, 0))
        except PowerLost:
            ended = False
        else:
            ended = True
        store.died()
        for found in every_way(store.after_power_loss):
            found.check_files()
            found.check_started()
            looked += 1
        if ended:
            return looked
    raise AssertionError("it never ended")


@pytest.mark.parametrize(("work", "count"), [(in_place, 54), (anew, 32)])
def test_every_mixture_of_sectors_that_a_small_compaction_can_leave_shows_every_message(
    work: Work, count: int
) -> None:
    assert every_state(work) == count


@pytest.mark.parametrize(
    "name",
    [
        "barrier 1: holes before what is in them",
        "barrier 2: what is in holes before they open",
        "barrier 3: copies before the ledger",
    ],
)
def test_each_barrier_that_is_removed_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, name, lambda *_: None)
    # Without the third a start finds only the originals, which it would cut off, and refuses.
    with pytest.raises((AssertionError, Corrupt, Refused)):
        every_state(in_place)


def at_the_end_of_a_sector() -> Store:
    """A file whose only gap begins three bytes before a sector ends."""
    store = Store()
    first = store.publish([bytes(509 - 64 - 25)]) or []
    dead = store.publish([b"\1" * 300] * 4) or []
    last = store.publish([b"last"]) or []
    assert [message.position for message in store.live()][:2] == [64, 509]
    assert first
    assert last
    store.ack(dead)
    store.seal()
    return store


def test_a_hole_that_would_begin_in_two_sectors_is_not_made_and_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = at_the_end_of_a_sector()
    assert store.drive(in_place(store, 0)).ended is Ended.NOT_NEEDED
    remove(monkeypatch, "a destination's first bytes in one sector", lambda _: True)
    torn = 0
    for point in range(30):
        store = at_the_end_of_a_sector()
        store.calls, store.dies_at = 0, point
        try:
            store.drive(in_place(store, 0))
        except PowerLost:
            store.died()
            for seed in range(10):
                found = store.after_power_loss(random.Random(seed))
                try:
                    found.check_files()
                except AssertionError:
                    torn += 1
    assert torn > 0
