"""Fragments whose bytes go from the segment's file to the object store, some of them at a time."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chunks import a_chunk
from support.uploader_harness import SlowDrive, UploaderHarness
from support.uploading import STREAM_ID, FakeIngest
from support.waiting import eventually

from bottomless.drives.base import Body, DriveAmbiguous, DriveRefused, DriveUnavailable
from bottomless.errors import Code
from bottomless.formats.checks import crc32c
from bottomless.formats.fragment import pack_fragment
from bottomless.model.limits import KIB, MIB
from bottomless.model.names import Uid
from bottomless_server.drives.checked_parts import BLOCK_SIZE, blocks_of
from bottomless_server.protocol.tail import HeadsRun
from bottomless_server.uploader import fragments
from bottomless_server.uploader.core.epochs import Stretch, divide, heads_of
from bottomless_server.uploader.packing import READ_SIZE, FragmentSource, Packed, pack_piece

UID = Uid("0" * 31 + "1")
RECORDS = 10
VALUE = 30 * KIB


class WatchedDrive(SlowDrive):
    """Notes of which kind the bodies are."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[type] = []
        self.ended_count = 0

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        self.bodies.append(type(body))
        try:
            await super().put(object_key, body, crc)
        finally:
            self.ended_count += 1


def a_harness(
    directory: Path, count: int = 8, per_fragment: int = 4, drive: WatchedDrive | None = None
) -> UploaderHarness:
    """A log of chunks of some 300 KiB in a file, of which so many make a fragment."""
    chunks = [a_chunk(number * RECORDS, value_size=VALUE) for number in range(count)]
    target = per_fragment * len(a_chunk(0, value_size=VALUE)) - 100
    ingest = FakeIngest(target_bytes=target, max_age_ms=3_600_000)
    ingest.directory = directory
    for chunk in chunks:
        ingest.append(chunk)
    return UploaderHarness(ingest, drive or WatchedDrive(), memory_bytes=64 * MIB)


async def test_what_lies_in_a_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    harness = a_harness(tmp_path)
    most = 0
    async with harness.running() as service:

        def published() -> bool:
            nonlocal most
            most = max(most, service.streams.report()["memory_bytes"])
            return harness.manifest.published_next == 80

        await eventually(published)

    assert harness.ranges() == [(0, 40), (40, 80)]
    assert harness.drive.bodies == [FragmentSource] * 2  # type: ignore[attr-defined]
    for info in harness.manifest.applied:
        assert len(await harness.chunks_of(info)) == 4
    assert most <= 3 * READ_SIZE, "two that are put, and one that is cut"


async def test_each_attempt_to_put_reads_the_file_anew(tmp_path: Path) -> None:
    harness = a_harness(tmp_path, count=4)
    harness.drive.failures = [DriveUnavailable("down"), DriveAmbiguous("lost")]
    async with harness.running():
        await harness.published(40)

    assert harness.ranges() == [(0, 40)]
    assert await harness.chunks_of(harness.manifest.applied[0]) == [0, 10, 20, 30]
    assert len(harness.manifest.sessions) == 1


async def test_a_file_that_goes_away_ends_the_session_and_the_next_one_fetches_the_bytes(
    tmp_path: Path,
) -> None:
    """As where the owner was replaced, or its file was freed, between cut and put."""
    harness = a_harness(tmp_path)
    harness.drive.gates = {0: asyncio.Event(), 40: asyncio.Event()}
    async with harness.running():
        await eventually(lambda: sorted(harness.drive.puts) == [0, 40])
        harness.ingest.segment().unlink()
        harness.drive.gates[40].set()
        harness.drive.gates[0].set()
        await harness.published(80)

    assert harness.ranges() == [(0, 40), (40, 80)]
    assert len(harness.manifest.sessions) >= 2
    assert not harness.manifest.intents, "those of the first session were given up"
    assert list in harness.drive.bodies, "bytes of an answer"  # type: ignore[attr-defined]


async def test_a_body_that_cannot_be_read_is_fetched_from_its_owner(tmp_path: Path) -> None:
    """The headers of its file are all there, so each session read them again, and well. In the other
    checks either all of a file can be read, or no header of it."""
    harness = a_harness(tmp_path, count=4)
    path = harness.ingest.segment()
    path.write_bytes(path.read_bytes()[:-1_000])
    async with harness.running():
        await harness.published(40)

    assert harness.drive.bodies == [FragmentSource, list]  # type: ignore[attr-defined]
    assert len(harness.manifest.sessions) == 2
    assert await harness.chunks_of(harness.manifest.applied[0]) == [0, 10, 20, 30]


