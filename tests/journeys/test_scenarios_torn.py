"""A log whose end was torn, or whose bytes rotted, before its process came back: M31 and M32.

One process serves many streams; all are harmed in one death of it, each in another way. Where
chunks begin and end is known from the sizes that the file had when each append was answered.
"""

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pytest
from support.contract import Stream, new_stream, problem_of
from support.ports import lasting_ports
from support.promises import everything
from support.server import AllInOne
from support.waiting import until

from bottomless.errors import Corrupt
from bottomless.model.names import parse_stream_id
from bottomless_server.ingest.file_calls import RealFileCalls
from bottomless_server.ingest.recovery import recover

LATE: Final = {"fragment": {"max_age_ms": 86_400_000}}
CHUNK: Final = 4_096
"""Bytes of a chunk; a larger append becomes a group of chunks."""
SETTINGS: Final = {
    "BOTTOMLESS_INGEST_CHUNK_SIZE_MAX": str(CHUNK),
    "BOTTOMLESS_READER_ROOT_TTL_MS": "0",
}
SMALL, GROUP = 40, 3 * CHUNK


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


def written(server: AllInOne, client: Any, sizes: list[int]) -> Written:
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
                kept = one.kept(size)
                assert values_of(one.stream) == kept, size
                assert len(kept) < len(one.values) or one in tails
                assert one.stream.append("after")["first_offset"] == len(kept)
                kept.append("after")
        assert server.log().count("a torn end was cut") == len(cuts) - 1
        server.kill()
        server.start()
        with server.client():
            for one, size in cuts:
                assert values_of(one.stream) == [*one.kept(size), "after"]


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
