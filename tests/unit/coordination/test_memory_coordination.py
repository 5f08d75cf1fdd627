"""What only the fake can do: time goes by its clock, others write at once, all of it is lost, and a
backup is put back."""

from bottomless_server.coordination.base import Changes, Due
from bottomless_server.coordination.memory import MemoryCoordination


async def test_a_lease_lasts_exactly_as_long_as_its_clock_says() -> None:
    now = [1_000]
    coordination = MemoryCoordination(lambda: now[0])
    await coordination.hold("lease", b"me", 10)

    now[0] = 1_009
    assert await coordination.get("lease") == b"me"
    now[0] = 1_010
    assert await coordination.get("lease") is None


async def test_others_write_at_once_and_without_conditions() -> None:
    coordination = MemoryCoordination(lambda: 0)
    coordination.write(Changes({"a": b"1", "b": b"2"}, [Due("queue", b"m", 4)]))
    coordination.write(Changes({"a": None}, [Due("queue", b"m", 3)]))

    assert await coordination.get("a") is None
    assert await coordination.get("b") == b"2"
    assert await coordination.due("queue", 9, 9) == [Due("queue", b"m", 4)]


def filled() -> MemoryCoordination:
    made = MemoryCoordination(lambda: 1_000)
    made.write(Changes({"a": b"1"}, queued=[Due("queue", b"one", 7)]))
    return made


async def test_an_exec_whose_watched_key_was_lost_changes_nothing() -> None:
    coordination = filled()
    watched = coordination.watch(["a"])
    coordination.lose()

    assert not coordination.execute(watched, Changes({"a": b"2"}))
    assert coordination.peek("a") is None
    assert coordination.peek_queue("queue") == {}
    assert coordination.execute(coordination.watch(["a"]), Changes({"a": b"3"}))
    assert await coordination.get("a") == b"3"


async def test_a_backup_may_be_put_back_twice() -> None:
    coordination = filled()
    copy = coordination.copy()
    for _ in range(2):
        await coordination.transact(["a"], lambda _: (Changes({"a": b"2"}), None))
        await coordination.settle([Due("queue", b"one", 7)])
        coordination.put_back(copy)
        assert (coordination.peek("a"), coordination.peek_queue("queue")) == (b"1", {b"one": 7})
