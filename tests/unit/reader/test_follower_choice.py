"""Whether a follower is asked in the place of an owner, of which node, and what of its answer counts."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.limits import MIB
from bottomless.model.names import NodeId, StreamId
from bottomless_server.protocol.tail import Bounds, ChunkRun
from bottomless_server.reader.core.follower_choice import (
    Seen,
    first_of,
    is_far,
    is_vouched_for,
    seen_in,
)

NODES: Final = tuple(NodeId(f"{number:032x}") for number in range(8))
BOUNDS: Final = Bounds(3, 0, 1_000, 0, 1, 990, 7)


def a_stream(number: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")


def a_run(first: int, next_offset: int, size: int, followers: tuple[NodeId, ...]) -> ChunkRun:
    return ChunkRun(BOUNDS, first, next_offset, size, bytes(size), None, followers)


def test_a_stream_that_nobody_follows_is_not_remembered() -> None:
    assert seen_in(a_run(0, 10, 1_000, ()), Seen(5, 1.0, NODES)) is None
    assert not is_far(None, 0)


def test_the_size_of_records_is_that_of_the_last_run_that_had_any() -> None:
    seen = seen_in(a_run(0, 10, 1_000, NODES[:2]), None)
    assert seen == Seen(1_000, 100.0, NODES[:2])
    assert seen_in(a_run(1_000, 1_000, 0, NODES[1:3]), seen) == Seen(1_000, 100.0, NODES[1:3])
    # Of a stream of which nothing was read yet nobody knows how far the end is.
    assert not is_far(seen_in(a_run(1_000, 1_000, 0, NODES), None), 0)


@given(position=st.integers(0, 2**62), committed=st.integers(0, 2**62), size=st.floats(1, 10**6))
def test_followers_are_asked_more_than_a_mebibyte_below_the_end_alone(
    position: int, committed: int, size: float
) -> None:
    assert is_far(Seen(committed, size, NODES), position) is ((committed - position) * size > MIB)


@given(
    number=st.integers(0, 10**6),
    nodes=st.sets(st.sampled_from(NODES), min_size=1),
    gone=st.sampled_from(NODES),
)
def test_of_one_stream_the_same_node_is_asked_whoever_else_comes_or_goes(
    number: int, nodes: set[NodeId], gone: NodeId
) -> None:
    stream_id = a_stream(number)
    first = first_of(stream_id, nodes)
    assert first in nodes
    assert first_of(stream_id, sorted(nodes)) == first
    if gone != first:
        assert first_of(stream_id, nodes - {gone}) == first
    assert first_of(stream_id, ()) is None


def test_streams_are_asked_of_different_nodes() -> None:
    assert {first_of(a_stream(number), NODES) for number in range(200)} == set(NODES)


def test_what_the_owner_of_now_does_not_show_does_not_count() -> None:
    run = a_run(0, 1_000, 10, ())
    assert is_vouched_for(run, BOUNDS)
    assert not is_vouched_for(run, BOUNDS._replace(committed_next=999))
    for epoch in (2, 4):
        assert not is_vouched_for(run, BOUNDS._replace(epoch=epoch))
        assert not is_vouched_for(run._replace(bounds=BOUNDS._replace(epoch=epoch)), BOUNDS)
