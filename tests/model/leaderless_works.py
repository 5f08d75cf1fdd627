"""What the processes of the search do: the product's own coroutines, with what they are told.

Nothing is decided here. Each is begun anew for every step (stepping.py), so it has no memory but its
arguments.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided
from bottomless_server.leaderless.instance import Loss
from bottomless_server.leaderless.tail import SeenTail, shard_of
from bottomless_server.leaderless.tail_changes import Accepted, Committed, Refusal
from bottomless_server.manifest.recovery.wal_scan import FoundWal, scan_wal
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.lost_commits import Fate, decide_lost
from bottomless_server.stores.noted_entries import is_noted
from bottomless_server.stores.tail_commits import Asked, Commit, CommitUnknown, commit
from model.leaderless import BOUNDS, GENERATION
from model.leaderless_state import IDS, RECORD_COUNT, Told
from model.stepping import Work

CLOCK: Final = 1_000_000
SEQUENCE_END: Final = 6
"""More than any writer of the search puts."""


class Numbers(NamedTuple):
    """What a writer knows of its instance: see `AttemptNumbers`."""

    instance: Uid
    attempt: int
    lost: int | None
    lost_from: int
    used: int
    lapsed: bool

    def made(self) -> AttemptNumbers:
        numbers = AttemptNumbers(self.instance, GENERATION, lambda: not self.lapsed, checked=1)
        for _ in range(self.used):
            numbers.take()
        numbers.attempt = self.attempt
        if self.lost is not None:
            numbers.lose(self.lost, self.lost_from)
        return numbers


class Part(NamedTuple):
    """What a flush has for one stream."""

    stream: int
    seen: SeenTail
    piece: Accepted

    def asked(self) -> Asked:
        return Asked(IDS[self.stream], (), self.seen, lambda *_: Decided([self.piece], {}))


class Tried(NamedTuple):
    """What became of a commit, or of the decision about one, as its writer knows."""

    found: Any
    """What each stream is told, or a `Loss`, or a `Fate`."""
    attempt: int
    lost: int | None


async def _commit(
    coordination: Any,
    _: Any,
    numbers: Numbers,
    parts: tuple[Part, ...],
    sequence: int,
    settled: int,
    next_sequence: int,
) -> Tried:
    made = numbers.made()
    try:
        done = await commit(
            coordination,
            made,
            [part.asked() for part in parts],
            sequence=sequence,
            clock=CLOCK,
            settled=settled,
            next_sequence=next_sequence,
            bounds=BOUNDS,
        )
    except CommitUnknown as error:
        done = error.commit
    found = done if isinstance(done, Loss) else _told(done)
    return Tried(found, made.attempt, made.lost)


def _told(done: Commit) -> tuple[Told, ...]:
    told: list[Told] = []
    for stream_id, found in done.streams.items():
        stream = IDS.index(stream_id)
        if isinstance(found, Committed):
            notes = tuple(note for _, note in found.notes)
            told.append(Told(stream, None, found.tail, notes, found.first_offsets[0]))
        else:
            assert found in (Refusal.FENCED, Refusal.GONE)
            told.append(Told(stream, found, None, (), 0))
    return tuple(told)


async def _decide(coordination: Any, _: Any, numbers: Numbers) -> Tried:
    made = numbers.made()
    fate: Fate = await decide_lost(coordination, made)
    return Tried(fate, made.attempt, made.lost)


async def _begin(coordination: Any, _: Any, numbers: Numbers) -> None:
    await wal.begin(coordination, numbers.made(), "http://ingest-0", 10_000)


async def _settle(coordination: Any, _: Any, instance: Uid) -> None:
    await wal.settle(coordination, instance, GENERATION)


async def _reclaim(coordination: Any, drive: Any, instance: Uid) -> None:
    """A pass of the vacuum over one instance, but for `_settle`."""
    found = await wal.deletable(drive, coordination, instance, GENERATION)
    # What was reserved and never put is passed over.
    there = [one for one in found.sequences if one < SEQUENCE_END]
    await wal.delete_objects(drive, instance, there)
    if found.sequences:
        await wal.note_deleted(coordination, instance, GENERATION, found.sequences.stop)


async def _prune(coordination: Any, _: Any, stream: int) -> None:
    await tails.prune(coordination, IDS[stream], GENERATION)


async def _release(coordination: Any, _: Any, instance: Uid, stream: int) -> None:
    """What an uploader does that has the shard of one stream."""
    directories: Mapping[int, list[Any]] = {one: [IDS[stream]] for one in range(SEQUENCE_END)}
    shards = [shard_of(IDS[stream])]
    await releases.release(coordination, instance, GENERATION, directories, shards)


async def _fence(coordination: Any, _: Any, stream: int) -> None:
    def fenced(record: StreamRecord) -> StreamRecord:
        return replace(record, config=record.config.model_copy(update={"fenced": True}))

    await tails.configure(coordination, IDS[stream], GENERATION, fenced)


async def _repeat(coordination: Any, drive: Any, stream: int, offset: int) -> bool:
    """Whether a node that has noted nothing may acknowledge a repeat of what is stored there."""
    asked = IDS[stream], GENERATION, offset, offset + RECORD_COUNT
    return await is_noted(drive, coordination, *asked)


async def _scan(_: Any, drive: Any) -> FoundWal:
    return await scan_wal(drive, GENERATION)


WORKS: Final[Mapping[str, Work]] = {
    "commit": _commit,
    "decide": _decide,
    "begin": _begin,
    "settle": _settle,
    "reclaim": _reclaim,
    "prune": _prune,
    "release": _release,
    "fence": _fence,
    "repeat": _repeat,
    "scan": _scan,
}
