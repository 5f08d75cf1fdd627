"""Commits of staged batches with parts, cut off, repeated in other pieces, under consecutive
numbers, with a crash or a handover to another node between any two steps.

The checks before were blind in three ways. Handovers had no staged commit; kills came back on
the same node, where the plan lay; and numbers were always far apart, as Spark's are, so that
no commit met a part of another.

They were also blind to where a repeat was told that it begins, once a later commit had taken the
places of its parts in memory. And they were blind in a fourth way: nothing happened while a part waited. So between any two parts
the producer's epoch is raised, or its number is stored in one piece, or it writes in another mode.

The model knows what a writer knows: it repeats the number of what it was not told the outcome
of, and takes the next number only then. Who raised the epoch goes on after the last number that
the answer says, and what was under way is stored if that number is its own, and never else. In
the end each record is stored exactly once.
"""

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.guards import remove
from support.waiting import eventually

from bottomless.model.limits import KIB
from bottomless_server.ingest.producers.commit_parts import identity_of
from bottomless_server.ingest.producers.commit_plan import CommitPlan
from bottomless_server.ingest.records.conditions import FromProducer
from bottomless_server.ingest.staged import batches as staged_module
from bottomless_server.ingest.staged import commits as staged_commits
from unit.ingest.harness import NAME, ROUTE, STREAM, IngestHarness
from unit.ingest.staging import commit, stage, staged_of

SETTINGS: dict[str, Any] = {"ingest_group_bytes_max": 4 * KIB}
PADDING = "x" * 3 * KIB
"""Two records of it do not go into one part."""
PRODUCERS = f"/v1/streams/{NAME}/producers"
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
    epoch: int = 0
    is_fencing: bool = False
    """Its epoch was raised, perhaps, and nobody knows the last number yet."""


