"""What every coordination store promises."""

import asyncio

import pytest

from bottomless.errors import Fenced, NotFound
from bottomless_server.coordination.base import (
    Changes,
    Coordination,
    CoordinationConflict,
    Due,
    Hold,
    IndexFull,
    Member,
    Room,
    Values,
)
from contracts.conftest import Shared

QUEUE = "queue"


@pytest.fixture
def coordination(shared: Shared) -> Coordination:
    return shared.coordination


async def write(coordination: Coordination, **values: bytes | None) -> None:
    await coordination.transact(list(values) or ["none"], lambda _: (Changes(values), None))


async def queue(coordination: Coordination, *members: tuple[bytes, int]) -> None:
    changes = Changes(queued=[Due(QUEUE, member, due_at) for member, due_at in members])
    await coordination.transact(["none"], lambda _: (changes, None))


async def test_what_was_never_written_is_none(coordination: Coordination) -> None:
    assert await coordination.get("a") is None


async def test_a_transaction_sees_the_values_and_writes_all_it_decides(
    coordination: Coordination,
) -> None:
    await write(coordination, a=b"1", b=b"\x00\xff")
    seen: list[dict[str, bytes | None]] = []

    def change(values: Values) -> tuple[Changes, str]:
        seen.append(dict(values))
        return Changes({"a": None, "c": b"3"}, [Due(QUEUE, b"m", 7)]), "written"

    told = await coordination.transact(["a", "b", "c"], change)

    assert seen == [{"a": b"1", "b": b"\x00\xff", "c": None}]
    assert told == "written"
    assert [await coordination.get(key) for key in "abc"] == [None, b"\x00\xff", b"3"]
    assert await coordination.due(QUEUE, 7, 10) == [Due(QUEUE, b"m", 7)]


async def test_what_a_change_raises_passes_and_nothing_is_written(
    coordination: Coordination,
) -> None:
    await write(coordination, a=b"1")

    def change(values: Values) -> tuple[Changes, None]:
        raise Fenced("a newer owner exists")

    with pytest.raises(Fenced):
        await coordination.transact(["a"], change)
    await write(coordination, b=b"2")
    assert await coordination.get("a") == b"1"


async def test_a_change_is_asked_again_when_others_were_faster(shared: Shared) -> None:
    await write(shared.coordination, a=b"1")
    seen: list[bytes | None] = []

    def change(values: Values) -> tuple[Changes, bytes | None]:
        seen.append(values["a"])
        if len(seen) < 3:
            shared.interfere("a", f"theirs {len(seen)}".encode())
        return Changes({"a": b"mine", "b": b"mine"}), values["a"]

    told = await shared.coordination.transact(["a"], change)

    assert told == b"theirs 2", "the value is that of the decision that was written"
    assert seen == [b"1", b"theirs 1", b"theirs 2"]
    assert await shared.coordination.get("a") == b"mine"


async def test_the_same_value_written_again_is_a_change(shared: Shared) -> None:
    await write(shared.coordination, a=b"1")

    def change(values: Values) -> tuple[Changes, None]:
        shared.interfere("a", b"1")
        return Changes({"a": b"mine"}), None

    with pytest.raises(CoordinationConflict):
        await shared.coordination.transact(["a"], change, attempts=1)


async def test_when_others_are_always_faster_nothing_is_written(shared: Shared) -> None:
    calls: list[int] = []

    def change(values: Values) -> tuple[Changes, None]:
        calls.append(1)
        shared.interfere("a", b"theirs")
        return Changes({"a": b"mine", "b": b"mine"}, [Due(QUEUE, b"m", 1)]), None

    with pytest.raises(CoordinationConflict):
        await shared.coordination.transact(["a"], change, attempts=4)

    assert len(calls) == 4
    assert await shared.coordination.get("a") == b"theirs"
    assert await shared.coordination.get("b") is None
    assert await shared.coordination.due(QUEUE, 9, 9) == []


