"""Rounds in any order of events: publishers, consumers that hang up at any moment, upkeep beside all of it, a ledger,
files and a registry of which any call fails, and a stop at any moment, also while nobody knows what
became of a round.

At the end everybody was answered, what was answered is true, and nobody holds a pin who got no answer.
"""

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from support.ledgers import id_of
from support.queue_changes import CreateQueue, PublishRecords

from bottomless.errors import Outcome, StoreError
from bottomless_server.queues.changes.receive import Receive, Received
from bottomless_server.queues.changes.settle import Settled, ack, extend, nack
from bottomless_server.queues.changes.upkeep import Upkeep
from bottomless_server.queues.ledger.base import LedgerFailed
from bottomless_server.queues.rounds import rounds as rounds_module
from bottomless_server.queues.rounds.rounds import Limits, Rounds
from unit.queues.round_harness import QUEUE, RoundHarness

STORIES: Final = int(os.environ.get("BOTTOMLESS_TEST_STORIES", "40"))
SEED: Final = int(os.environ.get("BOTTOMLESS_TEST_SEED", "1"))
LEDGER_CALLS: Final = ["add_messages", "change_items", "next_due", "ready", "due", "registry_due"]


def body_of(number: int) -> bytes:
    return b"%020d" % number


class Story:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.harness = RoundHarness(file_bytes_max=self.chance.choice([200, 1_000, 2**20]))
        limits = Limits(
            round_change_count_max=self.chance.choice([1, 3, 100]), waiting_receive_count_max=4
        )
        upkeep = Upkeep(count=self.chance.choice([1, 3, 2_000]))
        self.rounds = Rounds(lambda: self.harness.writer, self.harness.clock, upkeep, limits)
        self.tasks: list[asyncio.Task[None]] = []
        self.count = 1_000
        self.stored: set[int] = set()
        self.gone: set[int] = set()
        self.either: set[int] = set()
        """Messages of which nobody was told, or somebody left before."""

    async def publish(self) -> None:
        ids = set(range(self.count, self.count + self.chance.randint(1, 4)))
        self.count += len(ids)
        self.either |= ids
        records = {id_of(number): [body_of(number)] for number in sorted(ids)}
        try:
            await self.rounds.do(PublishRecords(QUEUE, records))
        except StoreError as error:
            if error.outcome is Outcome.NONE:
                self.either -= ids
                self.gone |= ids
            return
        self.either -= ids
        self.stored |= ids

    async def consume(self) -> None:
        change = Receive(QUEUE, self.chance.randint(1, 5), 2**20, self.chance.choice([0, 3, 10**6]))
        try:
            taken: Received = await self.rounds.take(change, self.chance.choice([0, 0.003, 0.02]))
        except StoreError:
            return
        taken.release()
        ids = {int.from_bytes(each.message.msg_id, "big") for each in taken.deliveries}
        assert not ids & self.gone, "what is gone is delivered"
        receipts = [each.receipt for each in taken.deliveries]
        what = self.chance.choice(["ack", "ack", "nack", "extend", "nothing"])
        try:
            if what == "ack":
                await self.acknowledge(ids, receipts)
            elif what == "nack":
                await self.rounds.do(nack(QUEUE, receipts, delay_ms=self.chance.choice([0, 5])))
            elif what == "extend":
                await self.rounds.do(extend(QUEUE, receipts, 5))
        except StoreError:
            return

    async def acknowledge(self, ids: set[int], receipts: list[str]) -> None:
        self.stored -= ids
        self.either |= ids - self.gone
        settled: Settled = await self.rounds.do(ack(QUEUE, receipts))
        if settled.done == len(ids):
            self.either -= ids
            self.gone |= ids

    async def make_queue(self) -> None:
        self.count += 1
        try:
            await self.rounds.do(CreateQueue(id_of(self.count), f"queue-{self.count}"))
        except StoreError:
            return

    def fail(self) -> None:
        """Something of the disk fails, once or for a while."""
        ledger, files, chance = self.harness.ledger, self.harness.files, self.chance
        kind = chance.randrange(8)
        if kind <= 1:
            ledger.fail("commit", lands=chance.random() < 0.5)
            if kind == 1:
                ledger.fail("reopen", count=chance.randint(1, 5))
        elif kind <= 3:
            files.fail(chance.choice(["write", "sync"]), full=chance.random() < 0.5)
            if kind == 3:
                files.fail("cut")
        elif kind == 4:
            self.harness.registry.fails = not self.harness.registry.fails
        elif kind == 5:
            ledger.fail(chance.choice(LEDGER_CALLS))
        elif kind == 6:
            ledger.fail("keep")
            ledger.fail("rollback")
        else:
            ledger.fail("checkpoint")
            self.harness.writer.log_is_long = True

    async def step(self) -> None:
        kinds: dict[str, tuple[int, Callable[[], Any]]] = {
            "publish": (7, self.publish),
            "consume": (8, self.consume),
            "make": (1, self.make_queue),
            "leave": (2, lambda: self.tasks and self.chance.choice(self.tasks).cancel()),
            "fail": (2, self.fail),
        }
        weights = [weight for weight, _ in kinds.values()]
        (name,) = self.chance.choices(list(kinds), weights)
        begun = kinds[name][1]()
        if asyncio.iscoroutine(begun):
            self.tasks.append(asyncio.create_task(begun))
        self.harness.now += self.chance.choice([0, 1, 10])
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.choice([0, 0, 0.001]))

    async def run(self) -> None:
        await self.rounds.start()
        for _ in range(self.chance.randint(10, 60)):
            await self.step()
        if self.chance.random() < 0.2:
            self.harness.ledger.fail("commit", lands=self.chance.random() < 0.5)
            self.harness.ledger.fail("reopen", count=10_000)
        with suppress(LedgerFailed):
            await self.rounds.stop()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        self.check()

    def check(self) -> None:
        ledger, files = self.harness.ledger, self.harness.files
        ledger.heal()
        ledger.reopen()
        assert ledger.check() == []
        row = ledger.queue(QUEUE)
        assert row is not None
        there = {}
        for _, message in ledger.page(row.inside, 0, 10_000):
            number = int.from_bytes(message.msg_id, "big")
            kept = files.kept[message.file][message.position :][: message.size]
            assert kept == body_of(number)
            there[number] = message
        assert self.stored <= there.keys()
        assert there.keys() <= self.stored | self.either
        assert [pin for pin in files.pins if not pin.released] == []


def test_whatever_happens_everybody_is_answered_and_with_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds_module, "PAUSE_SECONDS_MIN", 0.001)
    monkeypatch.setattr(rounds_module, "UPKEEP_PAUSE_SECONDS", 0.003)
    for seed in range(SEED, SEED + STORIES):
        try:
            asyncio.run(Story(seed).run())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
