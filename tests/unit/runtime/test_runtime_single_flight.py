"""What many want at once is done once, and nobody's leaving is felt by the others."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from simulation.loop import VirtualLoop

from bottomless.errors import Unavailable
from bottomless_server.runtime.base.single_flight import SingleFlight


class Oracle:
    """Answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask(self) -> int:
        self.count += 1
        return await asyncio.shield(self.answer)


async def begun(*waiting: Awaitable[int]) -> list[asyncio.Task[int]]:
    """Those who wait, all of them as far as they get by themselves."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def in_virtual_time(story: Callable[[], Awaitable[None]]) -> None:
    """Run it by a clock that goes on where nothing else is left to do, so that no verdict hangs
    on the machine's speed."""
    loop = VirtualLoop(random.Random(0))
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
    assert loop.bugs == []


async def test_all_who_come_while_it_is_asked_get_one_answer() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    waiting = [asyncio.create_task(flights.join("a", oracle.ask)) for _ in range(5)]
    await asyncio.sleep(0)
    other = asyncio.create_task(flights.join("b", oracle.ask))
    await asyncio.sleep(0)
    assert ("a" in flights, len(flights)) == (True, 2)
    oracle.answer.set_result(7)

    assert await asyncio.gather(*waiting, other) == [7] * 6
    assert (oracle.count, len(flights)) == (2, 0)
    assert await flights.join("a", oracle.ask) == 7
    assert oracle.count == 3, "an answer is not remembered"