async def test_a_change_to_a_key_that_is_not_watched_is_no_conflict(shared: Shared) -> None:
    def change(values: Values) -> tuple[Changes, None]:
        shared.interfere("b", b"theirs")
        return Changes({"a": b"mine"}), None

    await shared.coordination.transact(["a"], change, attempts=1)
    assert await shared.coordination.get("a") == b"mine"


async def test_deciding_to_write_nothing_still_finds_out_that_others_wrote(
    shared: Shared,
) -> None:
    def change(values: Values) -> tuple[Changes, None]:
        shared.interfere("a", b"theirs")
        return Changes(), None

    with pytest.raises(CoordinationConflict):
        await shared.coordination.transact(["a"], change, attempts=2)


async def test_no_update_is_lost_among_many_at_the_same_time(coordination: Coordination) -> None:
    def add_one(values: Values) -> tuple[Changes, None]:
        return Changes({"a": b"%d" % (int(values["a"] or 0) + 1)}), None

    await asyncio.gather(*(coordination.transact(["a"], add_one, 100) for _ in range(20)))

    assert await coordination.get("a") == b"20"


async def test_a_lease_is_held_by_one_and_renewed_by_the_same(coordination: Coordination) -> None:
    assert await coordination.hold("lease", b"me", 60_000) is Hold.TAKEN
    assert await coordination.hold("lease", b"me", 60_000) is Hold.RENEWED
    assert await coordination.hold("lease", b"you", 60_000) is Hold.REFUSED
    assert await coordination.get("lease") == b"me"


async def test_a_lease_that_was_not_held_in_between_is_taken_and_not_renewed(
    shared: Shared,
) -> None:
    """Whoever held it before may have lost everything that it stood for, and has to hear of it."""
    coordination = shared.coordination
    await coordination.hold("lease", b"me", 30_000)
    shared.expire("lease")
    assert await coordination.hold("lease", b"me", 60_000) is Hold.TAKEN

    await coordination.release("lease", b"me")
    assert await coordination.hold("lease", b"me", 60_000) is Hold.TAKEN
    assert await coordination.hold("lease", b"me", 60_000) is Hold.RENEWED


async def test_a_lease_that_ran_out_reads_as_absent_and_may_be_taken(shared: Shared) -> None:
    coordination = shared.coordination
    await coordination.hold("lease", b"me", 30_000)
    shared.expire("lease")

    assert await coordination.get("lease") is None
    seen: list[bytes | None] = []

    def change(values: Values) -> tuple[Changes, None]:
        seen.append(values["lease"])
        return Changes(), None

    await coordination.transact(["lease"], change)
    assert seen == [None]
    assert await coordination.hold("lease", b"you", 60_000)
    assert not await coordination.hold("lease", b"me", 60_000)


async def test_a_lease_that_runs_out_during_a_transaction_is_a_conflict(shared: Shared) -> None:
    await shared.coordination.hold("lease", b"me", 30_000)
    seen: list[bytes | None] = []

    def change(values: Values) -> tuple[Changes, None]:
        seen.append(values["lease"])
        if values["lease"] is not None:
            shared.expire("lease")
        return Changes({"a": b"1"}), None

    await shared.coordination.transact(["lease"], change)
    assert seen == [b"me", None]


async def test_it_is_told_how_long_leases_still_run(shared: Shared) -> None:
    coordination = shared.coordination
    await coordination.hold("over", b"me", 30_000)
    shared.expire("over")
    await coordination.hold("first", b"me", 60_000)
    await coordination.hold("second", b"you", 600_000)

    first, nobodys, over, second = await coordination.remaining(
        ["first", "nobody's", "over", "second"]
    )

    assert (nobodys, over) == (None, None)
    assert first is not None
    assert second is not None
    assert 0 < first <= 60_000 < second <= 600_000
    assert await coordination.remaining([]) == []


