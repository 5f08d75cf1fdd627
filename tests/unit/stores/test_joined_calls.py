"""Calls that come together are few exchanges with coordination, and each is what it was alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting import CountedCoordination
from support.fault_coordination import FaultCoordination
from support.guards import remove
from support.wire import Wire

from bottomless.errors import Fenced, NotFound, Outcome
from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    CoordinationUnknown,
    Decide,
    Due,
    IndexFull,
    Member,
    Room,
    Values,
)
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.stores.joined_calls import JOINED_COUNT_MAX, UNDER_WAY_COUNT_MAX, JoinedCalls

COUNT = JOINED_COUNT_MAX * UNDER_WAY_COUNT_MAX
"""Calls that go at once, in as many exchanges as may be under way."""


def memory() -> MemoryCoordination:
    return MemoryCoordination(lambda: 0)


def counted(inner: MemoryCoordination) -> tuple[CountedCoordination, JoinedCalls]:
    coordination = CountedCoordination(inner)
    return coordination, JoinedCalls(coordination)


def adding(key: str) -> Decide[int]:
    """One more than there is."""

    def decide(values: Values) -> tuple[Changes, int]:
        assert set(values) == {key}
        count = int(values[key] or b"0") + 1
        return Changes({key: b"%d" % count}), count

    return decide


async def test_what_comes_in_one_turn_is_as_few_exchanges_as_can_be() -> None:
    inner = memory()
    coordination, joined = counted(inner)
    keys = [f"k{number}" for number in range(COUNT)]

    told = await asyncio.gather(*(joined.transact([key], adding(key)) for key in keys))
    values = await asyncio.gather(*(joined.get(key) for key in keys))

    assert told == [1] * COUNT
    assert values == [b"1"] * COUNT
    assert coordination.calls == {"transact": COUNT // JOINED_COUNT_MAX, "get_many": 4}


async def test_one_call_alone_is_one_exchange() -> None:
    coordination, joined = counted(memory())
    assert await joined.get("a") is None
    assert await joined.transact(["a"], adding("a")) == 1
    assert coordination.calls == {"get_many": 1, "transact": 1}


async def test_what_comes_while_all_exchanges_are_under_way_gathers_for_the_next() -> None:
    coordination, joined = counted(memory())
    first = [asyncio.create_task(joined.get(f"k{number}")) for number in range(COUNT)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(joined.get(f"k{number}")) for number in range(10)]
    await asyncio.gather(*first, *later)
    assert coordination.calls == {"get_many": UNDER_WAY_COUNT_MAX + 1}


async def test_what_one_caller_raises_is_nothing_to_the_others() -> None:
    joined = JoinedCalls(memory())

    def refuse(_: Values) -> tuple[Changes, None]:
        raise Fenced("a newer owner exists")

    told = await asyncio.gather(
        joined.transact(["a"], adding("a")),
        joined.transact(["b"], refuse),
        joined.transact(["c"], adding("c")),
        return_exceptions=True,
    )
    assert [told[0], told[2]] == [1, 1]
    assert isinstance(told[1], Fenced)
    assert [await joined.get(key) for key in "abc"] == [b"1", None, b"1"]


@given(st.lists(st.sampled_from("abc"), max_size=3 * JOINED_COUNT_MAX))
def test_calls_for_the_same_keys_see_each_other(keys: list[str]) -> None:
    async def run() -> None:
        joined = JoinedCalls(memory())
        told = await asyncio.gather(*(joined.transact([key], adding(key)) for key in keys))
        for key in "abc":
            counts = [count for one, count in zip(keys, told, strict=True) if one == key]
            assert sorted(counts) == list(range(1, len(counts) + 1))

    asyncio.run(run())


async def test_without_letting_it_wait_a_change_of_the_same_key_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a change of a key that its exchange writes already", lambda *_: False)
    joined = JoinedCalls(memory())
    told = await asyncio.gather(*(joined.transact(["a"], adding("a")) for _ in range(2)))
    assert told == [1, 1]


async def test_a_key_that_others_write_all_the_time_is_nothing_to_the_others() -> None:
    inner = memory()
    joined = JoinedCalls(inner)

    def interfered(_: Values) -> tuple[Changes, None]:
        inner.write(Changes({"b": b"theirs"}))
        return Changes({"b": b"mine"}), None

    told = await asyncio.gather(
        joined.transact(["a"], adding("a")),
        joined.transact(["b"], interfered),
        joined.transact(["c"], adding("c")),
        return_exceptions=True,
    )
    assert [told[0], told[2]] == [1, 1]
    assert isinstance(told[1], CoordinationConflict)
    assert inner.peek("b") == b"theirs"


async def test_all_that_a_change_writes_is_written() -> None:
    inner = memory()
    joined = JoinedCalls(inner)

    def entering(key: str) -> Decide[None]:
        member = Member("index", key.encode(), True)
        return lambda _: (Changes({key: b"1"}, [Due("queue", key.encode(), 7)], [member]), None)

    await asyncio.gather(*(joined.transact([key], entering(key)) for key in "ab"))
    assert await joined.members("index", b"", 9) == [b"a", b"b"]
    assert inner.peek_queue("queue") == {b"a": 7, b"b": 7}
    assert await joined.get_many(["a", "b", "c"]) == [b"1", b"1", None]


async def test_a_bound_is_looked_at_for_each_call_by_itself() -> None:
    joined = JoinedCalls(memory())

    def entering(key: str) -> Any:
        member = Member("index", key.encode(), True)
        room = Room("index", key.encode(), 1)
        return joined.transact([key], lambda _: (Changes(members=[member]), None), room=room)

    told = await asyncio.gather(*map(entering, "ab"), return_exceptions=True)
    assert [type(one) for one in told if one is not None] == [IndexFull]


async def test_a_lost_reply_is_unknown_to_all_of_its_callers() -> None:
    class Silent(MemoryCoordination):
        async def transact(self, *_: Any, **__: Any) -> Any:
            raise CoordinationUnknown("the coordination store did not answer EXEC")

    joined = JoinedCalls(Silent(lambda: 0))
    told = await asyncio.gather(
        *(joined.transact([key], adding(key)) for key in "ab"), return_exceptions=True
    )
    assert [error.outcome for error in told if isinstance(error, CoordinationUnknown)] == [
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
    ]


async def test_who_leaves_before_the_exchange_asks_nothing_and_ends_nobody() -> None:
    coordination, joined = counted(memory())
    calls = [asyncio.create_task(joined.get(key)) for key in "abc"]
    for call in calls:
        asyncio.get_running_loop().call_soon(call.cancel)
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert await joined.get("d") is None
    assert coordination.calls["get_many"] <= 2


async def test_who_leaves_during_the_exchange_ends_nobody() -> None:
    wire = Wire()
    joined = JoinedCalls(FaultCoordination(lambda: 0, wire))
    first, second = (asyncio.create_task(joined.transact([key], adding(key))) for key in "ab")
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    assert first.cancelled()


@pytest.mark.parametrize("error", [NotFound("gone"), Fenced("newer")])
async def test_each_error_is_raised_where_it_belongs(error: Exception) -> None:
    joined = JoinedCalls(memory())

    def failing(key: str) -> Callable[[Values], Any]:
        def decide(_: Values) -> Any:
            if key == "a":
                raise error
            return Changes(), key

        return decide

    told = await asyncio.gather(
        *(joined.transact([key], failing(key)) for key in "ab"), return_exceptions=True
    )
    assert told == [error, "b"]
