"""Streams that come and go by the hundred, and every table of every service that grows with them.

Nothing of them may wait for Python's garbage collector either. It looks at what lives long seldom, so
what refers to itself in a circle, and is used by nobody, stays for long.

Tables are not listed: they are found by walking from each service through all that it refers to.
A table is a container; its name is the way to it. What lives in an object with a bound of its own
(a cache of cachetools) is that object's business.
"""

import asyncio
import functools
import types
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final

import cachetools
from support.collected import left_to_the_collector

from simulation.expected import Broken
from simulation.run import Simulation

_CONTAINERS: Final = (dict, list, set, frozenset, deque, tuple)
_LEAVES: Final = (str, bytes, int, float, type(None), type, types.ModuleType)
_CALLABLES: Final = (types.MethodType, types.FunctionType, functools.partial)
ROUNDS: Final = 3
_CALL_SIZE: Final = 4
"""What the arguments of a call that is under way may hold, at one look more than at another: a
table that keeps something of each stream, or of every fifth, grows by more in a round."""


async def streams_come_and_go(simulation: Simulation, count: int) -> dict[str, list[int]]:
    """Sizes of all tables, by their names, after each of some rounds of so many streams.

    Raises:
        Broken: one grows with streams that are gone.
    """
    for program in simulation.programs:
        program.start()
    await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
    looks, left = [], Counter[str]()
    for number in range(ROUNDS):
        group = 12
        for first in range(0, count, group):
            names = [f"s-{number}-{each}" for each in range(first, min(first + group, count))]
            await asyncio.gather(*(_live(simulation, name) for name in names))
        # Longer than any sweep, grace or idle time of a simulation.
        await asyncio.sleep(60 * (count // 256 + 2))
        looks.append(await _lasting(simulation))
        left = left_to_the_collector()
    found = {name: [look[name] for look in looks] for name in sorted(set().union(*looks))}
    # The first round fills what is made once.
    grown = {name: sizes for name, sizes in found.items() if sizes[-1] - sizes[-2] > _CALL_SIZE}
    if grown:
        raise Broken(f"tables grow with streams that are gone: {grown}")
    if left:
        raise Broken(f"what is gone waits for the garbage collector: {left}")
    simulation.story.count("tables", len(found))
    return found


async def _lasting(simulation: Simulation) -> Counter[str]:
    """How much stands in each table, without what a call holds that is under way just now: that
    is gone a moment later, and once it was taken for growth because a renewal of the lease was under
    way at the last look and not at the one before."""
    look = tables_of(simulation)
    for _ in range(3):
        await asyncio.sleep(0.31)
        again = tables_of(simulation)
        # Not by `&`, which would leave out those that are empty.
        look = Counter({name: min(size, again[name]) for name, size in look.items()})
    return look


async def _live(simulation: Simulation, name: str) -> None:
    """The whole life of a stream, with something in every table that one can be in."""
    services = simulation.services
    node = services.nodes[0]
    path = f"/v1/streams/{name}"

    async def ask(
        program: Any, method: str, path: str, *statuses: int, **more: Any
    ) -> tuple[int, Any]:
        for _ in range(200):
            answer = await services.ask(program, method, path, **more)
            if answer is not None and answer[0] in statuses:
                return answer
            await asyncio.sleep(0.2)
        raise Broken(f"{method} {path} is answered {answer}")

    config = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
    await ask(services.manifest, "PUT", path, 201, body=config)
    body = {"records": [{"value": name}]}
    for headers in (
        {},
        {"idempotency-key": "once"},
        {"producer-id": "p", "producer-seq": "0"},
    ):
        await ask(node, "POST", f"{path}/records", 200, body=body, headers=headers)
    await _refused(ask, services, path)
    _, told = await ask(services.reader, "GET", f"{path}/records", 200, query="offset=0")
    assert told["next_offset"] == 3, told
    stored = {"next_offset": 2}
    await ask(services.manifest, "PUT", f"{path}/consumers/c/offset", 200, body=stored)
    for _ in range(500):
        _, about = await ask(services.manifest, "GET", f"{path}/manifest", 200)
        if about["next_offset"] == 3:
            break
        await asyncio.sleep(0.2)
    else:
        raise Broken(f"{name} is never uploaded")
    await ask(services.reader, "GET", f"{path}/records", 200, query="offset=0")
    await ask(services.manifest, "DELETE", path, 202)


async def _refused(ask: Any, services: Any, path: str) -> None:
    """What is refused leaves nothing either: an error refers to frames that refer to what was sent."""
    node, body = services.nodes[0], {"records": [{"value": "refused"}]}
    for headers, *statuses in (
        ({"stream-expected-offset": "9"}, 409, 412, 400, 422),
        ({"producer-id": "p", "producer-seq": "7"}, 409, 412, 400, 422),
        ({"idempotency-key": "once"}, 409, 412, 400, 422),
    ):
        await ask(node, "POST", f"{path}/records", *statuses, body=body, headers=headers)
    await ask(node, "POST", f"{path}/records", 400, 422, body={"records": [{"worth": 1}]})
    await ask(node, "DELETE", f"{path}/producers/nobody", 404)
    await ask(node, "POST", f"{path}/records/staged", 404, 400, 422, body={"records": []})
    await ask(services.manifest, "POST", f"{path}/trim", 400, 422, body={"before_offset": -1})
    await ask(services.manifest, "PUT", path, 409, body={"fragment": {"max_age_ms": 101}})
    await ask(services.reader, "GET", f"{path}/records", 400, query="offset=none")
    await ask(services.reader, "GET", f"{path}-gone/records", 404, query="offset=0")


def tables_of(simulation: Simulation) -> Counter[str]:
    """How much stands in each container that a service leads to."""
    ground = simulation.ground
    outside = {id(thing) for thing in (ground, *vars(ground).values(), simulation)}
    sizes: Counter[str] = Counter()
    for program in simulation.programs:
        outside |= {id(program), id(program.process), id(program.disk)}
    for program in simulation.programs:
        seen = set(outside)
        waiting: deque[tuple[str, Any]] = deque([(program.name, program.service)])
        while waiting:
            name, thing = waiting.popleft()
            if id(thing) in seen or isinstance(thing, _LEAVES):
                continue
            seen.add(id(thing))
            if isinstance(thing, (dict, list, set, frozenset, deque)):
                sizes[name] += len(thing)
            waiting.extend((f"{name}{step}", part) for step, part in _parts(thing))
    return sizes


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, cachetools.Cache):
        return
    if isinstance(thing, dict):
        # Services name their parts by text, and streams by their ids: one is a way, one is not.
        yield from (("[]", value) for value in thing.values())
    elif isinstance(thing, _CONTAINERS):
        yield from (("[]", value) for value in thing)
    elif isinstance(thing, types.MethodType):
        yield "", thing.__self__
    elif isinstance(thing, functools.partial):
        yield "", thing.func
        yield from (("()", value) for value in (*thing.args, *thing.keywords.values()))
    elif isinstance(thing, types.FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield f"<{name}>", cell.cell_contents
            except ValueError:
                continue
    elif isinstance(thing, asyncio.Task):
        yield "<task>", thing.get_coro()
    elif isinstance(thing, types.CoroutineType):
        if thing.cr_frame is not None:
            yield from ((f".{name}", value) for name, value in thing.cr_frame.f_locals.items())
        yield "<awaits>", thing.cr_await
    elif type(thing).__module__.partition(".")[0] in ("bottomless", "bottomless_server", "fastapi"):
        yield from _attributes(thing)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    names = list(vars(thing)) if hasattr(thing, "__dict__") else []
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    if is_dataclass(thing):
        names += [field.name for field in fields(thing)]
    for name in dict.fromkeys(names):
        value = getattr(thing, name, None)
        if value is not None:
            yield f".{name}", value
