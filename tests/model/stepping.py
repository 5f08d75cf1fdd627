"""Coroutines of the product that go on one call at a time, for a search that tries each next call.

A coroutine cannot be copied. But all that it knows of the world is what its calls to coordination and
object storage were told: so it is kept as its arguments and those replies, which are a value, and a
coroutine that is begun anew and told the same stands at the same call.

A transaction is one step. Of a store that honours WATCH that is every order that there is: what comes
between its reads and its EXEC either breaks it, and it begins again, or could have come before or
after. An EXEC that is late is kept apart from who sent it: see `Late` in leaderless_state.py.
"""

import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from bottomless.drives.base import ObjectMissing
from bottomless.errors import StoreError
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.coordination.base import Changes, CoordinationUnknown, Decide, Hold, Room

T = TypeVar("T")

UNKNOWN: Final = "unknown"
"""The reply of an EXEC that was lost."""


class Call(NamedTuple):
    """What a coroutine waits for."""

    kind: str
    """A method of `Coordination` or `Drive`; of a transaction first "watch", then "exec"."""
    arguments: tuple[Any, ...]


class Done(NamedTuple):
    value: Any


class Failed(NamedTuple):
    error: Exception


class Task(NamedTuple):
    """A coroutine, and how far it has come."""

    work: str
    arguments: tuple[Any, ...]
    replies: tuple[Any, ...] = ()

    def told(self, reply: Any) -> "Task":
        """The same after the reply to its call."""
        return self._replace(replies=(*self.replies, reply))


@types.coroutine
def _call(kind: str, *arguments: Any) -> Generator[Call, Any, Any]:
    return (yield Call(kind, arguments))


class SteppedCoordination:
    """Coordination whose every call is a step; the rest of the port is not needed."""

    connected_count = 1

    async def get(self, redis_key: str) -> Any:
        return (await _call("get", redis_key))[0]

    async def get_many(self, redis_keys: Sequence[str]) -> list[Any]:
        return list(await _call("get", *redis_keys))

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        return list(await _call("members", redis_key, after, limit))

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        assert room is None
        assert attempts > 0
        values = await _call("watch", *redis_keys)
        changes, value = decide(dict(zip(redis_keys, values, strict=True)))
        if await _call("exec", tuple(redis_keys), changes) == UNKNOWN:
            raise CoordinationUnknown("the reply is lost, or the EXEC is late")
        return value

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        assert ttl_ms > 0
        await _call("write", Changes({redis_key: value}))
        return Hold.TAKEN


class SteppedDrive:
    """Object storage whose every call is a step."""

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectFacts]:
        for object_key in await _call("list", prefix, after):
            yield ObjectFacts(object_key, 0, 0, None)

    async def get(self, object_key: str, position: int, size: int) -> bytes:
        data: bytes | None = await _call("read", object_key)
        if data is None:
            raise ObjectMissing(object_key)
        return data[position : position + size]

    async def delete(self, object_keys: Sequence[str]) -> dict[str, Exception]:
        await _call("delete", *object_keys)
        return {}


Work = Callable[..., Coroutine[Any, Any, Any]]


class Stepper:
    """Tells what tasks wait for. `works` are given a coordination, a drive, and their arguments."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        self._works = works
        self._known: dict[Task, Call | Done | Failed] = {}

    def at(self, task: Task) -> Call | Done | Failed:
        """The call at which a task stands, or how it ended."""
        found = self._known.get(task)
        if found is None:
            found = self._known[task] = self._begun_anew(task)
        return found

    def _begun_anew(self, task: Task) -> Call | Done | Failed:
        coroutine = self._works[task.work](SteppedCoordination(), SteppedDrive(), *task.arguments)
        try:
            call: Call = coroutine.send(None)
            for reply in task.replies:
                call = coroutine.send(reply)
        except StopIteration as done:
            return Done(done.value)
        except (StoreError, AssertionError) as error:
            return Failed(error)
        finally:
            coroutine.close()
        return call
