"""Large objects go past the page cache, and are the same bytes where that is not possible."""

import errno
import fcntl
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bottomless.formats.checks import crc32c
from bottomless_server.drives.drive_calls import PAST_CACHE_SIZE_MIN, DriveCalls
from bottomless_server.drives.past_cache import write_past_cache

DIRECT = os.O_DIRECT
SEED = 20261121


def parts_of(size: int) -> list[memoryview]:
    """Bytes in pieces of every alignment."""
    chance = random.Random(SEED + size)
    data, parts = memoryview(chance.randbytes(size)), []
    while data:
        taken = chance.choice([1, 511, 4096, 70_000, 1_100_000])
        parts.append(data[:taken])
        data = data[taken:]
    return parts


def written(directory: Path, parts: list[memoryview]) -> bytes:
    calls = DriveCalls()
    file = calls.create(directory / "file")
    try:
        assert calls.write(file, parts) == crc32c(b"".join(parts))
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT, "who writes next need not align"
    finally:
        os.close(file)
    return (directory / "file").read_bytes()


class Writes:
    """`os.write` and `os.writev`, which note what went past the cache and what did not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.past = self.into = 0
        self.before: Callable[[int], int] = lambda size: size
        """Says of a direct write how much of it is taken; may raise."""
        self._write, self._writev = os.write, os.writev
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "writev", self.writev)

    def write(self, file: int, data: memoryview) -> int:
        assert fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT
        size = self._write(file, data[: self.before(len(data))])
        self.past += size
        return size

    def writev(self, file: int, parts: list[memoryview]) -> int:
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT
        size = self._writev(file, parts)
        self.into += size
        return size


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Writes:
    file = os.open(tmp_path / "asked", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, DIRECT)
    except OSError:
        pytest.skip("this file system has no way past the cache")
    finally:
        os.close(file)
    return Writes(monkeypatch)


@pytest.mark.parametrize("size", [PAST_CACHE_SIZE_MIN, 3_145_728, 5_000_001])
def test_whole_blocks_of_a_large_object_go_past_the_cache(
    tmp_path: Path, writes: Writes, size: int
) -> None:
    parts = parts_of(size)

    assert written(tmp_path, parts) == b"".join(parts)
    assert writes.into == size % 4096
    assert writes.past == size - writes.into


def test_a_small_object_goes_into_the_cache(tmp_path: Path, writes: Writes) -> None:
    parts = parts_of(PAST_CACHE_SIZE_MIN - 1)

    assert written(tmp_path, parts) == b"".join(parts)
    assert writes.past == 0


def test_a_file_system_that_refuses_gets_it_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fcntl.fcntl

    def refuse(file: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & DIRECT:
            raise OSError(errno.EINVAL, "no such thing here")
        return asked(file, command, value)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    parts = parts_of(3_000_000)

    assert written(tmp_path, parts) == b"".join(parts)


@pytest.mark.parametrize("taken_before", [0, 2 * 1024 * 1024])
def test_one_that_wants_another_alignment_gets_the_rest_the_usual_way(
    tmp_path: Path, writes: Writes, taken_before: int
) -> None:
    def refuse(size: int) -> int:
        if writes.past >= taken_before:
            raise OSError(errno.EINVAL, "not aligned")
        return size

    writes.before = refuse
    parts = parts_of(5_000_000)

    assert written(tmp_path, parts) == b"".join(parts)
    assert writes.past == taken_before


def test_a_short_write_is_continued(tmp_path: Path, writes: Writes) -> None:
    writes.before = lambda size: max(4096, size // 3 // 4096 * 4096)
    parts = parts_of(3_000_000)

    assert written(tmp_path, parts) == b"".join(parts)


def test_a_short_write_off_the_blocks_is_continued_the_usual_way(
    tmp_path: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a disk that is nearly full."""
    aligned = os.write

    def write(file: int, data: memoryview) -> int:
        if writes.past % 4096:
            raise OSError(errno.EINVAL, "not aligned")
        size = aligned(file, data)
        if writes.past == size:
            os.lseek(file, -1000, os.SEEK_CUR)
            writes.past -= 1000
            return size - 1000
        return size

    monkeypatch.setattr(os, "write", write)
    parts = parts_of(3_000_000)

    assert written(tmp_path, parts) == b"".join(parts)


def test_a_full_disk_is_told(tmp_path: Path, writes: Writes) -> None:
    def full(_: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    writes.before = full
    with pytest.raises(OSError, match="full"):
        written(tmp_path, parts_of(3_000_000))


def test_what_is_left_is_less_than_a_block(tmp_path: Path, writes: Writes) -> None:
    del writes
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        left, crc = write_past_cache(file, parts_of(1_000_003))
    finally:
        os.close(file)

    assert sum(map(len, left)) == 1_000_003 % 4096
    assert crc == crc32c((tmp_path / "file").read_bytes())