async def test_a_lease_that_is_renewed_runs_from_then_on(coordination: Coordination) -> None:
    await coordination.hold("lease", b"me", 5_000)
    await coordination.hold("lease", b"me", 600_000)

    (left,) = await coordination.remaining(["lease"])

    assert left is not None
    assert 5_000 < left <= 600_000


async def test_only_the_holder_gives_a_lease_up(coordination: Coordination) -> None:
    await coordination.hold("lease", b"me", 60_000)

    await coordination.release("lease", b"you")
    assert await coordination.get("lease") == b"me"
    await coordination.release("lease", b"me")
    assert await coordination.get("lease") is None
    await coordination.release("lease", b"me")


async def test_what_is_due_comes_earliest_first_and_bounded(coordination: Coordination) -> None:
    late = 1_800_000_000_123
    await queue(coordination, (b"c", 3), (b"a", 1), (b"b", 1), (b"late", late))

    assert await coordination.due(QUEUE, 0, 10) == []
    assert await coordination.due(QUEUE, 3, 2) == [Due(QUEUE, b"a", 1), Due(QUEUE, b"b", 1)]
    assert (await coordination.due(QUEUE, late, 10))[-1] == Due(QUEUE, b"late", late)
    assert await coordination.due("nothing", late, 10) == []


async def test_a_member_queued_again_takes_the_later_time(coordination: Coordination) -> None:
    await queue(coordination, (b"up", 5), (b"down", 5))
    await queue(coordination, (b"up", 9), (b"down", 2))

    assert await coordination.due(QUEUE, 9, 10) == [Due(QUEUE, b"down", 5), Due(QUEUE, b"up", 9)]


async def test_a_member_that_is_requeued_becomes_later_whatever_the_time_says(
    coordination: Coordination,
) -> None:
    async def requeue(due_at: int) -> int | None:
        changes = Changes(requeued=[Due(QUEUE, b"m", due_at)])
        await coordination.transact(["none"], lambda _: (changes, None))
        [found] = await coordination.due_at(QUEUE, [b"m"])
        return found

    assert [await requeue(due_at) for due_at in (5, 5, 1, 20)] == [5, 6, 7, 20]
    [read] = await coordination.due(QUEUE, 99, 9)
    assert await requeue(3) == 21
    await coordination.settle([read])
    assert await coordination.due_at(QUEUE, [b"m"]) == [21]


async def test_settling_spares_what_was_queued_again_for_later(coordination: Coordination) -> None:
    await queue(coordination, (b"a", 1), (b"b", 1), (b"c", 1))
    dues = await coordination.due(QUEUE, 1, 2)
    await queue(coordination, (b"a", 8))

    await coordination.settle([*dues, Due(QUEUE, b"gone", 1), Due("other", b"a", 1)])
    await coordination.settle([])

    assert await coordination.due(QUEUE, 9, 10) == [Due(QUEUE, b"c", 1), Due(QUEUE, b"a", 8)]


async def test_a_transaction_settles_as_a_call_of_its_own_does_or_not_at_all(
    coordination: Coordination,
) -> None:
    await queue(coordination, *((b"%04d" % number, 1) for number in range(600)), (b"a", 1))
    dues = await coordination.due(QUEUE, 1, 700)
    await queue(coordination, (b"a", 8))

    def refuse(_: Values) -> tuple[Changes, None]:
        raise NotFound("nothing is written")

    with pytest.raises(NotFound):
        await coordination.transact(["none"], refuse)
    assert await coordination.member_count(QUEUE) == 601
    settled = Changes({"v": b"1"}, [Due(QUEUE, b"again", 5)], settled=dues)
    await coordination.transact(["none"], lambda _: (settled, None))

    assert await coordination.get("v") == b"1"
    assert await coordination.due(QUEUE, 9, 10) == [Due(QUEUE, b"again", 5), Due(QUEUE, b"a", 8)]


