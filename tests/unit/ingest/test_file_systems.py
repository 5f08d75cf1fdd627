"""On which disks one sync of the whole file system stands for those of many files."""

import random
from pathlib import Path

import pytest
from support.power_loss import OWN, SHARED, PowerLossDisk

from bottomless_server.ingest.log.whole_syncs import WholeSyncs, may_sync_all
from bottomless_server.node.core.file_systems import FileSystem, file_system_of
from bottomless_server.node.file_calls import RealFileCalls, read_file, write_all
from bottomless_server.runtime.base.cannot_start import CannotStart
from unit.ingest.harness import IngestHarness, RecordedFiles

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw shared:5 - proc proc rw
30 22 259:1 / /data rw,relatime shared:7 master:1 - ext4 /dev/nvme1n1 rw
31 22 259:2 / /srv/two\\040words rw - xfs /dev/nvme2n1 rw
32 22 254:0 /var/lib/volumes/v1 /volume rw - ext4 /dev/vda rw
33 22 259:3 / /twice rw - ext4 /dev/nvme3n1 rw
34 22 259:3 / /elsewhere rw - ext4 /dev/nvme3n1 rw
35 22 259:4 / /hidden rw - ext4 /dev/nvme4n1 rw
36 35 0:50 / /hidden rw - tmpfs tmpfs rw
a line of another kind
"""


def found(path: str, release: str = "6.1.0-13-cloud-amd64") -> FileSystem | None:
    return file_system_of(path, MOUNTS, release)


@pytest.mark.parametrize(
    ("path", "kind", "is_own"),
    [
        ("/data", "ext4", True),
        ("/data/ingest", "ext4", False),
        ("/database", "ext4", False),
        ("/srv/two words", "xfs", True),
        ("/", "ext4", False),
        ("/var/lib/bottomless", "ext4", False),
        ("/volume", "ext4", False),
        ("/twice", "ext4", False),
        ("/hidden", "tmpfs", True),
        ("/proc", "proc", True),
    ],
)
def test_a_directory_has_a_file_system_for_itself_where_all_of_one_is_mounted(
    path: str, kind: str, is_own: bool
) -> None:
    lies_on = found(path)
    assert lies_on is not None
    assert (lies_on.kind, lies_on.is_own, lies_on.kernel) == (kind, is_own, (6, 1))


def test_where_something_else_is_mounted_below_one_sync_does_not_cover_all() -> None:
    below = MOUNTS + "37 31 259:9 / /srv/two\\040words/streams rw - xfs /dev/nvme9n1 rw\n"
    above = file_system_of("/srv/two words", below, "6.1")
    assert above is not None
    assert (above.is_own, above.is_single) == (True, False)
    assert not may_sync_all("auto", above)
    with pytest.raises(CannotStart):
        may_sync_all("always", above)
    streams = file_system_of("/srv/two words/streams", below, "6.1")
    assert streams is not None
    assert streams.device == "259:9" != above.device
    single = found("/srv/two words")
    assert single is not None
    assert single.is_single
    assert may_sync_all("auto", single)


def test_streams_that_lie_on_another_disk_by_a_link_are_not_synced_by_that_of_the_directory(
    tmp_path: Path,
) -> None:
    class Linked(PowerLossDisk):
        def file_system(self, path: Path) -> FileSystem | None:
            return OWN._replace(device=path.name)

    assert WholeSyncs(PowerLossDisk(tmp_path, lies_on=OWN), tmp_path, "auto").look()
    assert not WholeSyncs(Linked(tmp_path), tmp_path, "auto").look()


def test_a_single_stream_that_lies_on_another_disk_by_a_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "streams" / "a").mkdir(parents=True)
    files = RealFileCalls()
    before = files.file_system(tmp_path / "streams")
    if before is None:
        pytest.skip("the system does not say what lies here, as in a chroot")
    assert before.is_single
    (tmp_path / "streams" / "b").symlink_to(tmp_path)

    linked = files.file_system(tmp_path / "streams")

    assert linked is not None
    assert not linked.is_single

    class Linked(PowerLossDisk):
        def file_system(self, path: Path) -> FileSystem | None:
            return OWN._replace(is_single=path.name != "streams")

    assert not WholeSyncs(Linked(tmp_path), tmp_path, "auto").look()


def test_what_the_system_does_not_tell_is_not_made_up() -> None:
    assert file_system_of("/data", "", "6.1.0") is None
    assert file_system_of("/data", MOUNTS, "a kernel of one's own") is None
    assert file_system_of("/data", "\0 - \n - - -\n1 2 3 - ext4", "6.1") is None


@pytest.mark.parametrize(
    ("kind", "kernel", "tells"),
    [
        ("xfs", (5, 17), True),
        ("xfs", (6, 18), True),
        ("xfs", (5, 16), False),
        ("xfs", (5, 8), False),
        ("ext4", (6, 1), False),
        ("ext4", (6, 18), False),
        ("overlay", (6, 1), False),
        ("nfs4", (6, 1), False),
        ("btrfs", (6, 1), False),
    ],
)
def test_errors_are_told_by_kernels_and_file_systems_of_which_it_is_known(
    kind: str, kernel: tuple[int, int], tells: bool
) -> None:
    lies_on = FileSystem(kind, is_own=True, kernel=kernel)

    assert lies_on.tells_errors == tells
    assert may_sync_all("auto", lies_on) == tells
    assert not may_sync_all("never", lies_on)


def test_where_others_write_only_an_operator_has_everything_synced() -> None:
    assert not may_sync_all("auto", SHARED)
    assert may_sync_all("always", SHARED)
    assert may_sync_all("auto", OWN)
    assert not may_sync_all("auto", None)


@pytest.mark.parametrize("lies_on", [None, FileSystem("overlay", is_own=True, kernel=(6, 1))])
async def test_a_node_does_not_start_where_it_is_to_sync_everything_and_errors_are_not_told(
    tmp_path: Path, lies_on: FileSystem | None
) -> None:
    files = RecordedFiles(lies_on)
    harness = IngestHarness(tmp_path / "ingest", files=files, ingest_sync_all="always")

    with pytest.raises(CannotStart, match="BOTTOMLESS_INGEST_SYNC_ALL"):
        await harness.start()
    harness.service.directory.close()


def test_whoever_syncs_is_told_of_its_own_loss_whoever_asked_meanwhile(tmp_path: Path) -> None:
    """An error is told once to each handle: through one for all, the first who asks takes it away."""
    disk = PowerLossDisk(tmp_path, lies_on=OWN)
    whole = WholeSyncs(disk, tmp_path, "auto")
    file = disk.open(tmp_path / "a", create=True)
    for _ in range(2):
        with whole.handle() as ours:
            write_all(disk, file, [b"lost"], 0)
            disk.lose_writes(tmp_path / "a")
            with whole.handle() as of_another:
                assert of_another.sync() is not None
            assert ours.sync() is not None
        with whole.handle() as later:
            assert later.sync() is None
    whole.close()
    assert disk.open_count == 1


def test_without_any_handle_left_a_sync_of_everything_is_refused(tmp_path: Path) -> None:
    def refuse(call: str, _: Path) -> None:
        if call == "open_dir":
            raise OSError("too many open files")

    whole = WholeSyncs(PowerLossDisk(tmp_path, refuse, OWN), tmp_path, "auto")

    with whole.handle() as handle:
        assert handle.sync() is not None
    whole.close()


def test_what_a_sync_of_everything_has_covered_outlives_a_loss_of_power(tmp_path: Path) -> None:
    for seed in range(20):
        disk = PowerLossDisk(tmp_path, lies_on=OWN)
        whole = WholeSyncs(disk, tmp_path, "auto")
        with whole.handle() as handle:
            for name in ("a", "b"):
                fd = disk.open(tmp_path / name, create=True)
                write_all(disk, fd, [name.encode() * 9], 0)
            disk.fsync_dir(tmp_path)
            assert handle.sync() is None
        disk.lose_power(random.Random(seed))
        assert [read_file(disk, tmp_path / name, 99) for name in "ab"] == [b"a" * 9, b"b" * 9]
