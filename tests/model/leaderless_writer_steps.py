"""The steps of a writer in the search: it puts, commits, decides what was lost, notes, begins anew.

It goes as ingest/leaderless/ goes, one EXEC at a time and in the order of its flushes; what it knows
is in `Writer`. See leaderless_search.py.
"""

from collections.abc import Iterator
from typing import Any, Final

from unit.formats.examples import a_piece

from bottomless.formats.wal import PackedWal, pack_wal
from bottomless.model.wal import Note, WalFlags
from bottomless_server.coordination.base import Changes, CoordinationUnknown
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.leaderless.instance import Loss
from bottomless_server.leaderless.tail_changes import Accepted, seen_of
from bottomless_server.stores.lost_commits import Fate
from bottomless_server.stores.wal import live_key
from model.leaderless import GENERATION, Violation
from model.leaderless_calls import Calls
from model.leaderless_state import (
    IDS,
    Flush,
    Given,
    Late,
    Object,
    Sealed,
    State,
    Step,
    Story,
    Told,
    Writer,
)
from model.leaderless_works import SEQUENCE_END, Numbers, Part, Tried
from model.stepping import UNKNOWN, Call, Done, Failed, Task

_NO_FLUSH: Final = 99


class WriterSteps:
    def __init__(self, story: Story, calls: Calls) -> None:
        self._story = story
        self._calls = calls
        self._packed: dict[Any, PackedWal] = {}

    def steps(self, state: State, writer: Writer) -> Iterator[Step]:
        name = f"writer {writer.number}"
        story = self._story
        if state.generation > GENERATION:
            writer = writer._replace(todo=(), note_objects=story.note_objects)
        if writer.todo and not writer.stopped and len(writer.sealed) <= story.puts_overlap:
            flush = writer.todo[0]
            yield f"{name} puts flush {flush.number}", self._put(state, writer, flush)
        noting = writer.note_objects < story.note_objects and self._notes(writer.notes).due_at()
        if noting is not False and noting is not None:
            yield f"{name} puts notes", self._put(state, writer, None)
        if state.is_whole and state.lapses and not writer.lapsed and not writer.stopped:
            lapsed = state.written(Changes({live_key(writer.instance): None}))
            lapsed = lapsed._replace(lapses=state.lapses - 1)
            yield f"{name} lets its lease lapse", lapsed.with_writer(writer._replace(lapsed=True))
        if writer.stopped:
            return
        if writer.lost is not None:
            yield from self._tries(
                state, writer, f"{name} decides", Task("decide", (numbers_of(writer),))
            )
        elif writer.sealed and not self._flies(state, writer):
            task = self._commit(writer)
            groups = writer.sealed[0].flush.groups[0]
            yield from self._tries(state, writer, f"{name} commits to {groups}", task)

    def _notes(self, log: tuple[tuple[Any, ...], ...]) -> Notes:
        """The notes of an instance as they are after what they were told."""
        notes = Notes(0, self._story.notes_of_object)
        for told in log:
            if told[0] == "add":
                notes.add(told[1], 0)
            elif told[0] == "carry":
                notes.carry(*told[1:])
            else:
                notes.end(told[1], durable=True)
        return notes

    def _put(self, state: State, writer: Writer, flush: Flush | None) -> State:
        sequence = writer.sequence
        assert sequence < SEQUENCE_END
        settled = writer.sealed[0].sequence if writer.sealed else sequence
        settled = numbers_of(writer).made().settled(settled)
        carried = self._notes(writer.notes).carry(sequence, settled)
        streams = flush.streams if flush else ()
        packed = self._pack(writer, sequence, streams, carried.notes, carried.noted_below)
        number = flush.number if flush else _NO_FLUSH
        data = b"".join(map(bytes, packed.parts))
        one = Object(writer.instance, sequence, writer.number, number, streams, data)
        writer = writer._replace(
            sequence=sequence + 1,
            notes=(*writer.notes, ("carry", sequence, settled)),
            note_objects=writer.note_objects + (flush is None),
        )
        if flush is not None:
            places = tuple(
                (stream, _place(packed, number))
                for stream, number in zip(streams, packed.numbers, strict=True)
            )
            sealed = (*writer.sealed, Sealed(sequence, flush, places))
            writer = writer._replace(todo=writer.todo[1:], sealed=sealed)
        state = state.with_writer(writer)
        if self._story.puts_overlap:
            return state._replace(flying=state.flying | {one})
        state = state._replace(objects=state.objects | {one})
        return self.heard_of_put(state, writer, sequence)

    def _pack(
        self,
        writer: Writer,
        sequence: int,
        streams: tuple[int, ...],
        notes: list[Note],
        noted_below: int,
    ) -> PackedWal:
        known = (writer.instance, sequence, streams, tuple(notes), noted_below, writer.attempt)
        if known not in self._packed:
            self._packed[known] = pack_wal(
                writer.instance,
                sequence,
                [a_piece(IDS[stream]) for stream in streams],
                notes,
                noted_below=noted_below,
                attempt=writer.attempt,
                created_at=0,
                generation=GENERATION,
                flags=WalFlags.SYNC if self._story.sync else WalFlags.NONE,
            )
        return self._packed[known]

    def heard_of_put(self, state: State, writer: Writer, sequence: int) -> State:
        before = self._notes(writer.notes).durable_below
        log = (*writer.notes, ("end", sequence))
        durable = self._notes(log).durable_below
        state = state.with_writer(writer._replace(notes=log))
        added = [
            each for told in log if told[0] == "add" for each in zip(told[2], told[1], strict=True)
        ]
        noted = {(stream, note.first_offset) for stream, note in added[before:durable]}
        return state._replace(noted=state.noted | noted)

    def _flies(self, state: State, writer: Writer) -> bool:
        """Whether the object of the first flush is being put."""
        sequence = writer.sealed[0].sequence
        return any(
            (one.instance, one.sequence) == (writer.instance, sequence) for one in state.flying
        )

    def _commit(self, writer: Writer) -> Task:
        sequence, flush, places = writer.sealed[0]
        parts = tuple(Part(one, writer.seen[one], dict(places)[one]) for one in flush.groups[0])
        settled = sequence
        if len(flush.groups) == 1:
            settled = writer.sealed[1].sequence if len(writer.sealed) > 1 else sequence + 1
        numbers = numbers_of(writer)
        return Task("commit", (numbers, parts, sequence, settled, writer.sequence))

    def _tries(self, state: State, writer: Writer, label: str, task: Task) -> Iterator[Step]:
        """An EXEC of a writer: it is done, or something befalls it."""
        self._calls.doing = label
        watch = self._calls.stepper.at(task)
        assert isinstance(watch, Call)
        _, task = self._calls.called(state, task, watch)
        at = self._calls.stepper.at(task)
        if isinstance(at, Failed):
            self._calls.require_expected(state, at)
            yield f"{label}, and hears of the loss", self._stopped(state, writer)
            return
        assert isinstance(at, Call)
        keys, changes = at.arguments
        done = self._calls.given(state, changes)
        yield label, self._heard(done, writer, self._calls.stepper.at(task.told("done")))
        if not changes.values or not state.troubles:
            return
        lost = self._lost(writer, self._calls.stepper.at(task.told(UNKNOWN)))
        done = done._replace(troubles=state.troubles - 1)
        yield f"{label}, and the reply is lost", done.with_writer(lost)
        watched = frozenset(
            key
            for key in keys
            if not (self._story.unwatched and key.startswith(self._story.unwatched))
        )
        late = Late(watched, tuple(changes.values.items()), tuple(changes.members))
        state = state._replace(troubles=state.troubles - 1, late=state.late | {late})
        yield f"{label}, and the EXEC is late", state.with_writer(lost)

    def _lost(self, writer: Writer, at: Call | Done | Failed) -> Writer:
        """A writer that has heard nothing of its EXEC."""
        writer = writer._replace(used=writer.used + 1)
        if isinstance(at, Failed):
            # That of a bump: it decides again.
            assert isinstance(at.error, CoordinationUnknown)
            return writer
        assert isinstance(at, Done)
        tried: Tried = at.value
        return writer._replace(
            attempt=tried.attempt,
            lost=tried.lost,
            lost_from=writer.sealed[0].sequence,
            lost_commit=tried.found,
        )

    def _heard(self, state: State, writer: Writer, at: Call | Done | Failed) -> State:
        """After a writer was told what became of its EXEC."""
        assert isinstance(at, Done)
        tried: Tried = at.value
        told, left = tried.found, tuple(one.flush for one in writer.sealed)
        if isinstance(told, Loss):
            return self._begun_anew(state, writer, left)
        if told is Fate.UNKNOWN:
            return self._begun_anew(state, writer, left[1:])
        if told is Fate.APPLIED:
            told = writer.lost_commit
        writer = writer._replace(
            attempt=tried.attempt, used=writer.used + 1, lost=None, lost_from=0, lost_commit=()
        )
        if told is not Fate.NOT_APPLIED:
            writer = self._acknowledged(state, writer, told)
        return state.with_writer(writer)

    def _acknowledged(self, state: State, writer: Writer, told: tuple[Told, ...]) -> Writer:
        first = writer.sealed[0]
        seen, notes = list(writer.seen), list[tuple[int, Note]]()
        for one in told:
            if one.refusal is not None:
                continue
            given = Given(one.stream, one.offset, writer.number, first.flush.number)
            if given not in state.given:
                raise Violation("what was acknowledged is not there")
            assert one.tail is not None
            seen[one.stream] = seen_of(one.tail, seen[one.stream])
            notes += [(one.stream, note) for note in one.notes]
        left = first.flush._replace(groups=first.flush.groups[1:])
        sealed = (first._replace(flush=left),) if left.groups else ()
        streams, said = zip(*notes, strict=True) if notes else ((), ())
        log = (*writer.notes, ("add", said, streams)) if notes else writer.notes
        return writer._replace(seen=tuple(seen), sealed=(*sealed, *writer.sealed[1:]), notes=log)

    def _begun_anew(self, state: State, writer: Writer, left: tuple[Flush, ...]) -> State:
        """After a writer has lost its instance: what it had not committed is put again."""
        if writer.run + 1 == self._story.runs:
            return self._stopped(state, writer)
        todo = (*left, *writer.todo)
        anew = Writer(writer.number, todo, run=writer.run + 1, seen=writer.seen)
        begun = self._calls.whole(state, Task("begin", (numbers_of(anew),)))
        return self._stopped(state, writer) if begun is None else begun.with_writer(anew)

    def _stopped(self, state: State, writer: Writer) -> State:
        # What it has lost it never hears of, and its notes go on.
        stopped = writer._replace(stopped=True, todo=(), sealed=(), lost_commit=())
        return state.with_writer(stopped)


def numbers_of(writer: Writer) -> Numbers:
    return Numbers(
        writer.instance,
        writer.attempt,
        writer.lost,
        writer.lost_from,
        writer.used,
        writer.lapsed,
    )


def _place(packed: PackedWal, number: int) -> Accepted:
    header, line = packed.header, packed.lines[number]
    place = line.position, line.size, line.record_count, 0
    return Accepted(header.instance, header.sequence, number, *place)
