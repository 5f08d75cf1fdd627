"""Reads with a filter beside a plain list, while everything moves under the reader.

Whenever the reader asks a peer or the store something, the world may move first: records are appended
and become fragments, with an index or without one; local copies are freed; groups are made of
fragments, and groups of groups; the front is cut, and what lay there is deleted, so are old roots;
offsets are given up. So each step of a page may see another stream than the one before.

Then each page is held to the list: between where it says that it starts and where it says that it
ends, it has exactly the records that are asked for, but for those that were trimmed meanwhile.

BOTTOMLESS_MODEL_STEPS (80 where it is not set) says how many pages of something are asked for, and
BOTTOMLESS_MODEL_SEED with which seed they begin. At the end of each world all of it is read, page after
page.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import pytest
from support.guards import remove
from support.leaderless import at_once
from support.object_keys import fragment_key
from unit.reader.harness import ReaderHarness, Sent, WatchedDrive
from unit.reader.protocol import STREAM_ID

from bottomless.drives.base import Body
from bottomless.formats.chunk import split_chunks
from bottomless.model.config import FilterConfig
from bottomless.model.offset_spec import format_timestamp

PAGES_EACH: Final = 40
"""Of one world; then another one begins."""
VALUES: Final = ("a", "b", "c", "", None)
CHUNKS_TYPE: Final = "application/vnd.bottomless.chunks"
KEYS: Final = (b"k0", b"k1", b"k2", None)
CONFIGS: Final = (
    None,
    FilterConfig(index="values", max_bytes=32),
    FilterConfig(index="values-and-keys", max_bytes=32),
    FilterConfig(index="values-and-keys", max_bytes=64),
)
WAYS: Final = {
    "a page ended early",
    "fragments were passed over",
    "records were found in the tail",
    "the front was cut while a page was read",
    "a fragment came while a page was read",
    "a gap was gone over",
    "a time was asked for",
    "what was asked for lay below the floor",
    "a page started at a count from the end",
    "whole chunks were asked for",
}
"""A model that never comes there proves nothing."""


class MovingDrive(WatchedDrive):
    """Before each read the world may move."""

    def __init__(self) -> None:
        super().__init__()
        self.move: Callable[[], None] = lambda: None
        self.roots: list[str] = []

    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.move()
        return await super().get(object_key, start, size)

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        await super().put(object_key, body, crc)
        if "/root." in object_key:
            self.roots.append(object_key)


class Questions(list[str]):
    """What the reader has asked its peers; before each answer the world may move."""

    def __init__(self, move: Callable[[], None]) -> None:
        super().__init__()
        self._move = move

    def append(self, question: str) -> None:
        super().append(question)
        self._move()


class World:
    """A stream that moves, the list of what is in it, and a reader."""

    def __init__(self, seed: int, events: Counter[str]) -> None:
        self.random = random.Random(seed)
        self.events = events
        self.drive = MovingDrive()
        self.harness = ReaderHarness(
            fanout=2,
            drive=self.drive,
            reader_filter_scan_bytes=3_000,
            reader_filter_scan_groups=2,
        )
        self.reading = False
        self.drive.move = self.move
        self.harness.asked = Questions(self.move)
        self.timestamp = 1_000
        for _ in range(10):
            self.step()

    @property
    def floor(self) -> int:
        return self.harness.node.first_offset

    def move(self) -> None:
        if self.reading and self.random.random() < 0.3:
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self.step()

    def step(self) -> None:
        """Something happens to the stream, as a whole."""
        kinds = (
            [self.append] * 4 + [self.upload] * 4 + [self.free, self.trim, self.sweep, self.lose]
        )
        self.random.choice(kinds)()

    def append(self) -> None:
        if len(self.harness.records) > 2_000:
            return
        self.timestamp += self.random.choice((0, 0, 7))
        count = self.random.randint(1, 4)
        values: Sequence[str | None] = [self.random.choice(VALUES) for _ in range(count)]
        if self.random.random() < 0.1:
            # More than a filter of 32 bytes may have.
            values = [f"w{number}" for number in range(45)]
        if self.random.random() < 0.3:
            values = [self.random.choice(VALUES)] * len(values)
        first = self.harness.committed_next
        sent = [
            Sent(b"%d" % (first + n), key=self.random.choice(KEYS), filter_value=value)
            for n, value in enumerate(values)
        ]
        self.harness.append(*sent, timestamp=self.timestamp, batches=self.random.randint(1, 2))

    def upload(self) -> None:
        node = self.harness.node
        if any(chunk.first_offset >= node.next_offset for chunk in self.harness.chunks):
            self.note("a fragment came while a page was read")
            count, config = self.random.randint(1, 3), self.random.choice(CONFIGS)
            free = self.random.random() < 0.5
            at_once(self.harness.upload(count, filter_=config, free=free))

    def free(self) -> None:
        self.harness.free()

    def trim(self) -> None:
        node = self.harness.node
        room = node.next_offset - node.first_offset
        # Most of the stream stays, so that there is something to find.
        if room > 60 and self.random.random() < 0.4:
            self.note("the front was cut while a page was read")
            at_once(self.harness.trim(node.first_offset + self.random.randint(1, room // 3)))

    def sweep(self) -> None:
        """Delete what no root needs any more, without any grace."""
        gone = [info for info in self.harness.fragments if info.next_offset <= self.floor]
        keys = [fragment_key(STREAM_ID, info.first_offset, info.uid) for info in gone]
        keys += self.drive.roots[:-1]
        del self.drive.roots[:-1]
        self.harness.fragments = [one for one in self.harness.fragments if one not in gone]
        if keys:
            at_once(self.drive.delete(keys))

    def lose(self) -> None:
        harness = self.harness
        if self.random.random() < 0.2 and harness.node.next_offset == harness.committed_next > 0:
            at_once(harness.lose(self.random.randint(1, 5)))

    def note(self, event: str) -> None:
        if self.reading:
            self.events[event] += 1

    async def page(self) -> None:
        """Ask for one page of something, and hold it to the list."""
        wanted, query = self.question()
        start, parameters = self.place()
        query += parameters
        if self.random.random() < 0.3:
            query.append(("limit", str(self.random.randint(1, 5))))
        until: int | None = None
        if start is not None and self.random.random() < 0.3:
            until = start + self.random.randint(1, 60)
            query.append(("until_offset", str(until)))
        before = self.floor
        whole = self.random.random() < 0.15
        query += [("filter_mode", "chunk")] if whole else []
        headers = {"accept": CHUNKS_TYPE} if whole else {}
        self.reading = True
        self.events["pages"] += 1
        answer = await self.harness.get(
            f"/records?on_out_of_range=clamp&{urlencode(query)}", **headers
        )
        self.reading = False
        if answer.status_code == 503:
            # It moved too often: nothing was said.
            self.events["a page had to be asked for again"] += 1
            return
        assert answer.status_code == 200, (query, answer.text)
        if whole:
            self.hold_chunks(answer, wanted)
        else:
            self.hold(answer.json(), wanted, dict(query), before)

    def hold_chunks(self, answer: httpx.Response, wanted: Callable[[Sent], bool]) -> None:
        """Whole chunks: each has a record that is asked for, and no such record is missing."""
        start, end = (int(answer.headers[f"page-{name}-offset"]) for name in ("start", "next"))
        records = self.harness.records
        asked_for = {n for n, (_, sent) in records.items() if start <= n < end and wanted(sent)}
        found: set[int] = set()
        for header, _ in split_chunks(memoryview(answer.content)):
            held = set(range(header.first_offset, header.next_offset))
            assert any(wanted(records[offset][1]) for offset in held), header
            assert not found & held
            found |= held
        said = (answer.url, start, end, sorted(found), sorted(asked_for - found), self.floor)
        assert all(offset < self.floor for offset in asked_for - found), said
        self.events["whole chunks were asked for"] += bool(found)

    def question(self) -> tuple[Callable[[Sent], bool], list[tuple[str, str]]]:
        """What is asked for: as a rule over records, and as parameters."""
        values = self.random.sample([v for v in (*VALUES, "w7", "nowhere") if v is not None], 2)
        values = values[: self.random.randint(0, 2)]
        keys = [self.random.choice(["k0", "k1", "none"])] if self.random.random() < 0.4 else []
        if not values and not keys:
            values = ["a"]
        or_none = bool(values) and self.random.random() < 0.3
        query = [("filter", value) for value in values] + [("key", key) for key in keys]
        query += [("match_unfiltered", "true")] if or_none else []

        def wanted(sent: Sent) -> bool:
            of_value = not values or sent.filter_value in values
            of_none = or_none and sent.filter_value is None
            of_key = not keys or (sent.key is not None and sent.key.decode() in keys)
            return of_key and (of_value or of_none)

        return wanted, query

    def place(self) -> tuple[int | None, list[tuple[str, str]]]:
        """Where to start: an offset if it is one, and as a parameter."""
        end = self.harness.committed_next
        kind = self.random.random()
        if kind < 0.15:
            return None, [("offset", "first")]
        if kind < 0.3:
            self.events["a page started at a count from the end"] += 1
            return None, [("offset", f"tail:{self.random.randint(1, 40)}")]
        if kind < 0.45:
            self.events["a time was asked for"] += 1
            time = self.random.randint(990, self.timestamp + 5)
            return None, [("offset", f"timestamp:{format_timestamp(time)}")]
        start = self.random.randint(max(0, self.floor - 20), end)
        return start, [("offset", str(start))]

    def hold(
        self,
        page: dict[str, Any],
        wanted: Callable[[Sent], bool],
        query: dict[str, str],
        floor_before: int,
    ) -> None:
        records, floor = self.harness.records, self.floor
        start, end = page["start_offset"], page["next_offset"]
        found = [record["offset"] for record in page["records"]]
        said = (query, start, end, found, floor)
        assert found == sorted(set(found)), said
        asked_for = {n for n, (_, sent) in records.items() if start <= n < end and wanted(sent)}
        assert set(found) <= asked_for, said
        missing = asked_for - set(found)
        assert all(offset < floor for offset in missing), (said, sorted(missing))
        for record in page["records"]:
            assert record["value"] == records[record["offset"]][1].value.decode(), said
        self._hold_bounds(page, query, floor_before, said)
        whole = "limit" in query and len(found) == int(query["limit"])
        # A trim may have passed the place at which it was to end.
        reached = "until_offset" in query and end >= int(query["until_offset"])
        if not (whole or reached or page["up_to_date"]):
            self.events["a page ended early"] += 1
            assert end > start, said
        self.events["fragments were passed over"] += page["skipped_fragments"] > 0
        self.events["records were found in the tail"] += any(
            offset >= self.harness.local_first for offset in found
        )
        self.events["a gap was gone over"] += any(n not in records for n in range(start, end))

    def _hold_bounds(
        self, page: dict[str, Any], query: dict[str, str], floor_before: int, said: object
    ) -> None:
        """A start is that which was asked for, or it says that it was moved, and as little as it had
        to be."""
        start, offset = page["start_offset"], query["offset"]
        if offset.isdigit():
            low = page["clamped"] == "low"
            assert start == int(offset) or (low and floor_before <= start <= self.floor), said
            self.events["what was asked for lay below the floor"] += low
        elif offset == "first":
            assert floor_before <= start <= self.floor, said
        elif offset.startswith("timestamp:"):
            asked = offset.removeprefix("timestamp:")
            skipped = [
                n
                for n, (time, _) in self.harness.records.items()
                if max(floor_before, self.floor) <= n < start and format_timestamp(time) >= asked
            ]
            assert skipped == [], said


async def worlds(count: int, seed: int, events: Counter[str]) -> int:
    """So many pages of one world after the other; returns the seed after the last."""
    for number in range(count):
        if number % PAGES_EACH == 0:
            world = World(seed, events)
            seed += 1
        try:
            await world.page()
            if number % PAGES_EACH == PAGES_EACH - 1 or number == count - 1:
                await read_whole(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed - 1}, page {number % PAGES_EACH}") from error
        finally:
            if number % PAGES_EACH == PAGES_EACH - 1 or number == count - 1:
                await world.harness.aclose()
    return seed


async def read_whole(world: World) -> None:
    """Page after page to the end, while it moves on: nothing that stays is missing."""
    offset: Any = "first"
    found: list[int] = []
    began = world.floor
    for _ in range(3_000):
        world.reading = world.random.random() < 0.5
        world.events["pages"] += 1
        answer = await world.harness.get(f"/records?offset={offset}&filter=a&on_out_of_range=clamp")
        world.reading = False
        if answer.status_code == 503:
            continue
        page = answer.json()
        found += [record["offset"] for record in page["records"]]
        offset = page["next_offset"]
        if page["up_to_date"]:
            break
    else:
        pytest.fail("it never comes to the end")
    assert found == sorted(set(found))
    wanted = {n for n, (_, sent) in world.harness.records.items() if sent.filter_value == "a"}
    assert {n for n in wanted if world.floor <= n < offset} <= set(found)
    assert set(found) <= {n for n in wanted if n >= began}


@pytest.mark.timeout(24 * 3600)
def test_a_filtered_read_is_what_the_list_says_while_everything_moves() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "80"))
    first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", "1"))
    events: Counter[str] = Counter()
    end = asyncio.run(worlds(wanted, first, events))
    while end < first + wanted and {name for name in WAYS if not events[name]}:
        # Any change of the model makes other stories of a seed, which may not come everywhere.
        end = asyncio.run(worlds(PAGES_EACH, end, events))
    print(f"seeds {first} to {end - 1}: {events['pages']} pages")
    print("; ".join(f"{name}: {events[name]}" for name in sorted(WAYS)))
    assert {name for name in WAYS if not events[name]} == set()


def test_without_known_of_an_entry_the_list_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "known of an entry", lambda presence: presence > 255)
    with pytest.raises(AssertionError, match="seed"):
        asyncio.run(worlds(400, 1, Counter()))
