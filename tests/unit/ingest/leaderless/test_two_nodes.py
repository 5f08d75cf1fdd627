"""Random appends and repeats of many producers at two nodes, against what their clients were told.

It is the model of ../test_producer_model.py: at the end every record that was sent is in the stream
exactly once, at the offset that its client was told.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.ingest.leaderless.nodes import LeaderlessNode
from unit.ingest.test_producer_model import ProducerModel, which


class Alternating:
    """Two nodes, of which each request meets the next."""

    def __init__(self, *nodes: LeaderlessNode) -> None:
        self.nodes = nodes
        self._asked = 0

    @property
    def client(self) -> httpx.AsyncClient:
        self._asked += 1
        return self.nodes[self._asked % len(self.nodes)].client


class TwoNodeModel(ProducerModel[Alternating]):
    """What the producers know, beside the nodes that they write to in turn."""

    async def check(self) -> None:
        values = await self.harness.nodes[0].values()
        assert {offset: value.decode() for offset, value in enumerate(values)} == self.stored
        for client in self.clients:
            mine = [value for _, values, _ in client.sent for value in values]
            in_order = [v for _, v in sorted(self.stored.items()) if v.startswith(client.name)]
            assert in_order == mine
            assert len(mine) == len(set(mine))


small = st.integers(1, 4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), which, small),
        st.tuples(st.just("append"), which, small),
        st.tuples(st.just("repeat"), which, st.integers(1, 7)),
        st.tuples(st.just("gap"), which, small),
        st.tuples(st.just("overlap"), which, small),
        st.tuples(st.just("together"), small),
        st.tuples(st.just("together"), small),
        st.tuples(st.just("keyed"), st.sampled_from("xyz")),
    ),
    min_size=5,
    max_size=30,
)


async def play(directory: Path, played: list[tuple[Any, ...]]) -> None:
    first = await (await LeaderlessNode(directory / "first").declare()).start()
    second = await LeaderlessNode(directory / "second", first).start()
    model = TwoNodeModel(Alternating(first, second))
    try:
        for name, *arguments in played:
            if name in {"append", "repeat", "gap", "overlap"}:
                arguments[0] = model.clients[arguments[0]]
            await getattr(model, name)(*arguments)
        await model.check()
        for client in model.clients:
            await model.repeat(client, 1)
        await model.check()
    finally:
        await second.aclose()
        await first.aclose()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(steps)
def test_every_record_is_stored_once_whichever_node_is_asked(
    played: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory), played))
