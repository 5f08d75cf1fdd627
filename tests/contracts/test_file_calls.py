"""What ingest relies on of its files, on the real ones and on a disk in memory that forgets."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.power_loss import SILENT, PowerLossDisk

from bottomless_server.node.file_calls import (
    FileCalls,
    RealFileCalls,
    make_dir_durable,
    read_exactly,
    read_file,
    replace_file,
    write_all,
)

KINDS: dict[str, Callable[[Path], FileCalls]] = {
    "real": lambda _: RealFileCalls(),
    "forgetful": PowerLossDisk,
}


@pytest.fixture(params=sorted(KINDS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileCalls:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> PowerLossDisk:
    return PowerLossDisk(tmp_path)


def write_file(files: FileCalls, path: Path, data: bytes, *, sync: bool = True) -> None:
    fd = files.open(path, create=True)
    write_all(files, fd, [data], 0)
    if sync:
        files.fdatasync(fd)
    files.close(fd)


def after_power_losses(disk: PowerLossDisk, path: Path, make: Callable[[], None]) -> set[bytes]:
    """What is in a file after losses of power with many kinds of luck; b"-" where it is not."""
    found = set()
    for seed in range(40):
        disk.make_dir(path.parent)
        disk.fsync_dir(path.parent.parent)
        make()
        disk.lose_power(random.Random(seed))
        there = path.name in disk.names(path.parent)
        found.add(read_file(disk, path, 100) if there else b"-")
        for name in disk.names(path.parent):
            disk.unlink(path.parent / name)
        disk.fsync_dir(path.parent)
    return found


def test_what_was_written_is_read_and_a_gap_is_zeros(files: FileCalls, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "a", create=True)

    assert files.pwritev(fd, [b"one", memoryview(b"xtwo")[1:]], 0) == 6
    files.pwritev(fd, [b"end"], 8)

    assert read_exactly(files, fd, 100, 0) == b"onetwo\0\0end"
    assert files.pread(fd, 3, 3) == b"two"
    assert files.pread(fd, 3, 50) == b""
    files.truncate(fd, 4)
    assert (files.size(fd), files.pread(fd, 9, 0)) == (4, b"onet")
    files.truncate(fd, 6)
    assert files.pread(fd, 9, 0) == b"onet\0\0"
    files.close(fd)


def test_names_come_and_go(files: FileCalls, tmp_path: Path) -> None:
    write_file(files, tmp_path / "a", b"a")
    files.rename(tmp_path / "a", tmp_path / "b")
    write_file(files, tmp_path / "c", b"c")
    files.rename(tmp_path / "c", tmp_path / "b")
    for path in (tmp_path / "deep", tmp_path / "deep" / "er", tmp_path / "deep" / "er"):
        files.make_dir(path)

    assert sorted(files.names(tmp_path)) == ["b", "deep"]
    assert read_file(files, tmp_path / "b", 10) == b"c"
    assert files.names(tmp_path / "nothing") == []
    files.unlink(tmp_path / "b")
    files.rename(tmp_path / "deep" / "er", tmp_path / "moved")
    files.remove_dir(tmp_path / "deep")
    assert files.names(tmp_path) == ["moved"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda files, path: files.open(path / "nothing"), FileNotFoundError),
        (lambda files, path: files.open(path / "no" / "way", create=True), FileNotFoundError),
        (lambda files, path: files.open(path / "a", create=True), FileExistsError),
        (lambda files, path: files.unlink(path / "nothing"), FileNotFoundError),
        (lambda files, path: files.rename(path / "nothing", path / "b"), FileNotFoundError),
        (lambda files, path: files.remove_dir(path / "full"), OSError),
        (lambda files, path: files.fsync_dir(path / "nothing"), FileNotFoundError),
        (lambda files, path: files.make_dir(path / "no" / "way"), FileNotFoundError),
    ],
)
def test_what_cannot_be_done_is_refused(
    files: FileCalls,
    tmp_path: Path,
    call: Callable[[FileCalls, Path], object],
    error: type[OSError],
) -> None:
    write_file(files, tmp_path / "a", b"a")
    files.make_dir(tmp_path / "full")
    write_file(files, tmp_path / "full" / "b", b"b")

    with pytest.raises(error):
        call(files, tmp_path)


def test_an_open_file_outlives_its_name(files: FileCalls, tmp_path: Path) -> None:
    write_file(files, tmp_path / "a", b"still here")
    fd = files.open(tmp_path / "a")

    files.unlink(tmp_path / "a")

    assert files.pread(fd, 100, 0) == b"still here"
    files.close(fd)


def test_without_a_sync_a_write_may_be_lost_in_any_part(
    disk: PowerLossDisk, tmp_path: Path
) -> None:
    path = tmp_path / "d" / "a"

    def make() -> None:
        write_file(disk, path, b"kept")
        disk.fsync_dir(path.parent)
        fd = disk.open(path)
        disk.pwritev(fd, [b"one"], 4)
        disk.pwritev(fd, [b"two"], 7)

    found = after_power_losses(disk, path, make)
    assert {b"kept", b"keptone", b"keptonetwo", b"kept\0\0\0two"} <= found
    assert all(one.startswith(b"kept") for one in found)


def test_a_synced_file_without_a_synced_name_may_be_gone(
    disk: PowerLossDisk, tmp_path: Path
) -> None:
    path = tmp_path / "d" / "a"

    assert after_power_losses(disk, path, lambda: write_file(disk, path, b"data")) == {
        b"-",
        b"data",
    }


def test_what_was_synced_with_its_name_is_there(disk: PowerLossDisk, tmp_path: Path) -> None:
    path = tmp_path / "d" / "a"

    def make() -> None:
        write_file(disk, path, b"data")
        disk.fsync_dir(path.parent)

    assert after_power_losses(disk, path, make) == {b"data"}


def test_a_replaced_file_is_the_old_one_or_the_new_one(disk: PowerLossDisk, tmp_path: Path) -> None:
    path = tmp_path / "d" / "a"
    replaced: list[bytes] = []

    def make() -> None:
        replace_file(disk, path, b"old")
        fresh = path.with_name("a.new")
        write_file(disk, fresh, b"new one")
        disk.rename(fresh, path)
        replaced.append(b"")

    assert after_power_losses(disk, path, make) == {b"old", b"new one"}


def test_a_failed_sync_forgets_what_it_did_not_write(disk: PowerLossDisk, tmp_path: Path) -> None:
    path = tmp_path / "d" / "a"

    def fail(call: str, _: Path) -> None:
        if call == "fdatasync":
            raise OSError("not written")

    def make() -> None:
        write_file(disk, path, b"kept")
        disk.fsync_dir(path.parent)
        fd = disk.open(path)
        disk.pwritev(fd, [b"lost"], 4)
        disk.before = fail
        with pytest.raises(OSError, match="not written"):
            disk.fdatasync(fd)
        disk.before = lambda _, __: None
        disk.fdatasync(fd)

    assert after_power_losses(disk, path, make) == {b"kept"}


def test_a_directory_made_durable_is_there_with_all_above_it(
    disk: PowerLossDisk, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "by" / "us" / "a"

    def make() -> None:
        make_dir_durable(disk, path.parent)
        write_file(disk, path, b"data")
        disk.fsync_dir(path.parent)

    for seed in range(20):
        make()
        disk.lose_power(random.Random(seed))
        assert read_file(disk, path, 100) == b"data"
        disk.unlink(path)


def test_a_whole_file_system_is_synced_by_a_handle_that_is_open(
    files: FileCalls, tmp_path: Path
) -> None:
    # Of the real one a file system is synced that has nothing to write, whoever works beside this.
    directory = Path("/proc") if isinstance(files, RealFileCalls) else tmp_path
    handle = files.open_dir(directory)
    files.syncfs(handle)
    files.syncfs(handle)
    files.close(handle)

    with pytest.raises(OSError, match="Bad file"):
        files.syncfs(handle)
    with pytest.raises(FileNotFoundError):
        files.open_dir(tmp_path / "nothing")


def test_the_system_tells_on_what_a_directory_lies() -> None:
    found = RealFileCalls().file_system(Path("/proc/self"))

    assert found is not None
    assert (found.kind, found.is_own) == ("proc", False)
    assert found.kernel >= (3, 0)


def test_a_failed_sync_of_everything_says_of_each_file_whether_it_lost_something(
    tmp_path: Path,
) -> None:
    """Whose sync then succeeds is on the disk; whose sync fails has lost what it wrote."""
    fates = set()

    def fail(call: str, _: Path) -> None:
        if call == "syncfs":
            raise OSError("not written")

    for seed in range(20):
        disk = PowerLossDisk(tmp_path)
        names = [f"{number}" for number in range(seed + 1)]
        handle = disk.open_dir(tmp_path)
        opened = {name: disk.open(tmp_path / name, create=True) for name in names}
        disk.fsync_dir(tmp_path)
        for fd in opened.values():
            disk.pwritev(fd, [b"data"], 0)
        disk.before = fail
        with pytest.raises(OSError, match="not written"):
            disk.syncfs(handle)
        disk.before = lambda _, __: None
        disk.syncfs(handle)

        told = {}
        for name, fd in opened.items():
            try:
                disk.fdatasync(fd)
                told[name] = b"data"
            except OSError:
                told[name] = b""
            disk.fdatasync(fd)
        disk.lose_power(random.Random(seed))
        assert {name: read_file(disk, tmp_path / name, 9) for name in names} == told
        fates |= set(told.values())
    assert fates == {b"data", b""}


def test_a_file_system_that_tells_nobody_loses_files_without_a_word(tmp_path: Path) -> None:
    """As an ext4 does that finds no blocks when it writes back: not even the file's own sync says it."""
    lost = 0

    def fail(call: str, _: Path) -> None:
        if call == "syncfs":
            raise OSError("not written")

    for seed in range(20):
        disk = PowerLossDisk(tmp_path, fail, SILENT)
        handle = disk.open_dir(tmp_path)
        opened = [disk.open(tmp_path / str(number), create=True) for number in range(seed + 1)]
        disk.fsync_dir(tmp_path)
        for fd in opened:
            disk.pwritev(fd, [b"data"], 0)

        disk.syncfs(handle)
        for fd in opened:
            disk.fdatasync(fd)

        disk.lose_power(random.Random(seed))
        lost += sum(not read_file(disk, tmp_path / str(number), 9) for number in range(seed + 1))
    assert lost


