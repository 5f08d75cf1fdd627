"""What the calls of tasks do to a state of the search: see leaderless_search.py."""

from typing import Any

from bottomless.errors import Code, Unavailable
from bottomless_server.coordination.base import Changes
from model.leaderless import Violation
from model.leaderless_checks import with_given
from model.leaderless_state import State
from model.leaderless_works import WORKS
from model.stepping import Call, Done, Failed, Stepper, Task


class Calls:
    def __init__(self) -> None:
        self.stepper = Stepper(WORKS)
        self.doing = ""
        """The label of the step that is taken."""

    def called(self, state: State, task: Task, call: Call) -> tuple[State, Task]:
        """The state after a call, and the task that was told of it."""
        kind, arguments = call
        if kind == "members":
            key, after, limit = arguments
            found = [member for member in state.held(key) if member > after]
            return state, task.told(tuple(found[:limit]))
        if kind in ("get", "get_many", "watch"):
            return state, task.told(tuple(state.held(key) for key in arguments))
        if kind == "write":
            return state.written(arguments[0]), task.told(None)
        if kind == "list":
            prefix, after = arguments
            keys = sorted(one.key for one in state.objects)
            listed = [key for key in keys if key.startswith(prefix) and key > after]
            return state, task.told(tuple(listed))
        if kind == "read":
            data = [one.data for one in state.objects if one.key == arguments[0]]
            return state, task.told(data[0] if data else None)
        assert kind == "delete"
        left = frozenset(one for one in state.objects if one.key not in arguments)
        return state._replace(objects=left), task.told(None)

    def whole(self, state: State, task: Task) -> State | None:
        """The state after all calls of a task, with nothing between them; None if it hears that
        coordination was lost."""
        return self.asked(state, task)[0]

    def asked(self, state: State, task: Task) -> tuple[State | None, Any]:
        """The same, and what the task returns."""
        while True:
            at = self.stepper.at(task)
            if isinstance(at, Done):
                return state, at.value
            if isinstance(at, Failed):
                self.require_expected(state, at)
                return None, None
            if at.kind == "exec":
                state, task = self.given(state, at.arguments[1]), task.told("done")
            else:
                state, task = self.called(state, task, at)

    def require_expected(self, state: State, failed: Failed) -> None:
        """Nobody hears of a loss before there is one, and nobody hears of anything else."""
        error = failed.error
        lost = isinstance(error, Unavailable) and error.code is Code.COORDINATION_REGRESSED
        if not lost or state.is_whole:
            raise Violation(f"nobody expects it: {error!r}") from error

    def given(self, state: State, changes: Changes) -> State:
        after = state.written(changes)
        return with_given(state, after) if state.is_whole else after
