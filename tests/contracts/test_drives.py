"""What every drive promises, and what only a directory can show."""

import asyncio
import time

import pytest

from bottomless.drives.base import Drive, ObjectExists, ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.checks import crc32c

UNSORTED = ["a/b", "a.b", "a/a/z", "a-b", "b", "a/c.d", "a0", "ab/c"]


async def put(drive: Drive, object_key: str, data: bytes = b"body") -> None:
    await drive.put(object_key, [data], crc32c(data))


async def keys_of(drive: Drive, prefix: str = "", after: str = "") -> list[str]:
    return [facts.object_key async for facts in drive.list(prefix, after)]


async def test_an_object_is_its_parts_joined(drive: Drive) -> None:
    await drive.put("a/b", [b"one ", b"", memoryview(b"xtwo")[1:]], crc32c(b"one two"))

    assert await drive.get("a/b") == b"one two"


async def test_an_object_may_be_empty(drive: Drive) -> None:
    await put(drive, "empty", b"")

    assert await drive.get("empty") == b""
    assert (await drive.head("empty")).size == 0


@pytest.mark.parametrize(
    ("start", "size", "found"),
    [
        (0, 3, b"012"),
        (3, None, b"3456789"),
        (8, 5, b"89"),
        (10, 5, b""),
        (99, None, b""),
        (99, 1, b""),
        (4, 0, b""),
    ],
)
async def test_a_range_ends_where_the_object_ends(
    drive: Drive, start: int, size: int | None, found: bytes
) -> None:
    await put(drive, "digits", b"0123456789")

    assert await drive.get("digits", start, size) == found


async def test_many_parts_of_many_sizes_arrive_in_order(drive: Drive) -> None:
    parts = [bytes([number % 251]) * (number % 5000) for number in range(2500)]
    data = b"".join(parts)

    await drive.put("big", parts, crc32c(data))

    assert await drive.get("big") == data
    assert await drive.get("big", 3_000_000, 1_000_000) == data[3_000_000:4_000_000]


async def test_a_key_is_put_once(drive: Drive) -> None:
    await put(drive, "a/b", b"first")

    with pytest.raises(ObjectExists):
        await put(drive, "a/b", b"second")
    assert await drive.get("a/b") == b"first"


async def test_of_puts_at_the_same_time_one_wins(drive: Drive) -> None:
    bodies = [f"body {number}".encode() * 1000 for number in range(8)]

    results = await asyncio.gather(
        *(put(drive, "a/b", body) for body in bodies), return_exceptions=True
    )

    (winner,) = [number for number, result in enumerate(results) if result is None]
    losers = [result for result in results if result is not None]
    assert all(isinstance(result, ObjectExists) for result in losers)
    assert await drive.get("a/b") == bodies[winner]


async def test_bytes_that_do_not_match_their_checksum_are_not_stored(drive: Drive) -> None:
    # Small ones, and such as go to a disk in blocks, with the damage in a block or in the rest.
    for body, damaged in ((b"body", 0), (bytes(2**20 + 9), 5_000), (bytes(2**20 + 9), 2**20 + 3)):
        other = bytearray(body)
        other[damaged] ^= 1
        with pytest.raises(Corrupt):
            await drive.put("a/b", [bytes(other[:3]), bytes(other[3:])], crc32c(body))

    assert await keys_of(drive) == []


async def test_head_says_size_and_time_and_checksum_if_asked(drive: Drive) -> None:
    await put(drive, "a/b", b"body" * 10)

    facts = await drive.head("a/b", checksum=True)

    assert facts[:2] == ("a/b", 40)
    assert facts.crc == crc32c(b"body" * 10)
    assert facts.modified > 1_600_000_000_000


@pytest.mark.parametrize("object_key", ["nothing", "a", "a/b/c", "z/z"])
async def test_what_was_not_put_is_missing(drive: Drive, object_key: str) -> None:
    await put(drive, "a/b")

    with pytest.raises(ObjectMissing):
        await drive.get(object_key)
    with pytest.raises(ObjectMissing):
        await drive.head(object_key, checksum=True)


async def test_a_drive_that_holds_nothing_lists_nothing(drive: Drive) -> None:
    assert await keys_of(drive) == []
    assert await keys_of(drive, "a/") == []


async def test_a_list_is_in_key_order(drive: Drive) -> None:
    for object_key in UNSORTED:
        await put(drive, object_key)

    assert await keys_of(drive) == sorted(UNSORTED)


async def test_a_list_holds_what_starts_with_its_prefix_after_a_key(drive: Drive) -> None:
    for object_key in UNSORTED:
        await put(drive, object_key)

    for prefix in ["", "a", "a/", "a/c", "a/c.d", "ab", "b/", "x", "a/a/"]:
        for after in ["", *UNSORTED, "a", "a/", "a/a", "a/b/c", "zz"]:
            wanted = sorted(key for key in UNSORTED if key.startswith(prefix) and key > after)
            assert await keys_of(drive, prefix, after) == wanted, (prefix, after)


async def test_a_list_may_be_left_early_and_changed_meanwhile(drive: Drive) -> None:
    for object_key in UNSORTED:
        await put(drive, object_key)
    found = []

    async for facts in drive.list():
        await drive.delete([facts.object_key])
        found.append(facts.object_key)

    assert found == sorted(UNSORTED)
    assert await keys_of(drive) == []


async def test_a_deleted_object_is_gone_and_an_absent_one_counts_as_deleted(drive: Drive) -> None:
    await put(drive, "a/b")
    await put(drive, "a/c")

    assert await drive.delete(["a/b", "a/nothing", "z/z"]) == {}
    assert await drive.delete(["a/b"]) == {}
    assert await drive.delete([]) == {}
    assert await keys_of(drive) == ["a/c"]


async def test_a_deleted_key_can_be_put_again(drive: Drive) -> None:
    await put(drive, "a/b", b"first")
    await drive.delete(["a/b"])
    await put(drive, "a/b", b"second")

    assert await drive.get("a/b") == b"second"


@pytest.mark.parametrize(
    "object_key",
    ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "a\0b", "ä", ".tmp/a", "a\n", "x" * 256],
)
async def test_a_key_that_could_lie_elsewhere_is_a_bug(drive: Drive, object_key: str) -> None:
    with pytest.raises(ValueError, match="not an object key"):
        await put(drive, object_key)
    with pytest.raises(ValueError, match="not an object key"):
        await drive.get(object_key)
    with pytest.raises(ValueError, match="not an object key"):
        await drive.delete([object_key])


async def test_the_clock_of_the_store_is_near_ours_and_in_milliseconds(drive: Drive) -> None:
    before = time.time_ns() // 1_000_000

    found = await drive.clock()

    # Dates of HTTP have whole seconds.
    assert before - 2_000 <= found <= time.time_ns() // 1_000_000 + 2_000


async def test_tidying_takes_no_object_away_and_nothing_from_later_puts(drive: Drive) -> None:
    for key in ("a/b/one", "a/c/two"):
        await drive.put(key, [b"body"], crc32c(b"body"))
    assert await drive.delete(["a/b/one"]) == {}
    for prefix in ("a/", "a/", "nothing/"):
        await drive.tidy(prefix)
    assert [facts.object_key async for facts in drive.list()] == ["a/c/two"]
    await drive.put("a/b/three", [b"body"], crc32c(b"body"))
    assert await drive.get("a/b/three") == b"body"
