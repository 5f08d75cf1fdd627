"""What a manifest of more than a million fragments costs, beside one of a thousand.

    .venv/bin/python bench/manifest_scale.py [--large 1050000] [--small 1000]

The parts of the product that change and search a manifest run on stores in memory, so what
is counted is their own CPU time and the requests that they make; a real store adds the same
time per request to both sides. The two manifests take turns in every round.

Most fragments have entries and no objects, since nothing reads them; those that a seek leads
to are whole. A seek is what a reader with empty caches does until it has the first record:
root, a group where there is one, the fragment's index, its chunk.
"""

import argparse
import asyncio
import itertools
import json
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import structlog

from bottomless.drives.base import Body
from bottomless.errors import StoreError
from bottomless.formats.batch import encode_frame, schema_of
from bottomless.formats.chunk import seal_chunk
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.keys import fragment_key
from bottomless.model.chunk import AppendEntry, AppendMode, ChunkFlags
from bottomless.model.config import StreamConfig
from bottomless.model.drive import DriveMarker
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import fragment_info
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.record import Columns
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.configured import ConfiguredDrive
from bottomless_server.drives.marked import marked_drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.moves import Wanted, claim, enter, finish
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.protocol.registry import RootState
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.core.scan import PassedOver
from bottomless_server.reader.fragments import FragmentPart, Fragments
from bottomless_server.reader.roots import Roots, Tree
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.stores.streams import Streams

STREAM: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
RECORDS: Final = 1_000
"""Of each fragment."""
SIZE: Final = 64 * 1024 * 1024
RUN: Final = 256
"""Fragments registered at once while a manifest is built."""
ROUNDS: Final = 40
CHUNKS: Final = 10
VALUE_SIZE: Final = 4_096
BLOCK_SIZE: Final = 1024 * 1024
COLD: Final = 1
"""The drive to which fragments move."""


class CountingDrive(MemoryDrive):
    """A drive that counts what is asked of it, and keeps the newest root alone.

    A store keeps replaced roots for a while, but not in this process: with all of them in
    memory, what would be measured is the making of new pages.
    """

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.requests: Counter[str] = Counter()
        self._root: str | None = None

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        self.requests["put"] += 1
        if "/root." in object_key:
            if self._root is not None:
                await super().delete([self._root])
            self._root = object_key
        await super().put(object_key, body, crc)

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.requests["get"] += 1
        return await super().get(object_key, start, size)

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        self.requests["delete"] += 1
        return await super().delete(object_keys)