def after_losses_of_sectors(
    tmp_path: Path, make: Callable[[PowerLossDisk, int], None]
) -> set[bytes]:
    """What is in a file of eight bytes, whose sectors have two, after losses of power."""
    found = set()
    for seed in range(300):
        disk = PowerLossDisk(tmp_path, sector_size=2)
        write_file(disk, tmp_path / "a", b"abcdefgh")
        disk.fsync_dir(tmp_path)
        fd = disk.open(tmp_path / "a")
        make(disk, fd)
        disk.lose_power(random.Random(seed))
        found.add(read_file(disk, tmp_path / "a", 100))
    return found


def test_of_a_write_any_sectors_are_there_and_each_is_whole(tmp_path: Path) -> None:
    def make(disk: PowerLossDisk, fd: int) -> None:
        disk.pwritev(fd, [b"1234"], 1)

    first, second, third = (b"ab", b"a1"), (b"cd", b"23"), (b"ef", b"4f")
    assert after_losses_of_sectors(tmp_path, make) == {
        a + b + c + b"gh" for a in first for b in second for c in third
    }


def test_of_several_changes_each_sector_may_be_as_any_left_it(tmp_path: Path) -> None:
    def make(disk: PowerLossDisk, fd: int) -> None:
        disk.pwritev(fd, [b"11"], 0)
        disk.pwritev(fd, [b"22"], 0)
        disk.fdatasync(fd)
        disk.pwritev(fd, [b"33"], 0)
        disk.pwritev(fd, [b"44", b"55"], 0)

    assert after_losses_of_sectors(tmp_path, make) == {
        a + b + b"efgh" for a in (b"22", b"33", b"44") for b in (b"cd", b"55")
    }


def test_a_cut_is_there_or_not_and_leaves_nothing_else(tmp_path: Path) -> None:
    def make(disk: PowerLossDisk, fd: int) -> None:
        disk.truncate(fd, 3)

    assert after_losses_of_sectors(tmp_path, make) == {b"abcdefgh", b"abc"}


def test_what_a_cut_took_away_does_not_come_back_in_a_file_that_grows_again(tmp_path: Path) -> None:
    def make(disk: PowerLossDisk, fd: int) -> None:
        disk.truncate(fd, 2)
        disk.fdatasync(fd)
        disk.pwritev(fd, [b"1234"], 2)

    found = after_losses_of_sectors(tmp_path, make)
    assert {b"ab", b"ab1234", b"ab\0\x0034", b"ab12\0\0"} <= found
    assert not any(b"c" in data or b"e" in data for data in found)
