"""Conversations on the lane that are made up: answers come in any order, and clients go at any time.

The other tests of a connection on the lane answer all that is in line before the client goes, or
nothing of it. So none saw that a body was taken twice from the sum of all bodies when its request was
answered, waited for one before it, and the client went then.
"""

import random

import pytest
from support.waiting import eventually
from unit.runtime.test_runtime_lane import DAY, Echo, HandLane, Taken, post
from unit.runtime.test_runtime_protocol import GET, as_served, connected

from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.listener.listeners import Listener, bind_tcp

CLIENTS = 25


async def made_up(rng: random.Random, listener: Listener, lane: HandLane) -> None:
    """One client; afterwards no bytes of it count any more."""
    lane.in_line.clear()
    before = lane.received
    sizes = [rng.randrange(1, 2_000) for _ in range(rng.choice([2, 3, 8]))]
    bodies = [bytes([97 + n]) * size for n, size in enumerate(sizes)]
    goes = rng.random() < 0.6
    async with connected(listener) as client:
        cut = rng.randrange(1, sizes[-1] + 1) if goes and rng.random() < 0.5 else 0
        await client.send(b"".join(map(post, bodies))[: -cut or None])
        whole = bodies[:-1] if cut else bodies
        await lane.waiting(len(whole))
        late: list[Taken] = list(lane.in_line)
        rng.shuffle(late)
        early = [late.pop() for _ in range(rng.randrange(len(late) + 1) if goes else len(late))]
        begun = len(bodies[-1]) - cut if cut else 0
        await eventually(lambda: lane.received - before == sum(map(len, whole)) + begun)
        for one in early:
            one.say()
        left = sum(len(one.body) for one in late)
        assert listener.connections.body_bytes == left + begun
        if goes:
            client.writer.transport.abort()
            await eventually(lambda: not len(listener.connections))
        else:
            await client.send(GET)
            told = [(await client.answer())[1] for _ in range(len(bodies) + 1)]
            assert told == [*bodies, b"/small"]
        assert listener.connections.body_bytes == 0
        for one in late:
            one.say()
        assert listener.connections.body_bytes == 0
    await eventually(lambda: not len(listener.connections))


@pytest.mark.parametrize("seed", [1, 2])
@as_served
async def test_whoever_goes_whenever_the_sum_of_all_bodies_is_that_of_those_without_an_answer(
    seed: int,
) -> None:
    lane = HandLane()
    listener = Listener(wrap(Echo()), bind_tcp("127.0.0.1", 0), bounds=DAY, lane=lane)
    await listener.open()
    rng = random.Random(seed)
    try:
        for _ in range(CLIENTS):
            await made_up(rng, listener, lane)
    finally:
        await listener.close()
