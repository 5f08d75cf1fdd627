"""Homes of queues: a tenant's queues are on one node, whatever dies, is taken over, or is lost."""

from collections.abc import Awaitable, Callable

import pytest
from support.guards import remove
from support.manifest import Crash, Fault, ManifestHarness
from support.rebuilding import a_step, agree, put, rebuild

from bottomless.errors import Code, Corrupt, Fenced, NotFound, Unavailable
from bottomless.formats.keys import (
    QUEUE_HOMES_PREFIX,
    QueueHomeKey,
    parse_queue_home_key,
    queue_home_key,
)
from bottomless.formats.queue_home import (
    HomeObject,
    decode_home,
    decode_home_object,
    encode_home,
    encode_home_object,
)
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.queue_homes.core.home_decision import HomeAsked, decide_home, noted
from bottomless_server.manifest.queue_homes.home_rebuild import restore_homes
from bottomless_server.manifest.queue_homes.homes import Homes
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.queue_homes import QueueHomes, queue_node_key
from bottomless_server.stores.queue_homes import queue_home_key as redis_key

A, B, C = (NodeId(letter * 32) for letter in "abc")
HOME = QueueHome("acme", 3, A, "a:1", noted=True, generation=0)


def asked(node: NodeId, expect_home: NodeId | None = None) -> HomeAsked:
    return HomeAsked(node, f"{node[0]}:1", expect_home)


async def a_harness() -> ManifestHarness:
    harness = ManifestHarness()
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    return harness


async def objects(harness: ManifestHarness) -> dict[int, NodeId]:
    """What the bucket says of acme's homes: the node of each term."""
    found = {}
    async for facts in harness.drive.list(QUEUE_HOMES_PREFIX):
        said = decode_home_object(bytes(await harness.drive.get(facts.object_key)))
        if said.tenant == "acme":
            found[said.term] = said.node_id
    return found


def hold(harness: ManifestHarness, node: NodeId, *, held: bool) -> None:
    harness.coordination.write(Changes({queue_node_key(node): node.encode() if held else None}))


# What is decided


def decide(
    before: QueueHome | None, ask: HomeAsked, last: HomeObject | None = None, held: bool = False
) -> QueueHome:
    return decide_home("acme", before, ask, last=last, home_held=held, generation=0)


def test_the_first_node_that_asks_is_the_home_of_the_first_term() -> None:
    assert decide(None, asked(A)) == QueueHome("acme", 1, A, "a:1", noted=False, generation=0)


def test_who_asks_where_another_is_the_home_hears_of_that_one() -> None:
    assert decide(HOME, asked(B)) == HOME
    assert decide(HOME, HomeAsked(A, "a:2")) == HOME._replace(url="a:2")


def test_a_home_that_only_the_bucket_knows_is_brought_back_and_no_second_one_is_founded() -> None:
    last = HomeObject("acme", 4, A)
    back = QueueHome("acme", 5, A, None, noted=False, generation=0)
    assert decide(None, asked(B), last) == back
    assert decide(None, asked(A), last) == back._replace(url="a:1")
    assert decide(None, asked(B, A), last).term == 6


def test_a_takeover_needs_the_home_to_be_named_and_its_lease_to_be_gone() -> None:
    after = decide(HOME, asked(B, A))
    assert after == QueueHome("acme", 4, B, "b:1", noted=False, generation=0)
    assert decide(after, asked(B, A)) == after
    for before, ask, held in ((HOME, asked(B, A), True), (HOME, asked(B, C), False)):
        with pytest.raises(Fenced) as refused:
            decide(before, ask, held=held)
        assert refused.value.code is Code.HOME_LIVE
        assert refused.value.facts == {"home": A, "term": 3}
    with pytest.raises(NotFound):
        decide(None, asked(B, A))


def test_without_the_guard_queues_are_taken_from_a_node_that_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the home's lease, at a takeover of queues", lambda *_, **__: None)
    assert decide(HOME, asked(B, A), held=True).node_id == B


# Formats