class CommitModel:
    """What the writers know, beside the nodes that they write to."""

    def __init__(self, directory: Path, harness: IngestHarness) -> None:
        self.harness = harness
        self.here = "a"
        self.harnesses = [harness]
        self.directories = {name: directory / name for name in "ab"}
        self.writers = [Writer("one"), Writer("two")]
        self.gone: dict[str, Writer] = {}
        """Those that write in another mode by now."""
        self.others: list[str] = []
        """What they stored in it."""
        self.seen: dict[int, str] = {}

    async def look(self) -> None:
        """Keep what can be read of this node: what is published is in no bucket here."""
        appender = self.harness.service.streams.find(STREAM)
        log = None if appender is None else appender.log
        if log is None or log.committed_next == log.first_offset:
            return
        for row in await self.harness.rows(log.first_offset):
            value = row["value"].decode().rstrip("x")
            assert self.seen.setdefault(row["offset"], value) == value

    async def commit(self, which: int, parts: int, cut: int | None) -> None:
        writer = await self.unfenced(which)
        self.begin(writer, parts)
        with broken_after(self.harness, cut):
            await self.attempt(writer, backwards=False)

    def begin(self, writer: Writer, parts: int) -> None:
        if not writer.pending:
            at = f"{writer.name}:{writer.epoch}.{writer.number}"
            writer.pending = [f"{at}:{n}:" for n in range(parts)]

    async def unfenced(self, which: int) -> Writer:
        writer = self.writers[which]
        for _ in range(_TRIES):
            if not writer.is_fencing:
                return writer
            await self.fence(which)
        raise AssertionError(f"{writer.name} was never fenced")

    async def fence(self, which: int, cut: int | None = None) -> None:
        """A new instance of a writer raises the epoch and takes over where the answer says."""
        writer = self.writers[which]
        writer.is_fencing = True
        with broken_after(self.harness, cut):
            answer = await self.harness.client.post(f"{PRODUCERS}/{writer.name}/epoch")
        if answer.status_code != 200:
            assert answer.json()["code"] in {"storage-failed", "staged-not-found"}, answer.text
            assert answer.json()["outcome"] == "unknown"
            return
        self.take_over(writer, answer)

    def take_over(self, writer: Writer, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.text
        writer.epoch, last = answer.json()["epoch"], answer.json()["last_seq"]
        writer.is_fencing = False
        if last is not None and last >= writer.number:
            assert last == writer.number
            writer.told[last] = writer.pending
            writer.number += 1
        writer.pending = []

    async def fenced_between(self, which: int, parts: int, waits: int) -> None:
        """The epoch is raised while a part of the old writer's commit waits."""
        writer = await self.unfenced(which)
        before = writer.epoch
        self.begin(writer, parts)
        async with waiting_before(self.harness, waits) as waited:
            old = asyncio.create_task(self.send(writer.name, writer.number, writer.pending, before))
            if await waited(old):
                url = f"{PRODUCERS}/{writer.name}"
                fence = asyncio.create_task(self.harness.client.post(f"{url}/epoch"))
                await eventually(lambda: fence.done() or self.epoch_of(writer) > before)
        answered = await old
        if waited.count <= waits:
            # It had no such part: an old writer that was not disturbed.
            writer.told[writer.number] = writer.pending
            writer.pending, writer.number = [], writer.number + 1
            assert answered.status_code == 200, answered.text
            return
        self.take_over(writer, await fence)
        assert answered.status_code == 200 or answered.json()["code"] == "producer-fenced"

    def epoch_of(self, writer: Writer) -> int:
        known = self.harness.appender.tracking.producers.get(writer.name)
        return 0 if known is None else known.epoch

    async def beside(self, which: int, parts: int, waits: int, header: str) -> None:
        """Another request of the writer is answered while a part of its commit waits."""
        writer = await self.unfenced(which)
        self.begin(writer, parts)
        value = f"{writer.name}:{writer.epoch}.{writer.number}:beside:"
        number = 0 if header == "producer-seq" else writer.number
        async with waiting_before(self.harness, waits) as waited:
            sent = self.send(writer.name, writer.number, writer.pending, writer.epoch)
            staged = asyncio.create_task(sent)
            plain = await self.one(writer, value, header, number) if await waited(staged) else None
        answer = await staged
        if plain is not None and plain.status_code == 200 and plain.json()["count"]:
            if header == "producer-seq":
                # From now on it writes in another mode, and nothing of its commit is stored.
                assert answer.json()["code"] == "producer-mode-conflict", answer.text
                self.others += [value]
                self.writers[which] = Writer(f"{writer.name}.")
                self.gone[writer.name] = writer
                return
            assert answer.json()["count"] == 0, answer.text
            writer.pending = [value]
        assert answer.status_code == 200, answer.text
        writer.told[writer.number] = writer.pending
        writer.pending, writer.number = [], writer.number + 1

    async def finish(self, which: int) -> None:
        """Ask until it is answered, with the same records in other pieces."""
        writer = await self.unfenced(which)
        for _ in range(_TRIES):
            if not writer.pending:
                return
            await self.attempt(writer, backwards=True)
        raise AssertionError(f"{writer.name} never got through with {writer.number}")

    async def attempt(self, writer: Writer, *, backwards: bool) -> None:
        records = writer.pending[::-1] if backwards else writer.pending
        answer = await self.send(writer.name, writer.number, records, writer.epoch)
        if answer.status_code == 200:
            writer.told[writer.number] = writer.pending
            writer.pending, writer.number = [], writer.number + 1
            return
        assert answer.json()["code"] in {"storage-failed", "staged-not-found"}, answer.text

    async def send(self, name: str, number: int, records: list[str], epoch: int) -> httpx.Response:
        ids = [await stage(self.harness, record + PADDING) for record in records]
        told = {"producer_epoch": str(epoch)}
        return await commit(self.harness, *ids, number=number, producer=name, **told)

    async def one(self, writer: Writer, value: str, header: str, number: int) -> httpx.Response:
        """A record that is no staged commit."""
        named = {"producer-id": writer.name, "producer-epoch": str(writer.epoch)}
        return await self.harness.client.post(
            ROUTE, json={"records": [{"value": value}]}, headers={**named, header: str(number)}
        )

    async def repeat(self, which: int, back: int) -> None:
        writer = await self.unfenced(which)
        if writer.pending or back > len(writer.told):
            return
        number = writer.number - back
        answer = await self.send(writer.name, number, writer.told[number][::-1], writer.epoch)
        assert answer.status_code == 200, answer.text
        assert answer.headers["idempotent-replayed"] == "true"
        await self.look()
        places = [at for at, value in self.seen.items() if value in writer.told[number]]
        body = answer.json()
        # Not all parts are remembered for ever, and then it says so.
        assert body["first_offset"] in (None, min(places))
        assert (body["count"], body["duplicates"]) == (0, len(writer.told[number]))

    async def plain(self, which: int) -> None:
        """An append that is no commit of staged batches takes the same numbers."""
        writer = await self.unfenced(which)
        value = f"{writer.name}:{writer.epoch}.{writer.number}:0:"
        answer = await self.one(writer, value, "txn-number", writer.number)
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
        self.harness = await self.harness.after_crash().start()
        self.harnesses.append(self.harness)
        self.directories[self.here] = self.harness.data_dir

    async def handover(self, broken: bool) -> None:
        """A drain after which everything is in the object store; then another node takes over,
        unless the stream waits for this one's return."""
        with broken_after(self.harness, 0 if broken else None):
            await self.harness.service.drain()
            await self.look()
            appender = self.harness.service.streams.find(STREAM)
            if appender is not None:
                await self.harness.published(appender.log.committed_next)
            await self.harness.aclose()
        before = self.harnesses.pop()
        if not (await before.record()).dirty:
            self.here = "b" if self.here == "a" else "a"
        else:
            assert broken, "it could have been finished"
            assert any(writer.pending for writer in self.writers)
        url = f"unix:///{self.here}.sock"
        self.harness = await IngestHarness(
            self.directories[self.here], before=before, ingest_url=url
        ).start()
        self.harnesses.append(self.harness)

    async def check(self) -> None:
        for which in range(len(self.writers)):
            await self.finish(which)
            assert sorted(self.writers[which].told) == list(range(self.writers[which].number))
        await self.look()
        assert sorted(self.seen) == list(range(len(self.seen)))
        writers = [*self.writers, *self.gone.values()]
        told = [records for writer in writers for records in writer.told.values()]
        promised = [record for records in told for record in records] + self.others
        assert sorted(self.seen.values()) == sorted(promised)


@contextmanager
def broken_after(harness: IngestHarness, parts: int | None) -> Iterator[None]:
    """The disk gives so many parts of commits, and then nothing."""
    batches, left = staged_of(harness), parts
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


class Waited:
    """Whether some part of a commit has come to the place where it waits."""

    def __init__(self, waits: int) -> None:
        self.count = 0
        self._waits = waits

    async def __call__(self, commit: "asyncio.Task[Any]") -> bool:
        await eventually(lambda: self.count > self._waits or commit.done())
        return self.count > self._waits


@asynccontextmanager
async def waiting_before(harness: IngestHarness, parts: int) -> AsyncIterator[Waited]:
    """The part after so many others is not read before the end of this; what comes later is."""
    batches, waited, go = staged_of(harness), Waited(parts), asyncio.Event()
    read = batches.read

    async def waiting(*arguments: Any) -> Any:
        waited.count += 1
        if waited.count == parts + 1:
            await go.wait()
        return await read(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "read", waiting)
        try:
            yield waited
        finally:
            go.set()


which = st.integers(0, 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), which, st.integers(1, 4), st.sampled_from([None, 0, 1, 2])),
        st.tuples(st.just("commit"), which, st.integers(2, 4), st.sampled_from([1, 2])),
        st.tuples(st.just("commit"), which, st.sampled_from([6, 7]), st.just(None)),
        st.tuples(st.just("finish"), which),
        st.tuples(st.just("repeat"), which, st.integers(1, 3)),
        st.tuples(st.just("plain"), which),
        st.tuples(st.just("fence"), which, st.sampled_from([None, None, 0, 1])),
        st.tuples(st.just("fenced_between"), which, st.integers(1, 4), st.integers(0, 3)),
        st.tuples(
            st.just("beside"),
            which,
            st.integers(1, 4),
            st.integers(0, 3),
            st.sampled_from(["txn-number", "txn-number", "producer-seq"]),
        ),
        st.tuples(st.just("crash")),
        st.tuples(st.just("handover"), st.booleans()),
    ),
    min_size=1,
    max_size=10,
)
Played = list[tuple[Any, ...]]
CUT_OFF: Played = [("commit", 0, 3, 1), ("handover", False)]
CUT_OFF_FOR_LONGER: Played = [("commit", 0, 3, 1), ("handover", True), ("finish", 0)]
FENCED: Played = [("fenced_between", 0, 3, 0), ("commit", 0, 1, None)]
FENCED_LATER: Played = [("fenced_between", 0, 3, 1), ("commit", 0, 1, None)]
FENCED_WHILE_CUT_OFF: Played = [("commit", 0, 3, 1), ("fence", 0, 0), ("commit", 0, 2, None)]
IN_ONE_PIECE: Played = [("beside", 0, 3, 0, "txn-number")]
IN_ANOTHER_MODE: Played = [("beside", 0, 3, 0, "producer-seq")]
LARGER_THAN_MEMORY: Played = [
    ("commit", 0, 3, None),
    ("commit", 0, 7, None),
    ("repeat", 0, 1),
    ("repeat", 0, 2),
]
CONSECUTIVE: Played = [("commit", 0, 3, None), ("commit", 0, 1, None)]


