"""Questions that are asked once for all, and what is kept of the ends of streams."""

import asyncio

import pytest

from bottomless_server.reader.one_at_a_time import OneAtATime


class Oracle:
    """Answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask(self) -> int:
        self.count += 1
        return await asyncio.shield(self.answer)


async def test_all_who_come_while_it_is_asked_get_one_answer() -> None:
    oracle, questions = Oracle(), OneAtATime[str, int]()
    waiting = [asyncio.create_task(questions.join("a", oracle.ask)) for _ in range(5)]
    await asyncio.sleep(0)
    other = asyncio.create_task(questions.join("b", oracle.ask))
    await asyncio.sleep(0)
    assert ("a" in questions, len(questions)) == (True, 2)
    oracle.answer.set_result(7)

    assert await asyncio.gather(*waiting, other) == [7] * 6
    assert (oracle.count, len(questions)) == (2, 0)
    assert await questions.join("a", oracle.ask) == 7
    assert oracle.count == 3, "an answer is not remembered"


async def test_a_failure_is_raised_in_all() -> None:
    oracle, questions = Oracle(), OneAtATime[str, int]()
    waiting = [asyncio.create_task(questions.join("a", oracle.ask)) for _ in range(3)]
    await asyncio.sleep(0)
    oracle.answer.set_exception(ValueError("no"))

    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ValueError] * 3
    assert len(questions) == 0


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    oracle, questions = Oracle(), OneAtATime[str, int]()
    first, second = [asyncio.create_task(questions.join("a", oracle.ask)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    oracle.answer.set_result(7)

    assert await second == 7
    assert oracle.count == 1


@pytest.mark.parametrize("linger_seconds", [0, 0.05])
async def test_a_question_that_nobody_waits_for_is_given_up(linger_seconds: float) -> None:
    oracle, questions = Oracle(), OneAtATime[str, int](linger_seconds)
    waiting = asyncio.create_task(questions.join("a", oracle.ask))
    await asyncio.sleep(0)
    waiting.cancel()
    async with asyncio.timeout(5):
        while "a" in questions:
            await asyncio.sleep(0.01)
    again = asyncio.create_task(questions.join("a", oracle.ask))
    await asyncio.sleep(0)
    oracle.answer.set_result(7)

    assert await again == 7
    assert oracle.count == 2


async def test_who_comes_back_soon_finds_the_question_still_asked() -> None:
    oracle, questions = Oracle(), OneAtATime[str, int](linger_seconds=0.02)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await questions.join("a", oracle.ask)
    oracle.answer.set_result(7)

    assert await questions.join("a", oracle.ask) == 7
    assert oracle.count == 1


async def test_closing_gives_all_up() -> None:
    oracle, questions = Oracle(), OneAtATime[str, int](linger_seconds=60)
    waiting = asyncio.create_task(questions.join("a", oracle.ask))
    await asyncio.sleep(0)
    await questions.aclose()

    assert len(questions) == 0
    with pytest.raises(asyncio.CancelledError):
        await waiting