def test_records_and_objects_are_read_as_they_were_written() -> None:
    for home in (HOME, HOME._replace(url=None, noted=False)):
        assert decode_home(encode_home(home)) == home
    said = HomeObject("acme.eu", 7, A)
    assert decode_home_object(encode_home_object(said)) == said
    with pytest.raises(Corrupt):
        decode_home_object(encode_home_object(said).replace(b":7", b":8"))
    with pytest.raises(Corrupt):
        decode_home(encode_home(HOME).replace(b'"noted":true', b'"noted":1'))


def test_keys_say_tenant_and_term_also_of_tenants_whose_names_hold_dots() -> None:
    for tenant in ("acme", "acme.0000000001", "a.b-c_d"):
        key = queue_home_key(tenant, 12)
        assert parse_queue_home_key(key) == QueueHomeKey(tenant, 12)
    assert parse_queue_home_key(f"{QUEUE_HOMES_PREFIX}acme.json") is None


# The three steps


async def test_a_home_is_in_coordination_and_in_the_bucket_before_anybody_hears_of_it() -> None:
    harness = await a_harness()
    home = await Homes(harness.context).settle("acme", asked(A))
    assert home == QueueHome("acme", 1, A, "a:1", noted=True, generation=0)
    assert await QueueHomes(harness.coordination, harness.streams).find("acme") == home
    assert await objects(harness) == {1: A}
    assert await Homes(harness.context).settle("acme", asked(B)) == home
    assert await objects(harness) == {1: A}


async def test_the_home_of_a_tenant_whose_name_begins_another_s_is_another() -> None:
    harness = await a_harness()
    homes = Homes(harness.context)
    await homes.settle("acme.eu", asked(B))
    assert (await homes.settle("acme", asked(A))).node_id == A


async def first(harness: ManifestHarness) -> QueueHome:
    return await Homes(harness.context).settle("acme", asked(A))


async def takeover(harness: ManifestHarness) -> QueueHome:
    return await Homes(harness.context).settle("acme", asked(B, A))


Act = Callable[[ManifestHarness], Awaitable[QueueHome]]


async def cut_off(harness: ManifestHarness, act: Act, step: int) -> bool:
    """Let a process die before or after the n-th thing that it changes; whether it did."""
    harness.fuse.left = step
    try:
        await act(harness)
    except Crash:
        return True
    finally:
        harness.fuse.left = None
    return False


@pytest.mark.parametrize("act", [first, takeover])
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "coordination lost"])
async def test_a_crash_at_any_step_leaves_one_home_and_the_same_again_finishes_it(
    act: Act, lost: bool
) -> None:
    step, died = 0, True
    while died:
        harness = await a_harness()
        if act is takeover:
            await first(harness)
        died = await cut_off(harness, act, step)
        if lost:
            harness.coordination.lose()
            await rebuild(harness)
            # The node that a rebuild counts as alive for a while does not come back.
            hold(harness, A, held=False)
        homes = QueueHomes(harness.coordination, harness.streams)
        there = await homes.find("acme")
        if not died:
            # Who was told so has it, whatever was lost since.
            assert there is not None
            assert there.node_id == (A if act is first else B)
        again = await act(harness)
        assert again.noted
        terms = await objects(harness)
        assert terms[max(terms)] == again.node_id == (A if act is first else B)
        assert again.term == max(terms)
        step += 1
    assert step > 4


async def test_an_answer_that_was_lost_is_heard_by_the_same_request_again() -> None:
    for fault in (Fault.LOST_APPLIED, Fault.UNAVAILABLE):
        harness = await a_harness()
        await first(harness)
        harness.coordination.faults = [fault]
        with pytest.raises(Unavailable):
            await takeover(harness)
        home = await takeover(harness)
        assert (home.term, home.node_id) == (2, B)
        assert await objects(harness) == {1: A, 2: B}


async def test_an_exec_that_arrives_late_takes_nothing_from_a_home_that_is_back() -> None:
    """Its lease was gone when the takeover looked, and is held when the EXEC arrives."""
    harness = await a_harness()
    await first(harness)
    harness.coordination.faults = [Fault.LOST_LATE]
    with pytest.raises(Unavailable):
        await takeover(harness)
    hold(harness, A, held=True)
    assert harness.coordination.arrive() == 0
    with pytest.raises(Fenced):
        await takeover(harness)
    assert (await first(harness)).node_id == A


