"""What a stream's last owner knew of producers, while the next one takes it up and everything fails.

The next owner dies before any of its calls to a disk, to coordination or to manifest. Then others do
what they may do, coordination is lost, and it is rebuilt from what the bucket says. Whoever is the
stream's home by then has to know the producers.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.guards import remove

from bottomless.errors import Outcome, Unavailable
from bottomless.model.stream import EpochStart
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.local.opening import Opener
from bottomless_server.manifest.tree.core.rebuild_decision import record_before, reserved_from
from bottomless_server.stores.streams import producers_key
from unit.ingest.harness import (
    NAME,
    ROUTE,
    STREAM,
    IngestHarness,
    RecordedFiles,
    SmallManifest,
    problem,
)

PRODUCER: Final = f"/v1/streams/{NAME}/producers/p"
NEXT: Final = 2
"""Where the stream ends when it is handed over."""
OF_FILES: Final = (
    "open",
    "pwritev",
    "fdatasync",
    "fsync_dir",
    "truncate",
    "rename",
    "unlink",
    "make_dir",
    "remove_dir",
)
OF_COORDINATION: Final = ("get", "get_many", "transact", "hold", "release")
SEEN: Final = frozenset({"make_dir", "pwritev", "fdatasync", "rename", "transact", "manifest"})
"""Calls that leave something for who comes next: death before any other one is as death after these."""


class Life:
    """The calls of a node that change or ask anything; it dies before one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ends_before: int | None = None
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.ends_before is not None and len(self.calls) >= self.ends_before

    def call(self, name: str, error: Exception) -> None:
        """Count a call; the dead make none.

        Raises:
            Exception: `error`, from the moment of death on.
        """
        with self._lock:
            if self.is_over:
                raise error
            self.calls.append(name)


class MortalFiles(RecordedFiles):
    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def __getattribute__(self, name: str) -> Any:
        if name in OF_FILES:
            self._life.call(name, OSError(errno.EIO, os.strerror(errno.EIO)))
        return super().__getattribute__(name)


