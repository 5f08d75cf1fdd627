"""Rendezvous owner sets, and the choice inside of them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.loadtest.routing import Policy, Router, owners_of

NODES = tuple(f"ingest-{number}" for number in range(1, 6))
STREAMS = tuple(f"load-{number:05}" for number in range(500))


def test_a_set_follows_from_the_names_alone_whatever_their_order() -> None:
    assert owners_of("orders", NODES, 2) == owners_of("orders", reversed(NODES), 2)
    assert owners_of("orders", NODES, 2) == owners_of("orders", NODES, 5)[:2]


def test_a_node_that_goes_changes_only_the_sets_that_it_is_in() -> None:
    left = NODES[:-1]
    for stream in STREAMS:
        before, after = owners_of(stream, NODES, 2), owners_of(stream, left, 2)
        if NODES[-1] not in before:
            assert after == before
        else:
            assert set(before) - {NODES[-1]} < set(after)


def test_streams_are_spread_over_all_nodes() -> None:
    counts = Counter(node for stream in STREAMS for node in owners_of(stream, NODES, 2))
    assert set(counts) == set(NODES)
    # 200 each on average; these are the same in every run.
    assert min(counts.values()) > 150
    assert max(counts.values()) < 250


def test_round_robin_takes_turns_inside_the_set() -> None:
    router = Router({"orders": ("a", "b", "c")}, Policy.ROUND_ROBIN)
    assert [router.choose("orders") for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_least_in_flight_takes_who_has_the_least_and_equals_in_turn() -> None:
    router = Router({"orders": ("a", "b")}, Policy.LEAST_IN_FLIGHT)
    assert [router.choose("orders") for _ in range(2)] == ["a", "b"]
    router.end("a")
    assert router.choose("orders") == "a"
    assert router.choose("orders") in ("a", "b")
    router.under_way.update(a=10)
    assert [router.choose("orders") for _ in range(2)] == ["b", "b"]


@given(
    st.sampled_from(Policy),
    st.lists(st.tuples(st.booleans(), st.sampled_from(NODES)), max_size=30),
)
def test_remaps_and_choices_stay_inside_the_set(
    policy: Policy, changes: list[tuple[bool, str]]
) -> None:
    owners = {stream: owners_of(stream, NODES, 2) for stream in STREAMS[:20]}
    router = Router(owners, policy)
    for leaves, node in changes:
        remaps = router.leave(node) if leaves else router.join(node)
        for remap in remaps:
            assert node in remap.owners == owners[remap.stream]
            assert set(remap.after) <= set(remap.owners)
            assert set(remap.before) ^ set(remap.after) == {node}
        for stream, nodes in owners.items():
            chosen = router.choose(stream)
            there = set(nodes) - router.away
            assert chosen in there if there else chosen is None


def test_only_streams_of_the_node_are_remapped_and_once() -> None:
    router = Router({"one": ("a", "b"), "two": ("b", "c")}, Policy.ROUND_ROBIN)
    assert [remap.stream for remap in router.leave("a")] == ["one"]
    assert router.leave("a") == []
    assert [(remap.before, remap.after) for remap in router.leave("b")] == [
        (("b",), ()),
        (("b", "c"), ("c",)),
    ]
    assert router.choose("one") is None
    assert [remap.stream for remap in router.join("a")] == ["one"]
    assert router.choose("one") == "a"


def test_an_append_that_did_not_begin_cannot_end() -> None:
    with pytest.raises(AssertionError):
        Router({"one": ("a",)}, Policy.ROUND_ROBIN).end("a")
