"""The store beside a dictionary: publishes, acks, all that moves and removes, faults and losses of power,
in any order."""

import errno
import os
import random
from pathlib import Path
from typing import Final

from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.store.compaction import compact
from bottomless_server.queues.store.removal import remove_doomed
from bottomless_server.queues.store.rewriting import rewrite
from unit.queues.store_harness import ROOT, PowerLost, Store

HISTORIES: Final = int(os.environ.get("BOTTOMLESS_TEST_STORE_HISTORIES", "25"))
STEPS: Final = 25


class History:
    """One store, what it has to have, and a chance that decides what happens."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store(file_size_max=3_000)
        self.needed: set[bytes] = set()
        self.deaths = 0

    def step(self) -> None:
        store = self.store
        if self.chance.random() < 0.3:
            store.calls, store.dies_at = 0, self.chance.randrange(12)
        if self.chance.random() < 0.2:
            self.fail_once(self.chance.randrange(8))
        try:
            self.do()
        except PowerLost:
            self.die()
        except OSError:
            # What the writer could not take away: the process ends, and the next start does it.
            self.die()
        store = self.store
        store.dies_at = None
        store.fault = lambda *_: None

    def fail_once(self, number: int) -> None:
        left = number

        def fault(call: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), f"{call}: {path}")

        self.store.fault = fault

    def do(self) -> None:
        store, chance = self.store, self.chance
        what = chance.choice(["publish", "publish", "ack", "ack", "compact", "rewrite", "remove"])
        if what == "publish":
            sizes = [chance.choice((0, 10, 200, 480, 1_000)) for _ in range(chance.randint(1, 4))]
            self.needed.update(store.publish([chance.randbytes(size) for size in sizes]) or [])
        elif what == "ack":
            gone = set(chance.sample(sorted(self.needed), len(self.needed) // 2))
            self.needed -= gone
            store.ack(gone)
        else:
            wanted = FileState.DOOMED if what == "remove" else FileState.SEALED
            for number in [row.number for row in store.ledger.files() if row.state is wanted]:
                if what == "remove":
                    store.drive(remove_doomed(store.disk, ROOT, number, store.descriptors))
                elif what == "compact":
                    store.drive(compact(store.disk, ROOT, number, has_room=False))
                else:
                    store.drive(rewrite(store.disk, ROOT, number))

    def die(self) -> None:
        self.deaths += 1
        self.store.died()
        if self.chance.random() < 0.7:
            self.store = self.store.after_power_loss(self.chance)
        self.store.check_files()
        self.store.check_started()
        there = {message.msg_id for message in self.store.live()}
        # A publish or an ack that died around its COMMIT was not answered: it may have happened or not.
        self.needed |= there

    def check(self) -> None:
        there = {message.msg_id for message in self.store.live()}
        assert there == self.needed
        self.store.check_ledger()
        self.store.check_files()


def test_in_any_history_exactly_what_was_published_and_not_acknowledged_is_there() -> None:
    deaths = 0
    for seed in range(HISTORIES):
        history = History(seed)
        for _ in range(STEPS):
            history.step()
            history.check()
        deaths += history.deaths
    assert deaths > HISTORIES