async def test_an_object_that_says_something_else_of_a_term_gives_the_node_the_next_one() -> None:
    """It was put by a process of before a loss, which the rebuild did not see."""
    harness = await a_harness()
    await first(harness)
    await put(harness, queue_home_key("acme", 2), encode_home_object(HomeObject("acme", 2, C)))
    harness.coordination.write(
        Changes({redis_key("acme"): encode_home(HOME._replace(term=2, noted=False))})
    )
    home = await first(harness)
    assert (home.term, home.node_id) == (3, A)
    assert await objects(harness) == {1: A, 2: C, 3: A}


async def test_without_the_guard_a_term_has_two_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await a_harness()
    await first(harness)
    await put(harness, queue_home_key("acme", 2), encode_home_object(HomeObject("acme", 2, C)))
    harness.coordination.write(
        Changes({redis_key("acme"): encode_home(HOME._replace(term=2, noted=False))})
    )
    remove(monkeypatch, "the term of a home of queues", noted)
    home = await first(harness)
    assert (home.term, home.node_id, home.noted) == (2, A, True)
    assert (await objects(harness))[2] == C


# Losses


async def test_after_a_loss_the_newest_home_is_back_and_no_other_node_becomes_it() -> None:
    harness = await a_harness()
    await first(harness)
    await takeover(harness)
    harness.coordination.lose()

    done = await rebuild(harness)

    assert (done["queue_homes"], done["unreadable_queue_homes"]) == (1, 0)
    back = await QueueHomes(harness.coordination, harness.streams).find("acme")
    assert back == QueueHome("acme", 3, B, None, noted=True, generation=1)
    asked_by_another = await Homes(harness.context).settle("acme", asked(C))
    assert asked_by_another.node_id == B
    there = await Homes(harness.context).settle("acme", asked(B))
    assert there == QueueHome("acme", 3, B, "b:1", noted=True, generation=1)


async def test_homes_of_many_tenants_come_back_in_several_steps() -> None:
    harness = await a_harness()
    tenants = [f"tenant-{n:02d}" for n in range(20)]
    for tenant in tenants:
        await Homes(harness.context).settle(tenant, asked(A))
    harness.coordination.lose()
    assert (await rebuild(harness))["queue_homes"] == 20
    homes = QueueHomes(harness.coordination, harness.streams)
    for tenant in tenants:
        home = await homes.find(tenant)
        assert home is not None
        assert home.node_id == A


async def test_a_home_that_cannot_be_read_is_nobody_s_until_an_operator_has_looked() -> None:
    harness = await a_harness()
    await first(harness)
    await put(harness, queue_home_key("acme", 2), b"{}")
    harness.coordination.lose()

    done = await rebuild(harness)

    assert (done["queue_homes"], done["unreadable_queue_homes"]) == (0, 1)
    with pytest.raises(Corrupt):
        await Homes(harness.context).settle("acme", asked(B))


async def test_homes_that_an_older_coordination_knows_are_discarded_by_a_rebuild() -> None:
    harness = await a_harness()
    await first(harness)
    await put(harness, queue_home_key("acme", 2), encode_home_object(HomeObject("acme", 2, B)))
    harness.coordination.write(Changes({"bottomless:generation": None}))

    await rebuild(harness)

    back = await QueueHomes(harness.coordination, harness.streams).find("acme")
    assert back is not None
    assert (back.term, back.node_id) == (3, B)


async def test_a_rebuild_that_somebody_else_carried_out_writes_no_home_any_more() -> None:
    harness = await a_harness()
    await first(harness)
    harness.coordination.lose()
    step = await a_step(harness.coordination, 1)
    await restore_homes(harness.context, "", step)
    await agree(harness, 1)
    with pytest.raises(Unavailable):
        await restore_homes(harness.context, "", step)


async def test_an_older_copy_of_coordination_is_noticed_before_a_home_serves_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await a_harness()
    await first(harness)
    copy = harness.coordination.copy()
    await takeover(harness)
    harness.coordination.put_back(copy)

    with pytest.raises(Unavailable) as refused:
        await first(harness)

    assert refused.value.code is Code.COORDINATION_REGRESSED
    remove(monkeypatch, "the look at newer homes of queues", lambda *_: None)
    assert (await first(harness)).node_id == A