async def test_a_failure_is_raised_in_all() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    waiting = [asyncio.create_task(flights.join("a", oracle.ask)) for _ in range(3)]
    await asyncio.sleep(0)
    oracle.answer.set_exception(ValueError("no"))

    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ValueError] * 3
    assert len(flights) == 0


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    first, second = [asyncio.create_task(flights.join("a", oracle.ask)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    oracle.answer.set_result(7)

    assert await second == 7
    assert oracle.count == 1


@pytest.mark.parametrize("linger_seconds", [0, 5])
def test_what_nobody_waits_for_any_more_is_given_up_after_a_while(linger_seconds: float) -> None:
    async def story() -> None:
        oracle, flights = Oracle(), SingleFlight[str, int](linger_seconds)
        (waiting,) = await begun(flights.join("a", oracle.ask))
        waiting.cancel()
        await begun()
        assert ("a" in flights) is (linger_seconds > 0)
        await asyncio.sleep(linger_seconds)
        assert "a" not in flights
        (again,) = await begun(flights.join("a", oracle.ask))
        oracle.answer.set_result(7)

        assert await again == 7
        assert oracle.count == 2

    in_virtual_time(story)


def test_who_comes_back_soon_finds_it_under_way_however_often() -> None:
    """Each time the while began anew in name only: the clock that an earlier leaving had set ran
    on, and who had come back once had what was left of it. The test before had pauses that were
    too long to see it."""

    async def story() -> None:
        oracle, flights = Oracle(), SingleFlight[str, int](linger_seconds=5)
        for _ in range(4):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await flights.join("a", oracle.ask)
            await asyncio.sleep(3)
        oracle.answer.set_result(7)

        assert await flights.join("a", oracle.ask) == 7
        assert oracle.count == 1

    in_virtual_time(story)


def test_who_runs_out_of_time_gives_that_to_nobody_else() -> None:
    async def story() -> None:
        oracle, flights = Oracle(), SingleFlight[str, int](linger_seconds=0)

        async def hasty() -> int:
            async with asyncio.timeout(1):
                return await flights.join("a", oracle.ask)

        first, patient = await begun(hasty(), flights.join("a", oracle.ask))
        with pytest.raises(TimeoutError):
            await first
        oracle.answer.set_result(7)

        assert await patient == 7
        assert oracle.count == 1

    in_virtual_time(story)


async def test_what_is_useful_later_goes_on_when_all_who_waited_have_gone() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    kept: list[int] = []

    async def make() -> int:
        kept.append(await oracle.ask())
        return kept[-1]

    for waiting in await begun(flights.join("a", make), flights.join("a", make)):
        waiting.cancel()
    await begun()
    assert "a" in flights
    oracle.answer.set_result(7)
    await flights.ended("a")

    assert kept == [7]
    assert len(flights) == 0


async def test_what_was_begun_ahead_of_time_is_joined_by_who_comes() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    flights.begin("a", oracle.ask)
    flights.begin("a", oracle.ask)
    (waiting,) = await begun(flights.join("a", oracle.ask))
    oracle.answer.set_result(7)

    assert (await waiting, oracle.count) == (7, 1)


async def test_who_comes_after_the_end_never_gets_an_outcome_from_before() -> None:
    """Also in the instant in which those who waited are still on their way to it."""
    oracle, flights = Oracle(), SingleFlight[str, int]()
    others = 0

    async def other() -> int:
        nonlocal others
        others += 1
        return 8

    async def make() -> int:
        answer = await oracle.ask()
        # Runs when this one has ended, and before anybody has been told.
        asyncio.get_running_loop().call_soon(flights.begin, "a", other)
        return answer

    (waiting,) = await begun(flights.join("a", make))
    oracle.answer.set_result(7)

    assert await waiting == 7
    await flights.ended("a")
    assert (others, len(flights)) == (1, 0)


async def test_what_is_parted_is_joined_by_nobody_knows_it_and_still_answers_who_waits() -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    parted: list[bool] = []

    async def make() -> int:
        answer = await oracle.ask()
        parted.append(flights.is_parted("a"))
        return answer

    (before,) = await begun(flights.join("a", make))
    flights.part("a")
    assert "a" not in flights
    (after,) = await begun(flights.join("a", make))
    oracle.answer.set_result(7)

    assert (await before, await after) == (7, 7)
    assert (oracle.count, parted) == (2, [True, False])
    assert len(flights) == 0


async def test_who_waits_for_the_end_neither_ends_it_nor_gets_its_failure() -> None:
    """The deletion of a stream waits until it is open, and was once able to cancel that for all
    who waited to append, by being cancelled itself."""
    oracle, flights = Oracle(), SingleFlight[str, int]()
    (waiting,) = await begun(flights.join("a", oracle.ask))
    first, second = [asyncio.create_task(flights.ended("a", "b")) for _ in range(2)]
    await begun()
    first.cancel()
    await begun()
    assert "a" in flights
    oracle.answer.set_exception(Unavailable("not now"))
    await second

    with pytest.raises(Unavailable):
        await waiting


@pytest.mark.parametrize(
    ("error", "count"), [(ZeroDivisionError(), 1), (Unavailable("not now"), 0)]
)
async def test_a_bug_of_which_nobody_would_hear_is_logged(error: Exception, count: int) -> None:
    oracle, flights = Oracle(), SingleFlight[str, int]()
    (waiting,) = await begun(flights.join("a", oracle.ask))
    waiting.cancel()
    await begun()
    with structlog.testing.capture_logs() as logs:
        oracle.answer.set_exception(error)
        await flights.ended("a")
    assert [entry["exc_info"] for entry in logs] == [error] * count


@pytest.mark.parametrize("linger_seconds", [60, None])
async def test_closing_gives_all_up_also_what_was_parted(linger_seconds: float | None) -> None:
    flights = SingleFlight[str, int](linger_seconds)
    given_up: list[str] = []

    def never(name: str) -> Callable[[], Any]:
        async def make() -> int:
            try:
                await asyncio.Event().wait()
                return 0
            finally:
                given_up.append(name)

        return make

    waiting = await begun(flights.join("a", never("a")), flights.join("b", never("b")))
    flights.part("a")
    await flights.aclose()

    assert (len(flights), sorted(given_up)) == (0, ["a", "b"])
    for one in waiting:
        with pytest.raises(asyncio.CancelledError):
            await one
