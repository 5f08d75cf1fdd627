"""Commits of staged batches with parts, cut off, repeated in other pieces, under consecutive
numbers, with a crash or a handover to another node between any two steps.

The checks before were blind in three ways. Handovers had no staged commit; kills came back on
the same node, where the plan lay; and numbers were always far apart, as Spark's are, so that
no commit met a part of another.

The model knows what a writer knows: it repeats the number of what it was not told the outcome
of, and takes the next number only then. In the end each record is stored exactly once.
"""

import asyncio
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bottomless.model.limits import KIB
from bottomless_server.ingest import staged as staged_module
from unit.ingest.house import ROUTE, STREAM, House
from unit.ingest.test_staged import commit, stage, staged_of

SETTINGS: dict[str, Any] = {"ingest_group_bytes_max": 4 * KIB}
PADDING = "x" * 3 * KIB
"""Two records of it do not go into one part."""
_TRIES = 8


@dataclass
class Writer:
    name: str
    number: int = 0
    """Of the next commit: each takes one, whatever its parts."""
    pending: list[str] = field(default_factory=list)
    """Records of a commit whose outcome is not known, under `number`."""
    told: dict[int, list[str]] = field(default_factory=dict)
    """What was answered 200, by number."""


class World:
    def __init__(self, directory: Path, house: House) -> None:
        self.house = house
        self.here = "a"
        self.houses = [house]
        self.directories = {name: directory / name for name in "ab"}
        self.writers = [Writer("one"), Writer("two")]
        self.seen: dict[int, str] = {}

    async def look(self) -> None:
        """Keep what can be read of this node: what is published is in no bucket here."""
        assert self.house.service._tails is not None
        appender = self.house.service._tails.streams.find(STREAM)
        log = None if appender is None else appender.log
        if log is None or log.next_offset == log.first_offset:
            return
        for row in await self.house.rows(log.first_offset):
            value = row["value"].decode().rstrip("x")
            assert self.seen.setdefault(row["offset"], value) == value

    async def commit(self, which: int, parts: int, cut: int | None) -> None:
        writer = self.writers[which]
        if not writer.pending:
            writer.pending = [f"{writer.name}:{writer.number}:{n}:" for n in range(parts)]
        with broken_after(self.house, cut):
            await self.attempt(writer, backwards=False)

    async def finish(self, which: int) -> None:
        """Ask until it is answered, with the same records in other pieces."""
        writer = self.writers[which]
        for _ in range(_TRIES):
            if not writer.pending:
                return
            await self.attempt(writer, backwards=True)
        raise AssertionError(f"{writer.name} never got through with {writer.number}")

    async def attempt(self, writer: Writer, *, backwards: bool) -> None:
        records = writer.pending[::-1] if backwards else writer.pending
        answer = await self.send(writer.name, writer.number, records)
        if answer.status_code == 200:
            writer.told[writer.number] = writer.pending
            writer.pending, writer.number = [], writer.number + 1
            return
        assert answer.json()["code"] in {"storage-failed", "staged-not-found"}, answer.text

    async def send(self, name: str, number: int, records: list[str]) -> httpx.Response:
        ids = [await stage(self.house, record + PADDING) for record in records]
        return await commit(self.house, *ids, number=number, producer=name)

    async def repeat(self, which: int, back: int) -> None:
        writer = self.writers[which]
        if writer.pending or back > len(writer.told):
            return
        number = writer.number - back
        answer = await self.send(writer.name, number, writer.told[number][::-1])
        assert answer.status_code == 200, answer.text
        assert answer.json()["count"] == 0
        assert answer.headers["idempotent-replayed"] == "true"

    async def plain(self, which: int) -> None:
        """An append that is no commit of staged batches takes the same numbers."""
        writer = self.writers[which]
        value = f"{writer.name}:{writer.number}:0:"
        answer = await self.house.client.post(
            ROUTE,
            json={"records": [{"value": value}]},
            headers={"producer-id": writer.name, "txn-number": str(writer.number)},
        )
        if writer.pending:
            # It may be begun, and then nothing else has its number, or be finished by now.
            if answer.status_code == 200:
                told = [value] if answer.json()["count"] else writer.pending
                writer.told[writer.number] = told
                writer.pending, writer.number = [], writer.number + 1
            else:
                assert answer.json()["code"] == "producer-sequence-gap", answer.text
            return
        assert answer.status_code == 200, answer.text
        assert answer.json()["count"] == 1
        writer.told[writer.number] = [value]
        writer.number += 1

    async def crash(self) -> None:
        await self.look()
        self.house = await self.house.after_crash().start()
        self.houses.append(self.house)
        self.directories[self.here] = self.house.data_dir

    async def handover(self, broken: bool) -> None:
        """A drain after which everything is in the object store; then another node takes over,
        unless the stream waits for this one's return."""
        with broken_after(self.house, 0 if broken else None):
            await self.house.service.drain()
            await self.look()
            assert self.house.service._tails is not None
            appender = self.house.service._tails.streams.find(STREAM)
            if appender is not None:
                await self.house.published(appender.log.next_offset)
            await self.house.aclose()
        before = self.houses.pop()
        if not (await before.record()).dirty:
            self.here = "b" if self.here == "a" else "a"
        else:
            assert broken, "it could have been finished"
            assert any(writer.pending for writer in self.writers)
        url = f"unix:///{self.here}.sock"
        self.house = await House(self.directories[self.here], before=before, ingest_url=url).start()
        self.houses.append(self.house)

    async def check(self) -> None:
        for which, writer in enumerate(self.writers):
            await self.finish(which)
            assert writer.number == len(writer.told)
        await self.look()
        assert sorted(self.seen) == list(range(len(self.seen)))
        told = [records for writer in self.writers for records in writer.told.values()]
        promised = [record for records in told for record in records]
        assert sorted(self.seen.values()) == sorted(promised)