async def test_what_is_cut_while_an_upload_fails_does_not_wait_for_it_for_ever(
    tmp_path: Path,
) -> None:
    """The first fragment proves to be damaged while the next one, which is sound, is being cut."""
    harness = a_harness(tmp_path)
    harness.damage_retry_seconds = 0.05
    drive = harness.drive
    assert isinstance(drive, WatchedDrive)
    drive.gates[0] = asyncio.Event()
    gate = harness.manifest.intent_gates[40] = asyncio.Event()
    path = harness.ingest.segment()
    good = path.read_bytes()
    async with harness.running():
        await eventually(lambda: drive.puts == [0] and 40 in harness.manifest.intents.values())
        path.write_bytes(good[:5_000] + bytes([good[5_000] ^ 1]) + good[5_001:])
        drive.gates[0].set()
        await eventually(lambda: drive.ended_count == 1)
        gate.set()
        await eventually(lambda: len(harness.manifest.sessions) > 1)
        path.write_bytes(good)
        await harness.published(80)

    assert harness.ranges() == [(0, 40), (40, 80)]


async def test_a_session_that_waits_for_memory_does_not_wait_for_that_of_its_own_failed_upload(
    tmp_path: Path,
) -> None:
    """Room for the first fragment alone: while it is put the session waits to cut the next one."""
    harness = a_harness(tmp_path)
    harness.memory_bytes = 3 * MIB
    gate = harness.drive.gates[0] = asyncio.Event()
    async with harness.running() as service:
        await eventually(
            lambda: (
                harness.drive.puts == [0] and service.streams.report()["waiting_for_memory"] == 1
            )
        )
        harness.ingest.segment().unlink()
        gate.set()
        await harness.published(80)

    assert harness.ranges() == [(0, 40), (40, 80)]
    assert len(harness.manifest.sessions) >= 2


async def test_headers_of_small_chunks_are_held_within_the_memory_of_all_streams(
    tmp_path: Path,
) -> None:
    """They were counted when they were there, without asking. The other checks have large chunks, whose
    headers are nothing, or one stream."""
    chunks = [a_chunk(number, 1, value_size=500) for number in range(6_000)]
    harness = a_harness(tmp_path, count=0)
    harness.memory_bytes = 8 * MIB
    harness.ingest.target_bytes = len(chunks[0]) * (len(chunks) - 1)
    names = [f"{STREAM_ID[:-2]}{number:02}" for number in range(6)]
    for name in names:
        harness.add_stream(name)
        for start in range(0, len(chunks), 2_000):
            harness.ingest.append(*chunks[start : start + 2_000], stream_id=name)
    most = 0
    async with harness.running() as service:

        def published() -> bool:
            nonlocal most
            most = max(most, service.streams.report()["memory_bytes"])
            return all(harness.manifests[name].published_next == 6_000 for name in names)

        await eventually(published)

    assert 3 * MIB < most < 9 * MIB, "the index of a fragment is counted when it is there"
    assert harness.drive.bodies == [FragmentSource] * 6  # type: ignore[attr-defined]


class Refusing(WatchedDrive):
    """Refuses each put whose key holds one of these names, as a store does for a tenant's prefix."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.refused: set[str] = set()

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if any(name in object_key for name in self.names):
            self.bodies.append(type(body))
            self.refused.add(object_key)
            raise DriveRefused("no permission for this prefix")
        await super().put(object_key, body, crc)


async def test_fragments_that_cannot_be_put_keep_no_other_stream_from_being_uploaded(
    tmp_path: Path,
) -> None:
    """As many as share the way to the store, in the midst of their pauses. In the other checks the
    store refuses everybody, or nobody."""
    drive = Refusing(*(f"{STREAM_ID[:-2]}{number:02}" for number in range(2)))
    harness = a_harness(tmp_path, count=0, drive=drive)
    for name in drive.names:
        harness.add_stream(name)
        for number in range(16):
            harness.ingest.append(a_chunk(number * 10, value_size=VALUE), stream_id=name)
    async with harness.running():
        await eventually(lambda: len(drive.refused) == 8)
        for number in range(4):
            harness.ingest.append(a_chunk(number * 10, value_size=VALUE))
        await harness.published(40)

    assert set(drive.bodies) == {FragmentSource}


async def test_of_fragments_that_are_put_at_a_time_there_are_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has the time that its bytes take at a MiB a second. Eight at a time, however large,
    asked more of the link to the store than the memory for them ever did."""
    monkeypatch.setattr(fragments, "BYTES_ON_THE_WAY_MAX", 3 * MIB)
    harness = a_harness(tmp_path, count=12)
    harness.uploads_in_flight = 3
    gates = harness.drive.gates
    for first_offset in (0, 40, 80):
        gates[first_offset] = asyncio.Event()
    async with harness.running():
        await eventually(lambda: len(harness.manifest.intents) == 3)
        await eventually(lambda: len(harness.drive.puts) == 2)
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(50)))
        waiting = ({0, 40, 80} - set(harness.drive.puts)).pop()
        assert len(harness.drive.puts) == 2, "of 1.2 MiB each"
        gates[harness.drive.puts[0]].set()
        await eventually(lambda: waiting in harness.drive.puts)
        for gate in gates.values():
            gate.set()
        await harness.published(120)


