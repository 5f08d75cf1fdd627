"""Every order of events of leaderless streams, to the end, within the bounds of a `Story`.

From each state each step is taken that somebody could take next, breadth first, so that what is found
is found by a shortest story. Two writers put, commit and note flushes for two streams; vacuum,
uploader and manifest go on between any two of their calls; EXECs arrive late and replies are lost,
also those of the bumps that decide about them; leases run out while their writers stand still;
an operator fences; coordination is lost at any moment, and rebuilt. Whoever takes no more steps is
dead, so deaths need no steps of their own.

What writes is the product's own code on the bytes that it wrote (leaderless_works.py). What of
it the search does itself: a publish, which raises a bound; and the order in which one writer commits,
which core/commit_queue.py has tests for.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bottomless.formats.stream_record import encode_record
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.noted import end_of
from bottomless_server.stores.streams import stream_key
from model.leaderless import GENERATION, Violation
from model.leaderless_calls import Calls
from model.leaderless_checks import check, check_rebuild, entries_of, record_of
from model.leaderless_state import IDS, Slots, State, Step, Story, Writer, first_slots, rebuilt
from model.leaderless_writer_steps import WriterSteps, numbers_of
from model.stepping import Call, Done, Failed, Task


@dataclass(slots=True)
class Found:
    """What came of a search."""

    states: int
    steps: int
    seconds: float
    """Of CPU."""
    violation: Violation | None = None
    story: tuple[str, ...] = ()
    """The labels of the steps that lead to it."""


class Search:
    def __init__(self, story: Story) -> None:
        self._story = story
        self._calls = Calls()
        self._writers = WriterSteps(story, self._calls)
        self._scans: dict[Any, Any] = {}
        self._rebuilds: dict[Any, Slots] = {}

    def run(self, states_max: int = 2_000_000) -> Found:
        """Search to the end, or to the first violation.

        Raises:
            RuntimeError: the bounds of the story are too wide.
        """
        begun, first = time.process_time(), self._first()
        parents: dict[State, tuple[State | None, str]] = {first: (None, "")}
        waiting, steps = deque([first]), 0
        while waiting:
            state = waiting.popleft()
            try:
                for label, after in self._steps(state):
                    steps += 1
                    self._calls.doing = label
                    # Also of one that is known: what goes back leads to it.
                    check(state, after)
                    if after in parents:
                        continue
                    parents[after] = state, label
                    waiting.append(after)
            except Violation as error:
                story = (*_labels(parents, state), f"{self._calls.doing}: {error}")
                spent = time.process_time() - begun
                return Found(len(parents), steps, spent, error, story)
            if len(parents) > states_max:
                raise RuntimeError(f"more than {states_max:,} states")
        return Found(len(parents), steps, time.process_time() - begun)

    def _first(self) -> State:
        story = self._story
        writers = tuple(Writer(number, plan) for number, plan in enumerate(story.plans))
        state = State(
            first_slots(),
            frozenset(),
            frozenset(),
            writers,
            troubles=story.troubles,
            lapses=story.lapses,
            fences=story.fences,
            may_lose=story.loses,
        )
        for writer in writers:
            begun = self._calls.whole(state, Task("begin", (numbers_of(writer),)))
            assert begun is not None
            state = begun
        return state

    # Every step that somebody could take next, each with its label.

    def _steps(self, state: State) -> Iterator[Step]:
        for writer in state.writers:
            yield from self._writers.steps(state, writer)
        yield from self._arrivals(state)
        if state.is_whole:
            yield from self._of_others(state)
            if self._story.repeats:
                yield from self._repeats(state)
        yield from self._of_tasks(state)
        if state.may_lose:
            yield "coordination is lost", state.emptied()
        if state.generation == 0:
            self._calls.doing = "rebuild"
            yield "rebuild", self._rebuilt(state)

    def _arrivals(self, state: State) -> Iterator[Step]:
        for one in state.flying:
            writer = state.writers[one.writer]
            after = state._replace(flying=state.flying - {one}, objects=state.objects | {one})
            if one.instance == writer.instance:
                after = self._writers.heard_of_put(after, writer, one.sequence)
            yield f"object {one.sequence} of writer {one.writer} is durable", after
        for late in state.late:
            self._calls.doing = "a late EXEC"
            yield "a late EXEC arrives", self._calls.given(state, late.changes)

    def _of_others(self, state: State) -> Iterator[Step]:
        for stream in range(len(IDS)) if self._story.publishes else ():
            record = record_of(state.held(stream_key(IDS[stream])))
            for entry in entries_of(state, stream):
                if entry.next_offset > record.published_next:
                    yield (
                        f"publish of stream {stream}",
                        _published(state, stream, entry.next_offset),
                    )
                    break
        if state.fences:
            self._calls.doing = "fence"
            fenced = self._calls.whole(state, Task("fence", (0,)))
            assert fenced is not None
            yield "fence of stream 0", fenced._replace(fences=state.fences - 1)

    def _repeats(self, state: State) -> Iterator[Step]:
        """A node that is neither of the writers answers repeats."""
        for stream, offset in sorted({(one.stream, one.offset) for one in state.given}):
            if (stream, offset) in state.noted:
                continue
            label = self._calls.doing = f"repeat of offset {offset} of stream {stream}"
            _, may_answer = self._calls.asked(state, Task("repeat", (stream, offset)))
            if may_answer:
                yield label, state._replace(noted=state.noted | {(stream, offset)})

    def _of_tasks(self, state: State) -> Iterator[Step]:
        for task in state.tasks:
            others = state._replace(tasks=tuple(one for one in state.tasks if one != task))
            yield self._goes_on(others, task)
        if state.is_whole and len(state.tasks) < self._story.task_count:
            kinds = {(one.work, one.arguments) for one in state.tasks}
            for task in self._story.tasks:
                if (task.work, task.arguments) not in kinds:
                    yield self._goes_on(state, task)

    def _goes_on(self, others: State, task: Task) -> Step:
        """One call of a task; `others` is the state without it."""
        label = self._calls.doing = f"{task.work} {_spelled(task)} call {len(task.replies) + 1}"
        at = self._calls.stepper.at(task)
        assert isinstance(at, Call)
        after, told = self._calls.called(others, task, at)
        ended = self._calls.stepper.at(told)
        if isinstance(ended, Call) and ended.kind == "exec":
            keys, changes = ended.arguments
            assert keys
            after, told = self._calls.given(after, changes), told.told("done")
            ended = self._calls.stepper.at(told)
        if isinstance(ended, Failed):
            self._calls.require_expected(others, ended)
        if isinstance(ended, Call):
            after = after._replace(tasks=tuple(sorted((*after.tasks, told), key=repr)))
        return label, after

    # The loss of coordination.

    def _rebuilt(self, state: State) -> State:
        task = Task("scan", ())
        found = self._scans.get(state.objects)
        while found is None:
            at = self._calls.stepper.at(task)
            if isinstance(at, Done):
                found = self._scans[state.objects] = at.value
                break
            assert isinstance(at, Call)
            _, task = self._calls.called(state, task, at)
        ends = [
            end_of(root, found.noted.get(one, ()), undecided=one in found.undecided)
            for one, root in zip(IDS, state.roots, strict=True)
        ]
        check_rebuild(state, found, ends, sync=self._story.sync)
        goes_on_at = tuple(end.goes_on_at for end in ends)
        instances = {one: seen.sequences for one, seen in found.instances.items()}
        after = goes_on_at, frozenset(instances.items())
        if after not in self._rebuilds:
            self._rebuilds[after] = rebuilt(goes_on_at, instances)
        return state._replace(slots=self._rebuilds[after], generation=GENERATION + 1)


def _published(state: State, stream: int, next_offset: int) -> State:
    """After a manifest has made fragments part of itself."""
    key = stream_key(IDS[stream])
    record = _record_after_publish(state.held(key), next_offset)
    roots = tuple(next_offset if one == stream else root for one, root in enumerate(state.roots))
    return state.written(Changes({key: record}))._replace(roots=roots)


@cache
def _record_after_publish(data: bytes, next_offset: int) -> bytes:
    record = record_of(data)
    record = replace(record, published_next=next_offset, version=record.version + 1)
    return encode_record(record)


def _spelled(task: Task) -> str:
    return " ".join(str(one).lstrip("0") or "0" for one in task.arguments)


def _labels(parents: dict[State, tuple[State | None, str]], state: State) -> list[str]:
    labels: list[str] = []
    now: State | None = state
    while now is not None:
        now, label = parents[now]
        labels.append(label)
    return labels[-2::-1]
