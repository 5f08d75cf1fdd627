"""A log whose end was torn, or whose bytes rotted, before its process came back: M31 and M32.

One process serves many streams; all are harmed in one death of it, each in another way. Where
chunks begin and end is known from the sizes that the file had when each append was answered.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from support.contract import Stream, new_stream, problem_of
from support.ports import lasting_ports
from support.promises import everything
from support.server import AllInOne
from support.waiting import until

from bottomless.formats.checks import crc32c
from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.log.recovery import recover
from bottomless_server.node.file_calls import RealFileCalls

LATE: Final = {"fragment": {"max_age_ms": 86_400_000}}
CHUNK: Final = 4_096
"""Bytes of a chunk; a larger append becomes a group of chunks."""
SETTINGS: Final = {
    "BOTTOMLESS_INGEST_CHUNK_SIZE_MAX": str(CHUNK),
    "BOTTOMLESS_READER_ROOT_TTL_MS": "0",
}
SMALL, GROUP = 40, 3 * CHUNK
SEALED: Final = 4
"""Chunks of a segment, where it is to be full soon."""
ROT_COUNT: Final = 10
"""Records of a stream whose log rots: two full segments and two records in the active one."""
ACTIVE: Final = 2 * SEALED
MEMORY_MAX: Final = 96 * 1024 * 1024
"""What the process may take more than before, whatever a damaged header asks for."""


class Written(NamedTuple):
    """A stream, and what was acknowledged of it: the values, and the file's end behind each."""

    stream: Stream
    values: list[str]
    ends: list[int]
    path: Path

    def append(self, size: int) -> None:
        value = f"{self.stream.name} {len(self.values)} ".ljust(size, "x")
        if size > CHUNK:
            # Several records, so that they need several chunks.
            parts = [value[at : at + CHUNK // 2] for at in range(0, size, CHUNK // 2)]
        else:
            parts = [value]
        self.stream.append(*parts)
        self.values.extend(parts)
        self.ends.extend([self.path.stat().st_size] * len(parts))

    def kept(self, size: int) -> list[str]:
        """What a file of `size` bytes holds whole."""
        return [one for one, end in zip(self.values, self.ends, strict=True) if end <= size]


def written(server: AllInOne, client: httpx.Client, sizes: list[int]) -> Written:
    stream = new_stream(client, LATE)
    stream_id = client.get(stream.path).json()["stream_id"]
    path = server.ingest_dir / "streams" / stream_id / f"{0:020d}.segment"
    made = Written(stream, [], [], path)
    for size in sizes:
        made.append(size)
    return made


def values_of(stream: Stream) -> list[str]:
    found, floor = everything(stream.client, stream.path)
    assert floor == 0
    return [found[offset].decode() for offset in range(len(found))]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def test_a_log_torn_anywhere_in_its_last_two_chunks_keeps_every_whole_round(tmp_path: Path) -> None:
    """M31: at every byte by the code that recovers, and after restarts of the program at some.

    What is torn in the program's own file was acknowledged here; it stands for a round of which
    a power cut left a part. What lies before it was synced first, and is all there.
    """
    with AllInOne(tmp_path / "data", SETTINGS, *lasting_ports(1)) as server:
        with server.client() as client:
            made = [written(server, client, [SMALL, SMALL * 2, SMALL, SMALL]) for _ in range(5)]
            made += [written(server, client, [SMALL, SMALL, GROUP]) for _ in range(3)]
            plain, grouped = made[0], made[5]
            tails = [written(server, client, [SMALL, GROUP]) for _ in range(3)]
        server.kill()

        for one in (plain, grouped):
            recovered_at_every_byte(one, tmp_path / "copy")

        cuts: list[tuple[Written, int]] = []
        before, whole = plain.ends[1], plain.ends[-1]
        middle = plain.ends[2]
        for one, size in zip(
            made,
            [before, before + 1, middle - 1, middle + 100, whole - 1]
            + [grouped.ends[1] + at for at in (3, CHUNK + 50, GROUP)],
            strict=True,
        ):
            truncate(one.path, size)
            cuts.append((one, size))
        for one, torn in zip(
            tails, [b"\0" * 500, b"x", plain.path.read_bytes()[64:200]], strict=True
        ):
            size = one.path.stat().st_size
            with one.path.open("ab") as file:
                file.write(torn)
            cuts.append((one, size))
        server.start()

        with server.client() as client:
            for one, size in cuts:
                kept, again = one.kept(size), Stream(client, one.stream.name)
                assert values_of(again) == kept, size
                assert len(kept) < len(one.values) or one in tails
                assert again.append("after")["first_offset"] == len(kept)
        assert server.log().count("a torn end was cut") == len(cuts) - 1
        server.kill()
        server.start()
        with server.client() as client:
            for one, size in cuts:
                again = Stream(client, one.stream.name)
                assert values_of(again) == [*one.kept(size), "after"]


def recovered_at_every_byte(made: Written, copy: Path) -> None:
    """Cut a copy of the stream's directory at each byte of its last two rounds."""
    stream_id = parse_stream_id(made.path.parent.name)
    data = made.path.read_bytes()
    first = sorted(set(made.ends))[-3]
    step = 1 if len(data) - first < 2_000 else 37
    shutil.copytree(made.path.parent, copy)
    for size in range(first, len(data) + 1, step):
        (copy / made.path.name).write_bytes(data[:size])
        found = recover(RealFileCalls(), copy, stream_id, 0)
        assert found.next_offset == len(made.kept(size)), size
        assert (copy / made.path.name).stat().st_size == max(
            [end for end in made.ends if end <= size]
        )
    shutil.rmtree(copy)


class Rotten(NamedTuple):
    """A stream of equal chunks, one a record, and its directory."""

    name: str
    directory: Path

    def segment(self, first_offset: int) -> Path:
        return self.directory / f"{first_offset:020d}.segment"

    def position(self, offset: int) -> int:
        """Where a record's chunk begins in its segment."""
        first = offset - offset % SEALED
        path = self.segment(first)
        count = min(SEALED, ROT_COUNT - first)
        size, rest = divmod(path.stat().st_size - SEGMENT_HEADER_SIZE, count)
        assert rest == 0, "chunks of one size"
        return SEGMENT_HEADER_SIZE + (offset - first) * size

    def flip(self, offset: int, byte: int, mask: int = 0x10) -> None:
        """Damage one byte of a record's chunk."""
        flip(self.segment(offset - offset % SEALED), self.position(offset) + byte, mask)

    def index_of(self, first_offset: int) -> Path:
        return self.segment(first_offset).with_suffix(".index")

    def value(self, number: int) -> str:
        return f"{self.name} {number} ".ljust(150, "x")

    def answers(self, client: httpx.Client) -> list[int]:
        """Records that cannot be read; the others are right, also those in one page."""
        bad, stream = [], Stream(client, self.name)
        for offset in range(ROT_COUNT):
            answer = stream.get(offset, limit=1)
            if answer.status_code != 200:
                problem_of(answer, 502, "data-corrupt")
                bad.append(offset)
                continue
            [record] = answer.json()["records"]
            assert (record["offset"], record["value"]) == (offset, self.value(offset))
        if bad:
            covering = stream.get(bad[0] - bad[0] % SEALED, limit=ROT_COUNT)
            problem_of(covering, 502, "data-corrupt")
        return bad


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def newer(path: Path) -> None:
    """As a later version would write its header."""
    data = path.read_bytes()
    header = bytearray(data[:SEGMENT_HEADER_SIZE])
    header[VERSION_BYTE] += 1
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    path.write_bytes(bytes(header) + data[SEGMENT_HEADER_SIZE:])


def rotten(server: AllInOne, client: httpx.Client) -> Rotten:
    stream = new_stream(client, LATE)
    stream_id = client.get(stream.path).json()["stream_id"]
    made = Rotten(stream.name, server.ingest_dir / "streams" / stream_id)
    for number in range(ROT_COUNT):
        stream.append(made.value(number))
    return made


def flip_without_index(one: Rotten) -> None:
    one.flip(1, 100)
    one.index_of(0).unlink()


TOTAL_SIZE_TOP: Final = 11
"""The highest byte of the size in a chunk's header: believed, it would be some GiB."""
SEGMENT_HEADER_SIZE: Final = 64
VERSION_BYTE: Final = 4
INDEX_HEADER_SIZE: Final = 64
ALL: Final = list(range(ROT_COUNT))
HARMS: Final[dict[str, tuple[Callable[[Rotten], object], list[int]]]] = {
    "data of a full segment": (lambda one: one.flip(1, 100), [1]),
    "the size in a chunk's header": (lambda one: one.flip(2, TOTAL_SIZE_TOP, 0x80), [2]),
    "the size in the last header": (lambda one: one.flip(3, TOTAL_SIZE_TOP, 0x80), [3]),
    "the offset in a chunk's header": (lambda one: one.flip(6, 20), [6]),
    "data of the active segment": (lambda one: one.flip(ACTIVE, 100), [ACTIVE]),
    "data of the last chunk": (lambda one: one.flip(ACTIVE + 1, 100), [ACTIVE + 1]),
    "two chunks of two segments": (lambda one: [one.flip(at, 90) for at in (0, 7)], [0, 7]),
    "a record of an index": (lambda one: flip(one.index_of(0), INDEX_HEADER_SIZE + 50), []),
    "the size in a record of an index": (
        lambda one: flip(one.index_of(4), INDEX_HEADER_SIZE + 34),
        [],
    ),
    "the header of an index": (lambda one: flip(one.index_of(4), 20), []),
    "an index that is cut": (lambda one: truncate(one.index_of(0), INDEX_HEADER_SIZE + 60), []),
    "no index": (lambda one: one.index_of(0).unlink(), []),
    "another's index": (lambda one: shutil.copy(one.index_of(0), one.index_of(4)), []),
    # What nothing proves to be acknowledged, or nothing can be told of: all of it is kept aside.
    "a chunk without index": (flip_without_index, ALL),
    "what is known of producers": (lambda one: one.flip(ACTIVE, TOTAL_SIZE_TOP, 0x80), ALL),
    "the header of a segment": (lambda one: flip(one.segment(4), 20), ALL),
    "a segment of a newer version": (lambda one: newer(one.segment(4)), ALL),
    "the checkpoint": (lambda one: flip(one.directory / "checkpoint", 40), ALL),
    "a segment that is gone": (lambda one: one.segment(4).unlink(), ALL),
}


def peak_memory(server: AllInOne) -> int:
    """The most that the process ever had."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_rotten_bytes_are_found_before_they_are_served_and_the_rest_stays_readable(
    tmp_path: Path,
) -> None:
    """M32: in data, headers, indexes, checkpoint; while it runs, and before it starts.

    M51: nor does it touch, or write behind, what a later version wrote.
    """
    settings = {
        **SETTINGS,
        "BOTTOMLESS_INGEST_SEGMENT_CHUNK_COUNT_MAX": str(SEALED),
        "BOTTOMLESS_UPLOADER_DAMAGE_RETRY_SECONDS": "0.2",
    }
    with AllInOne(tmp_path / "data", settings, *lasting_ports(1)) as server:
        with server.client() as client:
            made = {harm: rotten(server, client) for harm in HARMS}
            live, whole = rotten(server, client), rotten(server, client)
            tiered = made["data of the active segment"]
            live.flip(5, 100)
            live.flip(7, TOTAL_SIZE_TOP, 0x80)
            assert live.answers(client) == [5, 7]
            assert whole.answers(client) == []
        before = peak_memory(server)
        server.kill()
        segments: dict[Path, bytes] = {}
        for harm, (do, _) in HARMS.items():
            do(made[harm])
            files = made[harm].directory.glob("*.segment")
            segments |= {path: path.read_bytes() for path in files}
        server.start()

        with server.client() as client:
            for harm, (_, bad) in HARMS.items():
                one = made[harm]
                assert one.answers(client) == bad, harm
                answer = Stream(client, one.name).post({"value": "after"})
                if bad == ALL:
                    problem_of(answer, 502, "data-corrupt")
                else:
                    assert answer.json()["first_offset"] == ROT_COUNT, harm
            assert live.answers(client) == [5, 7]
            assert whole.answers(client) == []
            assert peak_memory(server) < before + MEMORY_MAX
            for path, data in segments.items():
                assert path.read_bytes().startswith(data), f"{path} was changed"
            assert "a torn end was cut" not in server.log()
            assert "a synced chunk is damaged" in server.log()
            assert server.log().count("a local log is damaged") == 6
            tiered_from_now_on(client, tiered)
            uploads_go_on_once_it_is_mended(server, client, tiered, 100)


def tiered_from_now_on(client: httpx.Client, one: Rotten) -> None:
    """Not before the damage: an owner takes a configuration up while it goes on, and what was uploaded
    whole is not read again."""
    path = Stream(client, one.name).path
    etag = {"if-match": client.get(path).headers["etag"]}
    soon = {"fragment": {"max_age_ms": 100}}
    client.patch(path, json=soon, headers=etag).raise_for_status()


def uploads_go_on_once_it_is_mended(
    server: AllInOne, client: httpx.Client, one: Rotten, byte: int
) -> None:
    """Nothing damaged was uploaded; with the file as it was all of it is."""
    stream = Stream(client, one.name)
    stopped = f"stream_id='{one.directory.name}'"
    log = until(
        lambda: [
            line for line in server.log().splitlines() if stopped in line and "upload" in line
        ],
        what="uploads to stop at the damage",
    )
    assert stream.bounds()["object_store_next_offset"] <= ACTIVE, log
    assert one.answers(client) == [ACTIVE]

    flip(one.segment(ACTIVE), SEGMENT_HEADER_SIZE + byte)
    stream.wait_uploaded()
    assert one.answers(client) == []