class NobodyElse:
    """There is no owner to ask or to tell."""

    async def committed_next(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        del url, stream_id, timeout_seconds
        return None

    async def first_offset(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        del url, stream_id, timeout_seconds
        return None

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        del url, stream_id, next_offset, version
        return True

    async def close(self, url: str, stream_id: StreamId) -> bool:
        del url, stream_id
        return True

    async def aclose(self) -> None:
        pass


class NoManifest:
    """The reader's trees are made here and never asked for."""

    async def call(self, *_: object, **__: object) -> Any:
        raise AssertionError("nobody is asked")


class Side:
    """One stream with so many fragments, and what is done to it."""

    def __init__(self, count: int, *, read: bool = True) -> None:
        """`read`: fragments that seeks lead to are whole, and the others have entries alone."""
        self.count = count
        chance = random.Random(count)
        self.targets = chance.sample(range(100, count), ROUNDS)
        """Numbers of the fragments that seeks lead to; trims do not come so far."""
        self._whole = set(self.targets) if read else set()
        self._seeks = 0
        self.drive = CountingDrive()
        coordination = MemoryCoordination(lambda: 0)
        numbers = itertools.count(1)
        marker = DriveMarker(COLD, Uid("c" * 32))
        cold = ConfiguredDrive("cold", COLD, "file:///cold")
        self.context = Context(
            settings=ManifestSettings(),
            drive=self.drive,
            coordination=coordination,
            streams=Streams(coordination),
            owners=NobodyElse(),  # type: ignore[arg-type]
            clock=lambda: 1_000_000,
            new_uid=lambda: Uid(f"{next(numbers):032x}"),
            table=DriveTable(self.drive, {COLD: marked_drive(MemoryDrive(), marker)}, [cold]),
        )
        self.committer: Committer
        self.next = 0

    async def build(self) -> None:
        record = StreamRecord(
            stream_id=STREAM,
            name=StreamName("scale"),
            tenant="default",
            state=StreamState.ACTIVE,
            created_at=0,
            config=StreamConfig(),
            epoch=1,
            epochs=(EpochStart(1, 0),),
            dirty=True,
            reserved_next=1 << 50,
        )
        await self.context.streams.create(record)
        self.committer = await Committer.open(self.context, STREAM)
        await begin(self.context, self.committer, "bench")
        for start in range(0, self.count, RUN):
            await self.append(min(RUN, self.count - start))

    async def append(self, count: int = 1) -> None:
        """Ask for uids, register, publish: a root, and a group when one is full."""
        firsts = [self.next + number * RECORDS for number in range(count)]
        uids = await intend(self.context, self.committer, "bench", firsts)
        fragments = [
            await self._fragment(uid, first) for uid, first in zip(uids, firsts, strict=True)
        ]
        refused = await self.committer.register("bench", fragments)
        await self.committer.flush()
        self.next += count * RECORDS
        assert not refused
        assert self.committer.record.published_next == self.next

    async def open(self) -> None:
        """What a process does at the first touch of a stream."""
        await Committer.open(self.context, STREAM)

    async def _fragment(self, uid: Uid, first: int) -> FragmentInfo:
        if first // RECORDS not in self._whole:
            return _fragment(uid, first)
        packed = pack_fragment(STREAM, uid, _chunks(first))
        key = fragment_key(STREAM, first, uid, "default")
        await self.drive.put(key, packed.parts, packed.info.crc)
        return packed.info

    async def find(
        self, offset: int, timestamp: int | None, cache: SharedCache
    ) -> tuple[StreamFacts, FragmentInfo]:
        """The fragment of an offset, or of the first record since a time, by root and groups."""
        record = await self.context.streams.load(STREAM)
        facts = StreamFacts(STREAM, record.full_name, record.epoch, None)
        roots = Roots(NoManifest(), self.drive, cache, 1_000)  # type: ignore[arg-type]
        state = RootState(
            version=record.version,
            epoch=record.epoch,
            published_next=record.published_next,
            first_offset=self.committer.keeper.root.first_offset,
            last_timestamp=record.last_timestamp,
            root=record.root,
        )
        tree: Tree = await roots.tree(facts, state)
        if timestamp is None:
            leaf: np.void | None = await anext(roots.leaves(tree, offset))
        else:
            leaf = await roots.leaf_since(tree, timestamp)
        assert leaf is not None
        return facts, fragment_info(leaf)

    async def read(self, offset: int, timestamp: int | None = None) -> None:
        """Find and read the record at an offset, or the first one since a time, caches empty."""
        cache = SharedCache(64 * 1024 * 1024)
        facts, info = await self.find(offset, timestamp, cache)
        fragments = Fragments(Blocks(self.drive, cache, BLOCK_SIZE, 16), cache)
        part = await fragments.read(facts, FragmentPart(info, offset, offset + 1, 1))
        first = part.chunks[0]
        assert not isinstance(first, PassedOver), "nothing is asked for"
        header, _ = first
        assert header.first_offset <= offset < header.next_offset

    def _target(self) -> int:
        self._seeks += 1
        return self.targets[self._seeks % ROUNDS] * RECORDS + RECORDS // 2

    async def move(self) -> None:
        """Take a fragment to another drive, as far as that is the manifest's: enter, claim, name.

        Nobody copies anything, since it would cost the same in both manifests."""
        first = self._target() // RECORDS * RECORDS
        wanted = Wanted(first, first + RECORDS, 0, COLD)
        copy = (await enter(self.context, self.committer, wanted)).copy
        claimed = await claim(self.context, self.committer, copy, "bench")
        assert len(claimed.fragments) == 1
        uids = [claimed.fragments[0].uid]
        await finish(self.context, self.committer, copy, "bench", uids)

    async def height(self) -> int:
        """Of the highest group."""
        _, root = await load_root(self.context, self.committer.record)
        return int(root.entries["height"].max(initial=0))

    async def find_offset(self) -> None:
        await self.find(self._target(), None, SharedCache(64 * 1024 * 1024))

    async def find_time(self) -> None:
        target = self._target()
        await self.find(target, target, SharedCache(64 * 1024 * 1024))

    async def seek_offset(self) -> None:
        await self.read(self._target())

    async def seek_time(self) -> None:
        target = self._target()
        await self.read(target, timestamp=target)

    async def trim(self, count: int) -> None:
        """Remove the oldest fragments; the objects themselves go later."""
        floor = self.committer.keeper.root.first_offset
        found = await trim(self.context, self.committer, floor + count * RECORDS, allow_empty=False)
        assert found == floor + count * RECORDS


def _fragment(uid: Uid, first: int) -> FragmentInfo:
    return FragmentInfo(
        uid=uid,
        first_offset=first,
        next_offset=first + RECORDS,
        first_timestamp=first,
        last_timestamp=first + RECORDS - 1,
        epoch=1,
        record_count=RECORDS,
        size=SIZE,
        index_size=200,
        crc=first & 0xFFFFFFFF,
    )


def _chunks(first: int) -> list[bytes]:
    """The chunks of one whole fragment; the time of each is its first offset."""
    count = RECORDS // CHUNKS
    sealed = []
    for start in range(first, first + RECORDS, count):
        values = [b"%d" % (start + number) for number in range(count)]
        padded = pa.array([value.rjust(VALUE_SIZE) for value in values], pa.binary())
        batch = pa.record_batch([padded], schema=schema_of(Columns.VALUE))
        parts = seal_chunk(
            [encode_frame(batch)],
            [AppendEntry(AppendMode.PLAIN, 0, count, body_crc=0)],
            record_count=count,
            first_offset=start,
            timestamp=start,
            epoch=1,
            flags=ChunkFlags.NONE,
        )
        sealed.append(b"".join(parts))
    return sealed


@dataclass(frozen=True)
class Cost:
    cpu_us: float
    requests: float
    puts: float = 0


async def measure(side: Side, work: Callable[[Side], Awaitable[None]]) -> Cost:
    before, puts = side.drive.requests.total(), side.drive.requests["put"]
    started = time.process_time_ns()
    await work(side)
    spent = (time.process_time_ns() - started) / 1_000
    return Cost(spent, side.drive.requests.total() - before, side.drive.requests["put"] - puts)


async def compare(
    name: str,
    sides: Sequence[Side],
    work: Callable[[Side], Awaitable[None]],
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Both sides in turns; medians of CPU time, means of requests, and their ratios."""
    costs: list[list[Cost]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, costs, strict=True):
            found.append(await measure(side, work))
    small, large = ([cost.cpu_us for cost in found] for found in costs)
    low, high = statistics.median(small), statistics.median(large)
    requests = [statistics.fmean(cost.requests for cost in found) for found in costs]
    print(
        f"{name:<28}{low:>10.0f} µs{high:>10.0f} µs   x {high / low:4.2f}"
        f"{requests[0]:>10.1f}{requests[1]:>8.1f} requests"
    )
    puts = [statistics.fmean(cost.puts for cost in found) for found in costs]
    return {
        "name": name,
        "cpu_us": [low, high],
        "requests": requests,
        "puts": puts,
        "rounds": rounds,
    }


async def built(small: int, large: int, *, read: bool = True) -> list[Side]:
    sides = [Side(small, read=read), Side(large, read=read)]
    for side in sides:
        started = time.monotonic()
        await side.build()
        _, root = await load_root(side.context, side.committer.record)
        heights = Counter(int(height) for height in root.entries["height"])
        shape = ", ".join(f"{count} of height {height}" for height, count in heights.items())
        seconds = time.monotonic() - started
        print(f"{side.count:,} fragments: {seconds:.1f} s to build; entries of the root: {shape}")
    print(f"\n{'':<28}{small:>13,}{large:>13,}   ratio")
    return sides


async def run_moves(small: int, large: int) -> list[dict[str, Any]]:
    """Moves alone, of one fragment each; its first one puts the registry object, and is left out."""
    sides = await built(small, large, read=False)
    for side in sides:
        await side.move()
    result = await compare("move one fragment", sides, Side.move, ROUNDS - 1)
    return [result | {"heights": [await side.height() for side in sides]}]


async def run(small: int, large: int) -> list[dict[str, Any]]:
    sides = await built(small, large)
    results = [
        await compare("open a stream", sides, Side.open),
        await compare("append one fragment", sides, Side.append),
        await compare("append a run of 64", sides, lambda side: side.append(64), 10),
        await compare("find by offset, cold", sides, Side.find_offset),
        await compare("find by time, cold", sides, Side.find_time),
        await compare("seek by offset, cold", sides, Side.seek_offset),
        await compare("seek by time, cold", sides, Side.seek_time),
        await compare("trim one fragment", sides, lambda side: side.trim(1)),
    ]
    many = min(1000, max(1, large // 1024 - 3)) * 1024
    cost = await measure(sides[1], lambda side: side.trim(many))
    print(f"trim {many // 1024} groups at once: {cost.cpu_us:.0f} µs, {cost.requests} requests")
    results.append({"name": f"trim {many // 1024} groups", "cpu_us": [cost.cpu_us]})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=1_050_000)
    parser.add_argument("--moves", action="store_true", help="measure moves to another drive alone")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"Python {platform.python_version()}, {platform.machine()}")
    work = run_moves if given.moves else run
    results = asyncio.run(work(given.small, given.large))
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