async def play(directory: Path, played: Played) -> None:
    harness = IngestHarness(directory / "a", ingest_url="unix:///a.sock", **SETTINGS)
    model = CommitModel(directory, await (await harness.declare()).start())
    try:
        for name, *arguments in played:
            await getattr(model, name)(*arguments)
        await model.check()
    finally:
        for one in model.harnesses:
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
@example(FENCED)
@example(FENCED_LATER)
@example(FENCED_WHILE_CUT_OFF)
@example(IN_ONE_PIECE)
@example(IN_ANOTHER_MODE)
@example(LARGER_THAN_MEMORY)
@given(steps)
def test_every_record_of_a_commit_is_stored_once_whatever_happens_between_its_parts(
    played: Played,
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # Here the steps say when a commit goes on, and no clock.
        patch.setattr(staged_module, "SWEEP_SECONDS", 1e6)
        asyncio.run(play(Path(directory), played))


def decided_by_itself(plan: CommitPlan, number: int, asked: FromProducer) -> FromProducer:
    return replace(identity_of(plan, number, asked), part_of=None)


async def nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("played", [FENCED, IN_ANOTHER_MODE])
async def test_without_a_look_at_the_whole_commit_a_part_is_stored_that_the_last_will_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: Played
) -> None:
    """Must fail: the guard is taken out, and a part is decided by its own name alone."""
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)
    monkeypatch.setattr(staged_commits, "identity_of", decided_by_itself)
    with pytest.raises(AssertionError):
        await play(tmp_path, played)


async def test_without_finishing_it_first_a_fence_names_a_number_that_is_taken_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the guard is taken out, and the fence is answered while a commit is open."""
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)
    remove(monkeypatch, "the end of what is begun before a fence is answered", nothing)
    with pytest.raises(AssertionError):
        await play(tmp_path, FENCED_WHILE_CUT_OFF)
