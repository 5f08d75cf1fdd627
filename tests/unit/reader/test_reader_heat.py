"""What is fetched of fragments is counted for an hour, and told to manifest."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.drives import a_table
from support.peers import SilentPeer
from unit.formats.examples import STREAM_ID, UID

from bottomless.errors import Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_key
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.protocol.fetched import FETCHED
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.heat import SLOT_COUNT, SLOT_MS, Fetched, Heat
from bottomless_server.reader.heat_telling import HeatTelling

HOUR_MS = SLOT_COUNT * SLOT_MS
COLD = 7


def key(offset: int, copy: int = 0) -> str:
    return fragment_key(STREAM_ID, offset, UID, "default", copy)


def test_bytes_of_a_fragment_add_up_and_each_drive_has_its_own() -> None:
    heat = Heat()
    heat.add(key(0), 0, 10, now=0)
    heat.add(key(0), 0, 5, now=SLOT_MS)
    heat.add(key(0, copy=9), COLD, 7, now=SLOT_MS)

    assert heat.take(SLOT_MS, 10) == [Fetched(key(0), 0, 15), Fetched(key(0, copy=9), COLD, 7)]


def test_only_what_was_fetched_since_is_told_again_and_then_with_all_of_its_hour() -> None:
    heat = Heat()
    heat.add(key(0), 0, 10, now=0)
    heat.add(key(5), 0, 10, now=0)
    assert len(heat.take(0, 10)) == 2
    assert heat.take(0, 10) == []

    heat.add(key(5), 0, 1, now=SLOT_MS)

    assert heat.take(SLOT_MS, 10) == [Fetched(key(5), 0, 11)]


def test_after_an_hour_it_is_forgotten() -> None:
    heat = Heat()
    heat.add(key(0), 0, 10, now=0)
    heat.add(key(5), 0, 10, now=HOUR_MS - 1)
    heat.add(key(0), 0, 3, now=HOUR_MS)

    assert heat.take(HOUR_MS, 10) == [Fetched(key(5), 0, 10), Fetched(key(0), 0, 3)]


def test_what_is_read_all_the_time_hides_nothing_for_ever() -> None:
    heat, told = Heat(), list[Fetched]()
    heat.add(key(5, copy=9), COLD, 1, now=0)
    for minute in range(3):
        for offset in range(10, 15):
            heat.add(key(offset), 0, 1_000, now=minute)
        told += heat.take(minute, 4)
    assert Fetched(key(5, copy=9), COLD, 1) in told


def test_the_most_and_who_waits_longest_are_told_first_and_the_rest_the_next_time() -> None:
    heat = Heat()
    for offset in range(5):
        heat.add(key(offset), 0, offset + 1, now=0)

    assert [one.size for one in heat.take(0, 2)] == [5, 1]
    assert [one.size for one in heat.take(0, 9)] == [4, 3, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4))))
def test_no_more_fragments_are_counted_than_may_be_and_those_are_the_last(
    fetches: list[tuple[int, int]],
) -> None:
    heat = Heat(fragment_count_max=3)
    for offset, size in fetches:
        heat.add(key(offset), 0, size, now=0)

    last = list(dict.fromkeys(offset for offset, _ in reversed(fetches)))[:3]
    assert len(heat) == len(last)
    assert {one.object_key for one in heat.take(0, 9)} == {key(offset) for offset in last}


def test_what_is_no_fragment_is_not_counted() -> None:
    heat = Heat()
    heat.add(f"_system/wal/{UID}/000000000001.wal", 0, 10, now=0)
    heat.add("a", 0, 10, now=0)
    heat.add(key(0), 0, 0, now=0)

    assert len(heat) == 0


class Manifest(SilentPeer):
    """Takes what it is told, or is away."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.away = False

    async def call(self, method: str, path: str, /, **asked: Any) -> PeerAnswer:
        if self.away:
            raise Unavailable("nobody answers")
        assert (method, path) == ("POST", FETCHED)
        self.told += asked["body"]["fragments"]
        return PeerAnswer(200, {}, {})


async def test_manifest_is_told_what_was_fetched_past_the_cache() -> None:
    peer, drive = Manifest(), MemoryDrive()
    telling = HeatTelling(Heat(), peer, 60_000, lambda: 0)
    table = await a_table(drive, COLD)
    data = bytes(2_500)
    await table.of(COLD).put(key(30, copy=9), [data], crc32c(data))
    blocks = Blocks(drive, SharedCache(10_000), 1_000, 4, drives=table, note=telling.note)

    for _ in range(3):
        await blocks.read(key(30, copy=9), 0, 2_500, drive=COLD)
    await telling.tell()
    await telling.tell()

    assert peer.told == [
        {"stream_id": STREAM_ID, "first_offset": 30, "drive": COLD, "bytes": 2_500}
    ]
    assert (telling.told_count, telling.lost_count, telling.fragment_count) == (1, 0, 1)


async def test_a_telling_that_is_lost_is_told_with_the_next_fetch() -> None:
    peer = Manifest()
    telling = HeatTelling(Heat(), peer, 60_000, lambda: 0)
    telling.note(key(0), 0, 10)
    peer.away = True
    await telling.tell()
    peer.away = False
    await telling.tell()
    assert (peer.told, telling.lost_count) == ([], 1)

    telling.note(key(0), 0, 10)
    await telling.tell()

    assert [one["bytes"] for one in peer.told] == [20]