class MortalCoordination:
    def __init__(self, inner: MemoryCoordination, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in OF_COORDINATION:
            return found

        async def called(*arguments: Any, **named: Any) -> Any:
            self._life.call(name, CoordinationUnavailable("the node is dead"))
            return await found(*arguments, **named)

        return called


def mortal(manifest: SmallManifest, life: Life) -> None:
    """Let a node's way to manifest end with its life."""
    real = manifest.call

    async def called(*arguments: Any, **named: Any) -> Any:
        life.call("manifest", Unavailable("the node is dead", outcome=Outcome.NONE))
        return await real(*arguments, **named)

    manifest.call = called  # type: ignore[method-assign]


async def numbered(node: IngestHarness, sequence: int, *values: str) -> httpx.Response:
    headers = {"producer-id": "p", "producer-seq": str(sequence)}
    body = {"records": [{"value": value} for value in values]}
    return await node.client.post(ROUTE, json=body, headers=headers)


class Handover:
    """A stream that its first owner has left, and a second node that takes it up."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.first: IngestHarness
        """The last owner, on whose disk its log is; it is stopped."""
        self.second: IngestHarness
        self.life = Life()
        self._dead: list[IngestHarness] = []
        """Nodes that died, whose sockets are closed in the end."""
        self._rebuilds = 0

    async def prepare(self) -> None:
        """Have the first owner leave the stream, and the second node start."""
        first = await IngestHarness(self._directory / "first").declare()
        await first.start()
        assert (await numbered(first, 0, "a", "b")).status_code == 200
        await first.published(NEXT)
        await first.aclose()
        assert not (await first.record()).dirty
        self.first = first
        shared = first.coordination
        first.coordination = MortalCoordination(shared, self.life)  # type: ignore[assignment]
        self.second = IngestHarness(
            self._directory / "second",
            before=first,
            files=MortalFiles(self.life),
            ingest_url="unix:///second.sock",
        )
        first.coordination = self.second.coordination = shared
        mortal(self.second.manifest, self.life)
        await self.second.start()
        self.life.calls.clear()

    async def take_up(self, ends_before: int | None) -> None:
        """Touch the stream at the second node, which dies before so many calls of its own."""
        self.life.ends_before = ends_before
        await self.second.chunks(NEXT)
        self.life.ends_before = len(self.life.calls)
        self._dead.append(self.second)
        self.second = self.second.after_crash()

    async def first_looks(self) -> None:
        """The first owner's node is started, and asked for the stream; then it is stopped."""
        await self._look(self.first)

    async def first_looks_without_manifest(self) -> None:
        await self._look(self.first, manifest_is_away=True)

    async def second_looks_without_manifest(self) -> None:
        """The second node is started again, and asked for the stream; then it is stopped."""
        await self._look(self.second, manifest_is_away=True)

    async def time_goes_by(self) -> None:
        """Leases of the dead run out."""
        self.first.time.advance(60_000)

    async def bucket_is_told(self) -> None:
        """Somebody has the bucket told of the stream, as a change of its configuration does."""
        self.first.manifest.registry[STREAM] = await self.first.record()

    async def _look(self, node: IngestHarness, *, manifest_is_away: bool = False) -> None:
        started = IngestHarness(node.data_dir, before=node)
        started.manifest.knows_homes = not manifest_is_away
        await started.start()
        await started.chunks(NEXT)
        await started.aclose()

    async def lose_and_rebuild(self) -> None:
        """Empty coordination, and make of it what the bucket says."""
        self._rebuilds += 1
        noted = self.first.manifest.registry[STREAM]
        before = record_before(noted, None, self._rebuilds)
        self.first.coordination.lose()
        rebuilt = replace(
            before,
            published_next=NEXT,
            reserved_next=reserved_from(NEXT),
            epochs=(EpochStart(before.epoch, NEXT),),
        )
        await self.first.streams.create(rebuilt)
        self.first.show_generation(self._rebuilds)

    async def check(self) -> None:
        """Start both nodes on their disks: whoever owns the stream knows its producer."""
        async with AsyncExitStack() as running:
            owner_count = 0
            for node in (self.first, self.second):
                started = IngestHarness(node.data_dir, before=node)
                running.push_async_callback(started.aclose)
                await started.start()
                repeated = await numbered(started, 0, "a", "b")
                assert not list((started.data_dir / "streams-aside").iterdir())
                if repeated.status_code != 200:
                    assert problem(repeated) == (503, "not-owner")
                    continue
                owner_count += 1
                assert repeated.json()["duplicates"] == NEXT
                assert (await numbered(started, NEXT, "c")).json()["first_offset"] == NEXT
            assert owner_count == 1

    async def close(self) -> None:
        for node in (*self._dead, self.second):
            await node.aclose()


Step = Callable[[Handover], Awaitable[None]]
MEANWHILE: Final[dict[str, tuple[Step, ...]]] = {
    "nothing": (),
    "the bucket is told": (Handover.bucket_is_told,),
    "the last owner is back": (Handover.first_looks,),
    "it is back after the lease": (Handover.time_goes_by, Handover.first_looks),
    "it is back without manifest": (Handover.first_looks_without_manifest,),
    "both are back": (Handover.second_looks_without_manifest, Handover.first_looks),
}


async def handed_over(
    directory: Path, ends_before: int | None, steps: tuple[Step, ...]
) -> list[str]:
    """A handover in which the next owner dies, others go on, and coordination is lost.

    Returns the calls that the next owner made before its death.
    """
    handover = await prepared(directory)
    try:
        await handover.take_up(ends_before)
        for step in steps:
            await step(handover)
        await handover.lose_and_rebuild()
        await handover.check()
    except AssertionError as error:
        raise AssertionError(f"the next owner died after {handover.life.calls}") from error
    finally:
        await handover.close()
    return handover.life.calls


async def prepared(directory: Path) -> Handover:
    handover = Handover(directory)
    await handover.prepare()
    return handover


def deaths(calls: list[str]) -> list[int]:
    """Before which calls a death is another one than before the call that precedes it."""
    return [number for number in range(len(calls)) if number == 0 or calls[number - 1] in SEEN]


async def each_death(directory: Path, steps: tuple[Step, ...]) -> None:
    """Go through a handover whose next owner dies after it has the stream, or anywhere before."""
    calls = await handed_over(directory / "whole", None, steps)
    assert "transact" in calls
    for ends_before in deaths(calls):
        await handed_over(directory / str(ends_before), ends_before, steps)


@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_whoever_has_a_stream_after_a_loss_of_coordination_knows_its_producers(
    tmp_path: Path, meanwhile: str
) -> None:
    await each_death(tmp_path, MEANWHILE[meanwhile])


async def test_who_lives_through_it_knows_them_and_so_does_its_next_life(tmp_path: Path) -> None:
    handover = await prepared(tmp_path)
    second = handover.second
    assert (await second.chunks(NEXT)).status_code == 200
    await handover.lose_and_rebuild()
    await second.lease.renew()

    assert (await numbered(second, 0, "a", "b")).json()["duplicates"] == NEXT
    assert (await numbered(second, NEXT, "c")).json()["first_offset"] == NEXT
    again = await second.after_crash().start()
    for sequence, values in ((0, ["a", "b"]), (NEXT, ["c"])):
        assert (await numbered(again, sequence, *values)).json()["duplicates"] == len(values)
    assert [row["value"] for row in await again.rows(NEXT)] == [b"c"]
    await again.aclose()
    await handover.close()


async def test_a_log_that_was_kept_proves_nothing_of_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier build had claimed the stream, and the bucket was away. Then this one has its log, and
    dies before its own claim."""
    handover = await prepared(tmp_path)
    second = handover.second
    second.manifest.knows_homes = False
    with monkeypatch.context() as earlier:
        remove(earlier, "what the last owner left, kept before the claim", lambda *_: True)
        assert (await second.chunks(NEXT)).status_code == 503
    claimed = await second.record()
    assert claimed.epoch == (handover.first.manifest.registry[STREAM].epoch + 1)
    real = Opener.keep

    async def dies(*arguments: Any) -> Any:
        await real(*arguments)
        raise Unavailable("the node is dead", outcome=Outcome.NONE)

    with monkeypatch.context() as death:
        death.setattr(Opener, "keep", dies)
        assert (await second.chunks(NEXT)).status_code == 503
    assert await second.record() == claimed
    assert second.segments()

    assert (await numbered(second, 0, "a", "b")).status_code == 503
    second.manifest.knows_homes = True
    assert (await numbered(second, 0, "a", "b")).json()["duplicates"] == NEXT
    assert second.manifest.homes == [STREAM]
    await handover.close()


async def test_what_is_left_anew_while_it_is_kept_is_kept_by_the_next_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last owner's node is back between the two, raises the producer's epoch, and goes again."""
    handover = await prepared(tmp_path)
    real = Opener.keep

    async def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(Opener, "keep", real)
        kept = await real(*arguments)
        back = await IngestHarness(handover.first.data_dir, before=handover.first).start()
        raised = await back.client.post(f"{PRODUCER}/epoch")
        assert raised.status_code == 200
        await back.aclose()
        return kept

    monkeypatch.setattr(Opener, "keep", overtaken)
    assert problem(await numbered(handover.second, NEXT, "c")) == (503, "not-owner")
    assert problem(await numbered(handover.second, NEXT, "c")) == (409, "producer-fenced")
    await handover.close()


async def test_a_damaged_word_of_the_last_owner_has_nothing_claimed(tmp_path: Path) -> None:
    handover = await prepared(tmp_path)
    key = producers_key(STREAM)
    whole = handover.first.coordination.peek(key)
    assert whole is not None
    for damaged in (b"x" + whole[1:], whole[:-1], whole[:-40] + bytes(40)):
        handover.first.coordination.write(Changes({key: damaged}))
        before = await handover.first.record()
        answer = await numbered(handover.second, NEXT, "c")
        assert (answer.status_code, answer.json()["retryable"]) == (503, False)
        assert await handover.first.record() == before
    handover.first.coordination.write(Changes({key: whole}))
    assert (await numbered(handover.second, NEXT, "c")).json()["first_offset"] == NEXT
    await handover.close()


async def test_a_handover_costs_syncs_of_the_next_disk_and_one_question_at_each_node(
    tmp_path: Path,
) -> None:
    handover = await prepared(tmp_path)
    handover.life.calls.clear()
    await handover.second.chunks(NEXT)
    calls = Counter(handover.life.calls)
    # Two of these checkpoints, each with its directory; a segment's header, its name, its chunk; and
    # the name of the stream's directory.
    assert (calls["fdatasync"], calls["fsync_dir"]) == (4, 4)
    assert calls["manifest"] == 1
    await handover.take_up(None)

    back = await IngestHarness(handover.first.data_dir, before=handover.first).start()
    assert back.manifest.homes == [STREAM], "the next owner has not written yet"
    assert not back.segments()
    await back.aclose()
    await handover.close()


async def test_an_answer_about_the_home_that_stalled_over_a_rebuild_takes_no_log_away(
    tmp_path: Path,
) -> None:
    """The bucket named the last owner when coordination was rebuilt, so the stream is its own again;
    then its older question is answered. Each question was answered at once before."""
    handover = await prepared(tmp_path)
    handover.second.manifest.knows_homes = False
    assert (await handover.second.chunks(NEXT)).status_code == 503, "claimed, and not told"
    await handover.time_goes_by()
    back = IngestHarness(handover.first.data_dir, before=handover.first)
    answered = back.manifest.call

    async def answer_late(method: str, path: str, /, **asked: Any) -> Any:
        if method == "PUT":
            await handover.lose_and_rebuild()
        return await answered(method, path, **asked)

    back.manifest.call = answer_late  # type: ignore[method-assign]
    await back.start()
    await back.lease.renew()
    answer = await numbered(back, 0, "a", "b")

    assert (answer.status_code, answer.json().get("duplicates")) == (200, NEXT), answer.text
    await back.aclose()
    await handover.close()


async def test_where_the_next_owner_has_written_nobody_is_asked(tmp_path: Path) -> None:
    handover = await prepared(tmp_path)
    assert (await numbered(handover.second, NEXT, "c")).status_code == 200
    back = await IngestHarness(handover.first.data_dir, before=handover.first).start()
    assert (back.manifest.homes, back.segments()) == ([], [])
    await back.aclose()
    await handover.close()


async def test_without_a_log_before_the_claim_the_next_owner_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "what the last owner left, kept before the claim", lambda *_: True)
    with pytest.raises(AssertionError, match="died after"):
        await handed_over(tmp_path, None, ())


async def test_without_the_word_of_the_bucket_the_last_owner_forgets_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the bucket's word before an older log goes", lambda *_: False)
    with pytest.raises(AssertionError, match="died after"):
        await each_death(tmp_path, MEANWHILE["the last owner is back"])
