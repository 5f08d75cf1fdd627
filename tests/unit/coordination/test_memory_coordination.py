"""What only the fake can do: time goes by its clock, and others write at once."""

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