async def test_what_is_due_too_late_is_brought_forward(coordination: Coordination) -> None:
    late = 2_000_000_000_123
    await queue(coordination, (b"a", 5), (b"b", 6), (b"c", late), (b"d", late + 1))

    assert await coordination.bring_forward(QUEUE, 5, 2) == [
        Due(QUEUE, b"b", 6),
        Due(QUEUE, b"c", late),
    ]
    assert await coordination.bring_forward(QUEUE, 5, 10) == [Due(QUEUE, b"d", late + 1)]
    assert await coordination.bring_forward(QUEUE, 5, 10) == []
    assert await coordination.bring_forward("nothing", 5, 10) == []

    assert [due.due_at for due in await coordination.due(QUEUE, late, 10)] == [5, 5, 5, 5]


async def test_when_members_are_due_can_be_asked_by_name(coordination: Coordination) -> None:
    await queue(coordination, (b"a", 1), (b"b", 1_800_000_000_123))

    asked = [b"b", b"none", b"a"]
    assert await coordination.due_at(QUEUE, asked) == [1_800_000_000_123, None, 1]
    assert await coordination.due_at("nothing", [b"a"]) == [None]
    assert await coordination.due_at(QUEUE, []) == []
    assert await coordination.member_count(QUEUE) == 2


async def enter(coordination: Coordination, *members: bytes, present: bool = True) -> None:
    changes = Changes(members=[Member("index", member, present) for member in members])
    await coordination.transact(["none"], lambda _: (changes, None))


async def test_an_index_is_read_in_the_order_of_bytes_from_anywhere(
    coordination: Coordination,
) -> None:
    await enter(coordination, b"b", b"a-1", b"a", b"a\x00z", b"\xff", b"B", b"a")

    ordered = [b"B", b"a", b"a\x00z", b"a-1", b"b", b"\xff"]
    assert await coordination.members("index", b"", 10) == ordered
    assert await coordination.members("index", b"a", 2) == [b"a\x00z", b"a-1"]
    assert await coordination.members("index", b"a-", 2) == [b"a-1", b"b"]
    assert await coordination.members("index", b"\xff", 10) == []
    assert await coordination.members("nothing", b"", 10) == []
    assert await coordination.member_count("index") == 6
    assert await coordination.member_count("nothing") == 0


async def test_what_is_taken_out_of_an_index_is_gone(coordination: Coordination) -> None:
    await enter(coordination, b"a", b"b")
    await enter(coordination, b"a", b"never there", present=False)

    assert await coordination.members("index", b"", 10) == [b"b"]


async def test_a_key_that_is_deleted_is_gone_whatever_it_held(coordination: Coordination) -> None:
    changes = Changes({"a": b"1"}, [Due(QUEUE, b"m", 7)], [Member("index", b"m", True)])
    await coordination.transact(["none"], lambda _: (changes, None))

    await write(coordination, **{"a": None, QUEUE: None, "index": None})

    assert await coordination.get("a") is None
    assert await coordination.due(QUEUE, 7, 10) == []
    assert await coordination.members("index", b"", 10) == []


async def test_an_index_changes_with_its_transaction_or_not_at_all(shared: Shared) -> None:
    def change(values: Values) -> tuple[Changes, None]:
        shared.interfere("a", b"theirs")
        return Changes({"a": b"mine"}, members=[Member("index", b"m", True)]), None

    with pytest.raises(CoordinationConflict):
        await shared.coordination.transact(["a"], change, attempts=2)

    assert await shared.coordination.members("index", b"", 10) == []


def entering(member: bytes) -> Changes:
    return Changes({"a": b"mine"}, members=[Member("index", member, True)])


