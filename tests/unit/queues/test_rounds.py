"""The task around rounds: who is answered when, who waits, and who leaves."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.ledgers import id_of
from support.queue_changes import Ack, CreateQueue, Delete, Do, Publish, Take
from support.waiting import eventually

from bottomless.errors import Code, Outcome, Overloaded, StoreError, Unavailable
from bottomless_server.queues.changes.receive import Receive, Received
from bottomless_server.queues.changes.upkeep import Upkeep as RealUpkeep
from bottomless_server.queues.core.line import OVERHEAD_SIZE
from bottomless_server.queues.ledger.base import FORGET_LATE_MS, Seen
from bottomless_server.queues.rounds import rounds as rounds_module
from bottomless_server.queues.rounds.round_writer import RoundWriter
from bottomless_server.queues.rounds.rounds import Limits, Rounds
from bottomless_server.queues.rounds.work import Change, Ended, Work
from unit.queues.round_harness import QUEUE, RoundHarness

LONG = 240.0


@dataclass
class Upkeep:
    """Counts how often it was asked; says so often that more is left."""

    more: int = 0
    count: int = 0
    size: int = 0

    def apply(self, _: Work) -> bool:
        self.count += 1
        self.more -= 1
        return self.more >= 0


class Asking:
    def __init__(self, limits: Limits = Limits(), upkeep: Change | None = None) -> None:  # noqa: B008
        self.harness = RoundHarness()
        self.rounds = Rounds(lambda: self.harness.writer, self.harness.clock, upkeep, limits)
        self.round_sizes: list[int] = []
        self.held: asyncio.Event | None = None
        count_rounds(self.harness.writer, self.round_sizes)

    def ask(self, coroutine: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(coroutine)

    def waiting(self) -> int:
        return self.rounds.waiting_count(QUEUE)


def count_rounds(writer: RoundWriter, sizes: list[int]) -> None:
    do = writer.round

    def counted(asked: Any) -> Ended | None:
        sizes.append(len(asked))
        return do(asked)

    writer.round = counted  # type: ignore[method-assign]


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    found = Asking()
    await found.rounds.start()
    yield found
    await found.rounds.stop()


async def test_an_answer_comes_after_its_round(asking: Asking) -> None:
    assert await asking.rounds.do(Publish(QUEUE, b"one")) == 0
    assert asking.harness.ready == [b"one"]
    assert await asking.rounds.take(Take(QUEUE)) == [0]
    assert await asking.rounds.do(Ack(QUEUE, [0])) == 1


async def test_what_comes_meanwhile_is_one_round_in_its_order(asking: Asking) -> None:
    values = [b"%d" % number for number in range(50)]
    answers = await asyncio.gather(*(asking.rounds.do(Publish(QUEUE, each)) for each in values))
    assert answers == list(range(50))
    assert asking.harness.ready == values
    assert asking.round_sizes == [50]


async def test_a_refusal_reaches_the_one_who_is_refused(asking: Asking) -> None:
    refused = asking.ask(asking.rounds.do(Publish(QUEUE, b"x", refused=True)))
    done = asking.ask(asking.rounds.do(Publish(QUEUE, b"one")))
    with pytest.raises(Overloaded):
        await refused
    assert await done == 0


async def test_too_much_that_waits_is_refused() -> None:
    limits = Limits(waiting_bytes_max=3 * OVERHEAD_SIZE)
    asking = Asking(limits)
    await asking.rounds.start()
    answers = await asyncio.gather(
        *(asking.rounds.do(Publish(QUEUE, b"x")) for _ in range(9)), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, Overloaded)]
    assert len(refused) == 7
    assert len(asking.harness.ready) == 2
    await asking.rounds.stop()


# Looking


async def test_a_look_sees_what_is_durable_and_waits_for_the_round_before_it(
    asking: Asking,
) -> None:
    published = asking.ask(asking.rounds.do(Publish(QUEUE, b"one")))
    await published
    row = await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))
    assert row is not None
    assert row.sums.ready == 1


async def test_a_look_that_fails_holds_up_nobody_after_it(asking: Asking) -> None:
    asking.harness.ledger.fail("queue")
    with pytest.raises(Unavailable) as caught:
        await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))
    assert (caught.value.code, caught.value.outcome) == (Code.STORAGE_FAILED, Outcome.NONE)
    assert await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))
    asking.harness.ledger.fail("queue")
    with pytest.raises(Unavailable):
        await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))
    # What comes first after it hears that nothing is stored, and the next one is.
    with pytest.raises(Unavailable):
        await asking.rounds.do(Publish(QUEUE, b"one"))
    assert await asking.rounds.do(Publish(QUEUE, b"two")) == 0


async def test_while_the_ledger_does_not_open_a_look_hears_that(asking: Asking) -> None:
    asking.harness.ledger.fail("queue")
    asking.harness.ledger.fail("reopen", count=2)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))
    assert await asking.rounds.look(lambda look: look.ledger.queue(QUEUE))


async def test_too_many_looks_are_refused() -> None:
    asking = Asking(Limits(look_count_max=2))
    await asking.rounds.start()
    answers = await asyncio.gather(
        *(asking.rounds.look(lambda look: look.ledger.store().round) for _ in range(5)),
        return_exceptions=True,
    )
    assert [isinstance(each, Overloaded) for each in answers] == [False, False, True, True, True]
    await asking.rounds.stop()
    with pytest.raises(Unavailable):
        await asking.rounds.look(lambda look: look.ledger.store())


async def test_whoever_asks_no_more_to_wait_ends_all_that_wait(asking: Asking) -> None:
    taken = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(asking.waiting)
    asking.rounds.stop_waiting()
    assert await taken == []
    assert await asking.rounds.take(Take(QUEUE), LONG) == []
    assert await asking.rounds.do(Publish(QUEUE, b"one")) == 0


# Waiting for messages


async def test_a_receive_waits_for_a_message(asking: Asking) -> None:
    taken = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(asking.waiting)
    await asking.rounds.do(Publish(QUEUE, b"one"))
    assert await taken == [0]
    assert asking.waiting() == 0


async def test_a_receive_that_may_not_wait_is_answered_at_once(asking: Asking) -> None:
    assert await asking.rounds.take(Take(QUEUE)) == []


async def test_a_receive_hears_an_empty_answer_in_time(asking: Asking) -> None:
    assert await asking.rounds.take(Take(QUEUE), 0.01) == []
    assert asking.waiting() == 0


async def test_who_has_waited_longest_is_woken_first_and_no_more_than_there_are_messages(
    asking: Asking,
) -> None:
    changes = [Take(QUEUE, limit=1) for _ in range(3)]
    tasks = []
    for change in changes:
        tasks.append(asking.ask(asking.rounds.take(change, LONG)))
        await eventually(lambda: asking.waiting() == len(tasks))
    await asking.rounds.do(Publish(QUEUE, b"one"))
    assert await tasks[0] == [0]
    assert [change.asked_count for change in changes] == [2, 1, 1]
    await asyncio.gather(*(asking.rounds.do(Publish(QUEUE, b"x")) for _ in range(2)))
    assert sorted(await asyncio.gather(*tasks[1:])) == [[1], [2]]


async def test_who_leaves_while_it_waits_takes_nothing(asking: Asking) -> None:
    gone = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    stays = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(lambda: asking.waiting() == 2)
    gone.cancel()
    await asking.rounds.do(Publish(QUEUE, b"one"))
    assert await stays == [0]
    assert gone.cancelled()


async def test_what_was_taken_for_somebody_who_left_goes_to_the_next_one(asking: Asking) -> None:
    """It leaves while the round that takes for it is under way."""
    inside, free = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Take):
        def apply(self, work: Work) -> list[int]:
            answer = super().apply(work)
            if answer:
                loop.call_soon_threadsafe(inside.set)
                asyncio.run_coroutine_threadsafe(free.wait(), loop).result()
            return answer

    gone = asking.ask(asking.rounds.take(Slow(QUEUE), LONG))
    await eventually(asking.waiting)
    stays = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(lambda: asking.waiting() == 2)
    published = asking.ask(asking.rounds.do(Publish(QUEUE, b"one")))
    await inside.wait()
    gone.cancel()
    await asyncio.sleep(0)
    free.set()
    await published
    assert await stays == [0]


async def test_who_is_woken_and_has_left_wakes_the_next_one(asking: Asking) -> None:
    """It leaves between the round that wakes it and its own."""
    first = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(asking.waiting)
    second = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(lambda: asking.waiting() == 2)
    published = asking.ask(asking.rounds.do(Publish(QUEUE, b"one")))
    published.add_done_callback(lambda _: first.cancel())
    assert await second == [0] or await first == [0]


async def test_an_answer_that_came_in_the_moment_of_leaving_is_given_back(asking: Asking) -> None:
    await asking.rounds.do(Publish(QUEUE, b"one"))
    taken = asking.ask(asking.rounds.take(Take(QUEUE)))
    hear = asking.rounds.hear

    def hear_and_leave(*arguments: Any) -> None:
        hear(*arguments)
        taken.cancel()

    asking.rounds.hear = hear_and_leave  # type: ignore[method-assign, assignment]
    with pytest.raises(asyncio.CancelledError):
        await taken
    asking.rounds.hear = hear  # type: ignore[method-assign]
    assert await asking.rounds.take(Take(QUEUE), LONG) == [0]


async def test_only_so_many_wait_for_one_queue() -> None:
    asking = Asking(Limits(waiting_receive_count_max=1))
    await asking.rounds.start()
    waits = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(asking.waiting)
    with pytest.raises(Overloaded):
        await asking.rounds.take(Take(QUEUE), LONG)
    assert await asking.rounds.take(Take(QUEUE)) == []
    await asking.rounds.stop()
    assert await waits == []


async def test_of_those_that_come_together_no_more_wait_for_one_queue_either() -> None:
    asking = Asking(Limits(waiting_receive_count_max=2))
    await asking.rounds.start()
    asked = [asking.ask(asking.rounds.take(Take(QUEUE), LONG)) for _ in range(5)]
    await eventually(lambda: sum(each.done() for each in asked) == 3)
    assert asking.waiting() == 2
    await asking.rounds.stop()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in told) == 3
    assert told.count([]) == 2


# Disks that fail


async def test_while_the_ledger_does_not_tell_nobody_is_answered(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "PAUSE_SECONDS_MIN", 0.001)
    ledger = asking.harness.ledger
    ledger.fail("commit", lands=True)
    ledger.fail("reopen", count=3)
    asked = [asking.ask(asking.rounds.do(Publish(QUEUE, each))) for each in (b"one", b"two")]
    assert await asyncio.gather(*asked) == [0, 1]
    assert asking.harness.ready == [b"one", b"two"]


async def test_a_stop_ends_the_wait_for_a_ledger_that_does_not_tell() -> None:
    asking = Asking()
    await asking.rounds.start()
    asking.harness.ledger.fail("commit", lands=True)
    asking.harness.ledger.fail("reopen", count=10_000)
    one = asking.ask(asking.rounds.do(Publish(QUEUE, b"one")))
    await eventually(lambda: asking.harness.writer.in_doubt)
    await asking.rounds.stop()
    with pytest.raises(Unavailable) as caught:
        await one
    assert (caught.value.code, caught.value.outcome) == (Code.STORAGE_FAILED, Outcome.UNKNOWN)


async def test_a_long_log_is_checkpointed_after_the_answer(asking: Asking) -> None:
    ledger = asking.harness.ledger
    asking.harness.writer.log_is_long = True
    do = asking.harness.writer.round

    def with_long_log(asked: Any) -> Ended | None:
        ended = do(asked)
        asking.harness.writer.log_is_long = True
        return ended

    asking.harness.writer.round = with_long_log  # type: ignore[method-assign]
    ledger.fail("checkpoint")
    assert await asking.rounds.do(Publish(QUEUE, b"one")) == 0
    assert await asking.rounds.do(Publish(QUEUE, b"two")) == 1
    await eventually(lambda: ledger.checkpoint_count)


async def test_a_bug_in_the_writer_is_an_answer_and_no_end(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(asking.harness.writer, "round", lambda _: 1 // 0)
        with pytest.raises(StoreError) as caught:
            await asking.rounds.do(Publish(QUEUE, b"x"))
    assert (caught.value.code, caught.value.outcome) == (Code.INTERNAL, Outcome.UNKNOWN)
    assert await asking.rounds.do(Publish(QUEUE, b"one")) == 0


async def test_what_was_taken_while_the_registry_failed_goes_back_and_its_pins_are_released(
    asking: Asking,
) -> None:
    await asking.rounds.do(Publish(QUEUE, b"one"))
    asking.harness.registry.fails = True
    answers = await asyncio.gather(
        asking.rounds.do(CreateQueue(id_of(2), "other")),
        asking.rounds.take(Receive(QUEUE, 10, 2**20)),
        return_exceptions=True,
    )
    outcomes = [each.outcome for each in answers if isinstance(each, StoreError)]
    assert outcomes == [Outcome.COMMITTED] * 2
    received = await asking.rounds.take(Receive(QUEUE, 10, 2**20), LONG)
    assert isinstance(received, Received)
    assert [each.item.deliveries for each in received.deliveries] == [1], "nobody was told before"
    assert [pin.released for pin in asking.harness.files.pins] == [True, False]


# The end


async def test_a_stop_answers_everything_and_leaves_a_clean_ledger() -> None:
    asking = Asking()
    await asking.rounds.start()
    waits = asking.ask(asking.rounds.take(Take(QUEUE), LONG))
    await eventually(asking.waiting)
    publishes = [asking.ask(asking.rounds.do(Publish(QUEUE, b"x"))) for _ in range(3)]
    await asyncio.sleep(0)
    await asking.rounds.stop()
    assert await waits == []
    assert await asyncio.gather(*publishes) == [0, 1, 2]
    with pytest.raises(Unavailable) as caught:
        await asking.rounds.do(Publish(QUEUE, b"late"))
    assert caught.value.code == Code.DRAINING
    asking.harness.ledger.reopen()
    assert asking.harness.ledger.store().clean


# What is due by itself


async def test_upkeep_goes_on_while_more_is_left() -> None:
    upkeep = Upkeep(more=3)
    asking = Asking(upkeep=upkeep)
    await asking.rounds.start()
    await eventually(lambda: upkeep.count == 4)
    await asking.rounds.do(Publish(QUEUE, b"one"))
    assert upkeep.count == 4
    await asking.rounds.stop()


async def test_upkeep_comes_when_something_is_due_or_was_left() -> None:
    upkeep = Upkeep()
    asking = Asking(upkeep=upkeep)
    await asking.rounds.start()
    await eventually(lambda: upkeep.count == 1)
    await asking.rounds.do(Delete(QUEUE))
    await eventually(lambda: upkeep.count == 2)
    await asking.rounds.stop()


async def test_what_is_left_by_a_round_with_an_upkeep_in_it_has_another_one() -> None:
    upkeep = Upkeep()
    asking = Asking(upkeep=upkeep)
    inside, free = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Publish):
        def apply(self, work: Work) -> int:
            loop.call_soon_threadsafe(inside.set)
            asyncio.run_coroutine_threadsafe(free.wait(), loop).result()
            return super().apply(work)

    await asking.rounds.start()
    await eventually(lambda: upkeep.count == 1)
    slow = asking.ask(asking.rounds.do(Slow(QUEUE, b"one")))
    await inside.wait()
    # Both wait for the next round: the upkeep that the first deletion asks for, and the second.
    asking.rounds.hear([], Ended((), {}, None, needs_upkeep=True))
    await eventually(lambda: asking.rounds.is_upkeep_waiting)
    deleted = asking.ask(asking.rounds.do(Delete(QUEUE)))
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(slow, deleted)
    assert asking.round_sizes[-1] == 2
    await eventually(lambda: upkeep.count == 3)
    await asking.rounds.stop()


async def test_repeats_are_forgotten_where_nothing_else_ever_falls_due() -> None:
    asking = Asking(upkeep=RealUpkeep())
    await asking.rounds.start()
    until = asking.harness.now + 5
    seen = Seen(id_of(1), id_of(2), 0, id_of(3), 1, until)
    await asking.rounds.do(Do(lambda ledger: ledger.remember(QUEUE, seen)))
    asking.harness.now = until + FORGET_LATE_MS
    await asking.rounds.do(Do(lambda _: None))

    def remembered() -> int:
        row = asking.harness.ledger.queue(QUEUE)
        assert row is not None
        return row.remembered

    await eventually(lambda: not remembered())
    await asking.rounds.stop()