@contextmanager
def broken_after(house: House, parts: int | None) -> Iterator[None]:
    """The disk gives so many parts of commits, and then nothing."""
    batches, left = staged_of(house), parts
    read = batches.read

    async def broken(*arguments: Any) -> Any:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return await read(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "read", broken)
        yield


which = st.integers(0, 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), which, st.integers(1, 4), st.sampled_from([None, 0, 1, 2])),
        st.tuples(st.just("commit"), which, st.integers(2, 4), st.sampled_from([1, 2])),
        st.tuples(st.just("finish"), which),
        st.tuples(st.just("repeat"), which, st.integers(1, 3)),
        st.tuples(st.just("plain"), which),
        st.tuples(st.just("crash")),
        st.tuples(st.just("handover"), st.booleans()),
    ),
    min_size=1,
    max_size=10,
)
Played = list[tuple[Any, ...]]
CUT_OFF: Played = [("commit", 0, 3, 1), ("handover", False)]
CUT_OFF_FOR_LONGER: Played = [("commit", 0, 3, 1), ("handover", True), ("finish", 0)]
CONSECUTIVE: Played = [("commit", 0, 3, None), ("commit", 0, 1, None)]


async def play(directory: Path, played: Played) -> None:
    house = House(directory / "a", ingest_url="unix:///a.sock", **SETTINGS)
    world = World(directory, await (await house.declare()).start())
    try:
        for name, *arguments in played:
            await getattr(world, name)(*arguments)
        await world.check()
    finally:
        for one in world.houses:
            await one.aclose()


@settings(
    max_examples=int(os.environ.get("BOTTOMLESS_TEST_EXAMPLES", "12")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
@example(CUT_OFF)
@example(CUT_OFF_FOR_LONGER)
@example(CONSECUTIVE)
@given(steps)
def test_every_record_of_a_commit_is_stored_once_whatever_happens_between_its_parts(
    played: Played,
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # Here the steps say when a commit goes on, and no clock.
        patch.setattr(staged_module, "SWEEP_SECONDS", 1e6)
        asyncio.run(play(Path(directory), played))