async def test_a_member_without_room_in_its_index_changes_nothing(
    coordination: Coordination,
) -> None:
    await enter(coordination, b"first", b"second")
    with pytest.raises(IndexFull):
        await coordination.transact(
            ["a"], lambda _: (entering(b"third"), None), room=Room("index", b"third", 2)
        )
    assert await coordination.get("a") is None
    assert await coordination.member_count("index") == 2
    # What is in already needs no room, and what does not enter neither.
    await coordination.transact(
        ["a"], lambda _: (entering(b"first"), None), room=Room("index", b"first", 1)
    )
    await coordination.transact(
        ["b"], lambda _: (Changes({"b": b"1"}), None), room=Room("index", b"third", 2)
    )
    assert await coordination.get_many(["a", "b"]) == [b"mine", b"1"]


async def test_members_that_enter_at_once_find_room_for_as_many_as_there_may_be(
    coordination: Coordination,
) -> None:
    members = [f"{number:02}".encode() for number in range(9)]

    async def one(member: bytes) -> bool:
        try:
            await coordination.transact(
                [member.decode()],
                lambda _: (Changes(members=[Member("index", member, True)]), None),
                100,
                Room("index", member, 5),
            )
        except IndexFull:
            return False
        return True

    entered = await asyncio.gather(*map(one, members))
    assert sum(entered) == 5
    assert await coordination.member_count("index") == 5


async def test_a_change_of_another_index_is_no_conflict(coordination: Coordination) -> None:
    """Nor is it one to enter what is there: each commit of each consumer does."""
    await enter(coordination, b"m")
    begun, ended = asyncio.Event(), asyncio.Event()

    async def others() -> None:
        await begun.wait()
        await enter(coordination, b"m")
        changes = Changes(members=[Member("other", b"m", True)])
        await coordination.transact(["none"], lambda _: (changes, None))
        ended.set()

    task = asyncio.create_task(others())
    begun.set()
    await coordination.transact(["a"], lambda _: (entering(b"n"), None), 1, Room("index", b"n", 2))
    await ended.wait()
    await task
    assert await coordination.members("index", b"", 10) == [b"m", b"n"]


async def test_several_values_are_read_at_once(coordination: Coordination) -> None:
    await write(coordination, a=b"1", c=b"3")

    assert await coordination.get_many(["c", "b", "a"]) == [b"3", None, b"1"]
    assert await coordination.get_many([]) == []


async def test_what_two_parts_decide_is_written_as_one(coordination: Coordination) -> None:
    mine = Changes({"a": b"1", "b": b"1"}, [Due(QUEUE, b"m", 1)], [Member("index", b"m", True)])
    theirs = Changes({"b": b"2"}, [Due(QUEUE, b"n", 2)])

    await coordination.transact(["a"], lambda _: (mine | theirs, None))

    assert await coordination.get_many(["a", "b"]) == [b"1", b"2"]
    assert [due.member for due in await coordination.due(QUEUE, 9, 9)] == [b"m", b"n"]
    assert await coordination.members("index", b"", 9) == [b"m"]


async def test_a_store_that_keeps_what_it_is_given_passes_its_check(
    coordination: Coordination,
) -> None:
    await coordination.check()


async def test_who_hurries_is_still_answered(coordination: Coordination) -> None:
    await write(coordination, a=b"1")
    coordination.hurry(60)
    await write(coordination, a=b"2")
    assert await coordination.get("a") == b"2"


async def test_the_clock_of_the_store_goes_on(coordination: Coordination) -> None:
    before = await coordination.clock()

    assert 0 < before <= await coordination.clock()


async def test_a_store_says_how_full_it_is(shared: Shared) -> None:
    """Used memory moves a little by itself, so only a share of it is compared."""
    assert await shared.coordination.fullness() == 0.0
    for share in (0.5, 0.9):
        shared.fill(share)
        assert share * 0.8 < await shared.coordination.fullness() < share * 1.2
    shared.fill(0)
    assert await shared.coordination.fullness() == 0.0


async def test_a_run_of_the_store_has_one_name_and_grows_older(shared: Shared) -> None:
    first = await shared.coordination.run()
    again = await shared.coordination.run()
    assert first.run_id
    assert again.run_id == first.run_id
    assert again.up_ms >= first.up_ms >= 0