async def test_damage_in_a_file_stops_its_fragment_and_none_before_it(tmp_path: Path) -> None:
    """The damaged one fails first, and takes nothing along that was cut before."""
    harness = a_harness(tmp_path)
    harness.drive.gates = {0: asyncio.Event()}
    harness.damage_retry_seconds = 0.05
    path = harness.ingest.segment()
    good = path.read_bytes()
    bad = bytearray(good)
    bad[64 + len(harness.ingest.groups[STREAM_ID][0].data) * 5 + 5_000] ^= 1
    path.write_bytes(bad)
    async with harness.running() as service:
        await eventually(lambda: 40 in harness.drive.puts)
        harness.drive.gates[0].set()
        await harness.published(40)
        await eventually(lambda: bool(service.streams.report()["failures"]))
        failing = service.streams.report()["failures"][STREAM_ID]["session"]
        assert failing == {"code": Code.DATA_CORRUPT, "permanent": True, "attempt_count": 1} | {
            "attempt_count": failing["attempt_count"]
        }
        assert harness.manifest.published_next == 40
        assert len(harness.drive.object_keys) == 1, "nothing damaged is there"
        path.write_bytes(good)
        await harness.published(80)

    assert harness.ranges() == [(0, 40), (40, 80)]


async def test_another_file_under_the_name_is_not_taken_for_the_one_meant(tmp_path: Path) -> None:
    harness = a_harness(tmp_path, count=4)
    gate = harness.drive.gates[0] = asyncio.Event()
    async with harness.running():
        await eventually(lambda: harness.drive.puts == [0])
        path = harness.ingest.segment()
        path.write_bytes(b"\0" * path.stat().st_size)
        gate.set()
        await harness.published(40)

    assert await harness.chunks_of(harness.manifest.applied[0]) == [0, 10, 20, 30]
    assert len(harness.manifest.sessions) == 2


async def test_a_short_run_comes_in_the_answer_and_is_put_as_it_is(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.directory = tmp_path
    harness = UploaderHarness(ingest, WatchedDrive())
    ingest.append(a_chunk(0))
    async with harness.running():
        await harness.published(10)
    assert harness.drive.bodies == [list]  # type: ignore[attr-defined]


class Somewhere:
    """The bytes of a run."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read_into(self, position: int, buffer: memoryview) -> None:
        buffer[:] = self.data[position : position + len(buffer)]


def a_run(chunks: list[bytes]) -> HeadsRun:
    data = b"".join(chunks)
    heads = tuple(heads_of(memoryview(data)))
    return HeadsRun(None, heads, len(data), Somewhere(data))  # type: ignore[arg-type]


@given(
    cuts=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6),
    new_epoch_at=st.integers(0, 12),
    block=st.integers(1, 5_000),
)
async def test_a_fragment_is_the_same_bytes_wherever_its_chunks_are(
    cuts: list[tuple[int, bool]], new_epoch_at: int, block: int
) -> None:
    count = sum(size for size, _ in cuts)
    chunks = [
        a_chunk(10 * number, epoch=1 + (number >= new_epoch_at), value_size=number)
        for number in range(count)
    ]
    runs: list[bytes | HeadsRun] = []
    rest = chunks
    for size, in_memory in cuts:
        runs.append(b"".join(rest[:size]) if in_memory else a_run(rest[:size]))
        rest = rest[size:]
    whole = divide([b"".join(chunks)], 0)
    pieces = divide(runs, 0)
    assert [piece[:4] for piece in pieces] == [piece[:4] for piece in whole]
    for piece, expected in zip(pieces, whole, strict=True):
        info, parts = pack_fragment(STREAM_ID, UID, [memoryview(d) for d in expected.data])  # type: ignore[arg-type]
        packed = pack_piece(STREAM_ID, UID, piece)
        assert packed.info == info
        assert await _bytes_of(packed, block) == b"".join(parts)


async def _bytes_of(packed: Packed, block: int) -> bytes:
    if not isinstance(packed.body, FragmentSource):
        return b"".join(packed.body)  # type: ignore[arg-type]
    assert packed.body.size == packed.info.size
    found = b"".join([bytes(part) async for part in blocks_of(packed.body, block)])
    assert crc32c(found) == packed.info.crc
    return found


def test_a_stretch_that_is_not_in_memory_counts_what_is_read_of_it_at_once() -> None:
    (piece,) = divide([a_run([a_chunk(0, value_size=MIB // 10)])], 0)
    assert isinstance(piece.data[0], Stretch)
    assert READ_SIZE <= pack_piece(STREAM_ID, UID, piece).held_size < READ_SIZE + BLOCK_SIZE
