"""One round: what is answered, and what is durable then, whatever fails on the way."""

from collections.abc import Callable
from typing import Final

import pytest
from support.guards import remove
from support.queue_changes import (
    Ack,
    CreateQueue,
    Delete,
    GiveBack,
    Publish,
    PublishRecords,
    Take,
    wanted,
)

from bottomless.errors import Code, Unavailable
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import QueueRow
from bottomless_server.queues.ports import FIRST_POSITION
from bottomless_server.queues.rounds.round_bodies import ALONE_SIZE
from bottomless_server.queues.rounds.work import Asked
from unit.queues.round_harness import QUEUE, RoundHarness, told

FULL: Final = ("storage-full", "none")
FAILED: Final = ("storage-failed", "none")
UNKNOWN: Final = ("storage-failed", "unknown")
STORED: Final = ("storage-failed", "committed")


@pytest.fixture
def rounds() -> RoundHarness:
    return RoundHarness()


def test_changes_see_those_before_them_in_their_round(rounds: RoundHarness) -> None:
    answers = rounds.round(
        Publish(QUEUE, b"one"), Take(QUEUE), Publish(QUEUE, b"two"), Ack(QUEUE, [0]), Take(QUEUE)
    )
    assert answers == [0, [0], 1, 1, [1]]
    rounds.check()


def test_what_is_answered_is_durable(rounds: RoundHarness) -> None:
    rounds.round(Publish(QUEUE, b"one"), Publish(QUEUE, b"two"))
    rounds.do(Publish(QUEUE, b"three"))
    rounds.files.lose_power()
    assert rounds.ready == [b"one", b"two", b"three"]
    assert [row.size for row in rounds.ledger.files()] == [FIRST_POSITION + 11]
    rounds.check()


def test_a_refused_change_leaves_nothing_and_the_others_are_done(rounds: RoundHarness) -> None:
    answers = rounds.round(
        Publish(QUEUE, b"one"), Publish(QUEUE, b"refused", refused=True), Publish(QUEUE, b"two")
    )
    assert answers == [0, ("overloaded", "none"), 1]
    assert rounds.ready == [b"one", b"two"]
    rounds.check()


def test_a_bug_in_a_change_is_that_changes_alone(rounds: RoundHarness) -> None:
    answers = rounds.round(Publish(QUEUE, b"bug", bug=True), Publish(QUEUE, b"one"))
    assert answers == [AssertionError, 0]
    assert rounds.ready == [b"one"]
    rounds.check()


def test_who_has_hung_up_takes_nothing(rounds: RoundHarness) -> None:
    rounds.do(Publish(QUEUE, b"one"))
    gone = Take(QUEUE)
    ended = rounds.writer.round([Asked(gone, lambda: False), *wanted(Take(QUEUE))])
    assert ended is not None
    assert (told(ended), gone.asked_count) == ([None, [0]], 0)


def test_a_round_says_who_may_wake_and_when_something_is_due(rounds: RoundHarness) -> None:
    ended = rounds.writer.round(
        wanted(Publish(QUEUE, b"a"), Publish(QUEUE, b"b"), Publish(QUEUE, b"c", refused=True))
    )
    assert ended is not None
    assert (ended.made_ready, ended.next_due, ended.needs_upkeep) == ({QUEUE: 2}, None, False)
    ended = rounds.writer.round(wanted(Take(QUEUE, limit=1)))
    assert ended is not None
    assert ended.next_due == rounds.now + 30_000
    ended = rounds.writer.round(wanted(Delete(QUEUE)))
    assert ended is not None
    assert ended.needs_upkeep


def test_time_never_goes_back(rounds: RoundHarness) -> None:
    rounds.now = 5_000
    rounds.do(Publish(QUEUE, b"one"))
    rounds.now = 3_000
    rounds.do(Publish(QUEUE, b"two"))
    row = rounds.ledger.queue(QUEUE)
    assert row is not None
    assert [each.item.published_at for each in rounds.ledger.page(row.inside, 0, 9)] == [5_000] * 2


def test_while_the_clock_is_not_believed_nothing_is_done(rounds: RoundHarness) -> None:
    rounds.skew = Unavailable("the clock jumped", code=Code.CLOCK_SKEW)
    assert rounds.round(Publish(QUEUE, b"one"), Take(QUEUE)) == [("clock-skew", "none")] * 2
    rounds.skew = None
    assert rounds.do(Publish(QUEUE, b"one")) == 0
    rounds.check()


# Files


def test_a_file_at_its_bound_is_sealed_and_the_next_one_begun() -> None:
    rounds = RoundHarness(file_bytes_max=FIRST_POSITION + 10)
    rounds.round(Publish(QUEUE, b"12345"), Publish(QUEUE, b"67890"))
    rounds.round(Publish(QUEUE, b"abc"), Publish(QUEUE, b"x" * 9), Publish(QUEUE, b"y"))
    files = [(row.number, row.size, row.state) for row in rounds.ledger.files()]
    assert files == [
        (0, 74, FileState.SEALED),
        (1, 77, FileState.OPEN),
    ], "a round makes one file at most, and what comes after it goes there"
    assert rounds.ready == [b"12345", b"67890", b"abc", b"x" * 9, b"y"]
    rounds.check()
    rounds.do(Publish(QUEUE, b"z"))
    states = [row.state for row in rounds.ledger.files()]
    assert states == [FileState.SEALED, FileState.SEALED, FileState.OPEN]


def test_a_file_that_gets_its_last_records_from_one_change_is_not_taken_for_an_empty_one() -> None:
    """It is sealed in the round that fills it; its records are entered only after all are placed."""
    rounds = RoundHarness(file_bytes_max=FIRST_POSITION + 10)
    records = {bytes([n]) * 16: [b"12345"] for n in range(3)}
    rounds.do(PublishRecords(QUEUE, records))
    rounds.do(PublishRecords(QUEUE, {bytes([n]) * 16: [b"67890"] for n in range(3, 6)}))
    states = [row.state for row in rounds.ledger.files()]
    assert states == [FileState.SEALED, FileState.OPEN]
    assert rounds.ready == [b"12345"] * 3 + [b"67890"] * 3
    rounds.check()
    rounds = RoundHarness(file_bytes_max=FIRST_POSITION + 10)
    rounds.round(Publish(QUEUE, b"gone"), Ack(QUEUE, [0]))
    rounds.do(PublishRecords(QUEUE, {bytes([n]) * 16: [b"12345"] for n in range(3)}))
    assert [row.state for row in rounds.ledger.files()] == [FileState.SEALED, FileState.OPEN]
    assert rounds.ready == [b"12345"] * 3
    rounds.check()


def test_a_record_above_the_bound_of_a_file_is_stored_all_the_same() -> None:
    rounds = RoundHarness(file_bytes_max=FIRST_POSITION + 10)
    rounds.round(Publish(QUEUE, b"a" * 50), Publish(QUEUE, b"b" * 50))
    assert rounds.ready == [b"a" * 50, b"b" * 50]
    rounds.check()


def test_a_refused_change_takes_the_file_back_that_it_has_begun() -> None:
    rounds = RoundHarness(file_bytes_max=FIRST_POSITION + 10)
    rounds.do(Publish(QUEUE, b"12345"))
    rounds.round(Publish(QUEUE, b"1234567", refused=True), Publish(QUEUE, b"67890"))
    assert [row.number for row in rounds.ledger.files()] == [0]
    assert rounds.ready == [b"12345", b"67890"]
    rounds.check()


def test_a_large_record_has_a_file_of_its_own(rounds: RoundHarness) -> None:
    large = b"l" * ALONE_SIZE
    rounds.do(Publish(QUEUE, b"one"))
    rounds.round(Publish(QUEUE, large), Publish(QUEUE, b"two"))
    files = [(row.number, row.size, row.state) for row in rounds.ledger.files()]
    assert files == [
        (0, FIRST_POSITION + 6, FileState.OPEN),
        (1, FIRST_POSITION + ALONE_SIZE, FileState.SEALED),
    ]
    assert rounds.ready == [b"one", large, b"two"]
    rounds.round(Take(QUEUE), Ack(QUEUE, [1]))
    file = rounds.ledger.file(1)
    assert file is not None
    assert file.state is FileState.DOOMED
    rounds.check()


def test_with_little_room_records_are_refused_and_acknowledgements_are_not(
    rounds: RoundHarness,
) -> None:
    rounds.do(Publish(QUEUE, b"one"))
    rounds.files.free = 1_000
    assert rounds.round(Publish(QUEUE, b"two"), Take(QUEUE), Ack(QUEUE, [0])) == [FULL, [0], 1]
    rounds.check()


# What fails


@pytest.mark.parametrize(("full", "refusal"), [(True, FULL), (False, FAILED)])
@pytest.mark.parametrize("first", [True, False], ids=["a new file", "a file that goes on"])
def test_after_a_short_write_records_are_refused_and_the_rest_is_done(
    rounds: RoundHarness, *, full: bool, refusal: tuple[str, str], first: bool
) -> None:
    if not first:
        rounds.do(Publish(QUEUE, b"before"))
    rounds.files.fail("write", full=full)
    answers = rounds.round(Publish(QUEUE, b"lost"), Take(QUEUE))
    assert answers == [refusal, [] if first else [0]]
    rounds.check()
    rounds.do(Publish(QUEUE, b"after"))
    assert rounds.ready == [b"after"]
    rounds.check()


@pytest.mark.parametrize("first", [True, False], ids=["a new file", "a file that goes on"])
def test_after_a_failed_sync_records_are_refused_and_their_file_is_sealed(
    rounds: RoundHarness, *, first: bool
) -> None:
    if not first:
        rounds.do(Publish(QUEUE, b"before"))
    rounds.files.fail("sync")
    assert rounds.round(Publish(QUEUE, b"lost"), CreateQueue(b"q" * 16, "other"))[0] == FAILED
    rounds.check()
    assert rounds.ledger.queue_named("default", "other") is not None
    rounds.do(Publish(QUEUE, b"after"))
    assert rounds.ready == ([b"after"] if first else [b"before", b"after"])
    states = [row.state for row in rounds.ledger.files()]
    assert states == ([FileState.OPEN] if first else [FileState.SEALED, FileState.OPEN])
    rounds.check()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_file_that_cannot_be_cut_takes_no_more_records(rounds: RoundHarness, call: str) -> None:
    rounds.do(Publish(QUEUE, b"before"))
    rounds.files.fail(call)
    rounds.files.fail("cut")
    assert rounds.do(Publish(QUEUE, b"lost")) == FAILED
    rounds.do(Publish(QUEUE, b"after"))
    assert rounds.ready == [b"before", b"after"]
    assert [row.state for row in rounds.ledger.files()] == [FileState.SEALED, FileState.OPEN]


CALLS: Final = ["begin", "add_messages", "savepoint", "keep", "set_file_size", "next_due"]


@pytest.mark.parametrize("call", CALLS)
def test_a_statement_that_fails_ends_the_round_and_nothing_of_it_is_done(
    rounds: RoundHarness, call: str
) -> None:
    rounds.do(Publish(QUEUE, b"before"))
    rounds.ledger.fail(call, full=call == "add_messages")
    refusal = FULL if call == "add_messages" else FAILED
    assert rounds.round(Publish(QUEUE, b"lost"), Take(QUEUE)) == [refusal] * 2
    rounds.check()
    assert rounds.ready == [b"before"]
    assert rounds.do(Publish(QUEUE, b"after")) == 1


def test_a_round_that_cannot_be_rolled_back_waits_for_the_ledger(rounds: RoundHarness) -> None:
    rounds.ledger.fail("add_messages")
    rounds.ledger.fail("rollback")
    assert rounds.do(Publish(QUEUE, b"lost")) == FAILED
    assert rounds.do(Publish(QUEUE, b"after")) == 0
    rounds.check()


@pytest.mark.parametrize("lands", [True, False])
def test_a_failed_commit_is_answered_with_what_is_true(rounds: RoundHarness, lands: bool) -> None:
    rounds.do(Publish(QUEUE, b"before"))
    rounds.ledger.fail("commit", lands=lands)
    answers = rounds.round(Publish(QUEUE, b"doubtful"), Take(QUEUE, limit=1))
    assert answers == ([1, [0]] if lands else [FAILED, FAILED])
    rounds.check()
    assert rounds.do(Publish(QUEUE, b"after")) == (2 if lands else 1)
    assert rounds.ready == ([b"doubtful", b"after"] if lands else [b"before", b"after"])
    rounds.check()


@pytest.mark.parametrize("lands", [True, False])
def test_while_the_ledger_cannot_be_opened_nothing_is_answered_and_nothing_is_cut(
    rounds: RoundHarness, lands: bool
) -> None:
    rounds.ledger.fail("commit", lands=lands)
    rounds.ledger.fail("reopen", count=2)
    assert rounds.writer.round(wanted(Publish(QUEUE, b"doubtful"))) is None
    assert rounds.writer.in_doubt
    assert b"doubtful" in rounds.files.kept[0]
    with pytest.raises(AssertionError):
        rounds.writer.round(wanted(Take(QUEUE)))
    assert rounds.writer.settle() is None
    ended = rounds.writer.settle()
    assert ended is not None
    assert told(ended) == [0 if lands else FAILED]
    assert not rounds.writer.in_doubt
    rounds.check()


def test_who_cannot_wait_for_the_ledger_hears_that_nobody_knows(rounds: RoundHarness) -> None:
    rounds.ledger.fail("commit", lands=True)
    rounds.ledger.fail("reopen")
    take = Take(QUEUE, pins=True)
    assert rounds.writer.round(wanted(Publish(QUEUE, b"doubtful"), take)) is None
    assert told(rounds.writer.give_up()) == [UNKNOWN, UNKNOWN]
    assert [pin.released for pin in rounds.files.pins] == [True]
    assert rounds.do(Publish(QUEUE, b"late")) == FAILED, "nothing is done on what nobody knows"
    rounds.writer.close(clean=True)
    rounds.ledger.reopen()
    assert not rounds.ledger.store().clean


def test_a_failed_checkpoint_is_as_a_failed_commit(rounds: RoundHarness) -> None:
    rounds.do(Publish(QUEUE, b"one"))
    rounds.ledger.fail("checkpoint")
    assert not rounds.writer.tidy()
    assert rounds.writer.in_doubt
    assert rounds.writer.settle() is not None
    assert rounds.writer.tidy()
    assert rounds.ready == [b"one"]


def test_a_bug_outside_of_changes_is_answered_and_leaves_no_open_round(
    rounds: RoundHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rounds.files, "write", lambda *_, **__: 1 // 0)
        assert rounds.do(Publish(QUEUE, b"lost")) == ("internal", "unknown")
    assert rounds.do(Publish(QUEUE, b"after")) == 0
    rounds.check()


def test_what_a_round_has_written_before_a_bug_is_cut_and_its_pins_are_released(
    rounds: RoundHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.do(Publish(QUEUE, b"before"))
    with monkeypatch.context() as patch:
        patch.setattr(rounds.files, "sync", lambda *_, **__: 1 // 0)
        answers = rounds.round(Publish(QUEUE, b"lost, and longer"), Take(QUEUE, pins=True))
    assert answers == [("internal", "unknown")] * 2
    assert rounds.files.pins[-1].released
    rounds.check()
    with monkeypatch.context() as patch:
        patch.setattr(rounds.ledger, "registry_due", lambda _: 1 // 0)
        assert rounds.do(CreateQueue(b"q" * 16, "other")) == ("internal", "unknown")
    assert rounds.ledger.queue_named("default", "other") is not None, "what is there stays"
    rounds.do(Publish(QUEUE, b"new"))
    assert rounds.ready == [b"before", b"new"]
    rounds.do(Take(QUEUE, pins=True))
    with monkeypatch.context() as patch:
        patch.setattr(rounds.files, "free_bytes", lambda: 1 // 0)
        assert rounds.do(Take(QUEUE)) == ("internal", "unknown")
    assert not rounds.files.pins[-1].released, "it is somebody else's"
    rounds.check()


def test_pins_of_answers_that_nobody_gets_are_released(rounds: RoundHarness) -> None:
    rounds.do(Take(QUEUE, pins=True))
    rounds.files.fail("write")
    rounds.round(Publish(QUEUE, b"lost"), Take(QUEUE, pins=True))
    assert [pin.released for pin in rounds.files.pins] == [False, True, False]
    rounds.ledger.fail("commit")
    rounds.do(Take(QUEUE, pins=True))
    assert rounds.files.pins[-1].released


# The registry


def test_a_queue_is_in_the_registry_before_its_maker_hears_of_it(rounds: RoundHarness) -> None:
    assert rounds.registry.rows.keys() == {QUEUE}
    rounds.do(Delete(QUEUE))
    assert rounds.registry.rows == {}
    rounds.do(CreateQueue(b"q" * 16, "other"))
    assert rounds.ledger.queue(QUEUE) is None, "the row of a deleted queue goes in the next round"


def test_what_is_written_is_not_due_any_more(rounds: RoundHarness) -> None:
    rounds.do(Take(QUEUE))
    assert rounds.ledger.registry_due(9) == []
    rounds.ledger.fail("commit")
    rounds.do(CreateQueue(b"q" * 16, "other"))
    rounds.do(Take(QUEUE))
    assert rounds.ledger.registry_due(9) == []
    assert rounds.registry.rows.keys() == {QUEUE}


def test_a_registry_that_takes_nothing_is_said_and_written_later(rounds: RoundHarness) -> None:
    rounds.registry.fails = True
    other = b"q" * 16
    assert rounds.do(CreateQueue(other, "other")) == STORED
    assert rounds.do(Publish(other, b"early")) == FAILED
    assert rounds.do(Publish(QUEUE, b"one")) == 0, "other queues go on"
    rounds.registry.fails = False
    rounds.do(Take(QUEUE))
    assert rounds.registry.rows.keys() == {QUEUE, other}
    assert rounds.do(Publish(other, b"now")) == 0


def test_an_object_that_cannot_be_made_holds_up_no_other_queue(
    rounds: RoundHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, bad = rounds.registry.write, b"b" * 16

    def only_others(row: QueueRow) -> None:
        assert row.queue_id != bad
        write(row)

    monkeypatch.setattr(rounds.registry, "write", only_others)
    assert rounds.do(CreateQueue(bad, "bad")) == STORED
    assert rounds.do(Publish(bad, b"x")) == FAILED
    assert rounds.do(Publish(QUEUE, b"one")) == 0
    other = b"q" * 16
    rounds.do(CreateQueue(other, "other"))
    assert rounds.registry.rows.keys() == {QUEUE, other}
    assert rounds.do(Publish(other, b"two")) == 0


def test_what_is_written_again_after_a_doubtful_round_is_what_the_ledger_says(
    rounds: RoundHarness,
) -> None:
    rounds.ledger.fail("commit", lands=True)
    rounds.do(Delete(QUEUE))
    assert rounds.registry.rows == {}
    rounds.do(CreateQueue(QUEUE[::-1], "jobs"))
    assert rounds.registry.rows.keys() == {QUEUE[::-1]}


def test_only_an_orderly_stop_leaves_a_clean_ledger(rounds: RoundHarness) -> None:
    assert not rounds.ledger.store().clean
    rounds.writer.close(clean=True)
    rounds.ledger.reopen()
    assert rounds.ledger.store().clean
    again = rounds.open()
    assert again.round(wanted(Take(QUEUE))) is not None
    assert not rounds.ledger.store().clean


# Guards


def nothing(*_: object) -> None:
    return None


def bytes_outlive_a_loss_of_power(rounds: RoundHarness) -> None:
    rounds.do(Publish(QUEUE, b"one"))
    rounds.files.lose_power()
    assert 0 in rounds.files.kept
    assert rounds.ready == [b"one"]


def rows_outlive_a_death(rounds: RoundHarness) -> None:
    assert rounds.do(Publish(QUEUE, b"one")) == 0
    rounds.ledger.reopen()
    assert rounds.ready == [b"one"]


def a_failed_sync_leaves_no_row(rounds: RoundHarness) -> None:
    rounds.files.fail("sync")
    assert rounds.do(Publish(QUEUE, b"one")) == FAILED
    assert rounds.ready == []


def a_commit_in_doubt_is_no_answer(rounds: RoundHarness) -> None:
    rounds.ledger.fail("commit", lands=False)
    if rounds.do(Publish(QUEUE, b"one")) == 0:
        rounds.ledger.reopen()
        assert rounds.ready == [b"one"]


GUARDS: Final[dict[str, tuple[Callable[..., object], Callable[[RoundHarness], None]]]] = {
    "the bytes of a round are durable before its rows": (nothing, bytes_outlive_a_loss_of_power),
    "a round is durable before its answers": (nothing, rows_outlive_a_death),
    "a round whose bytes are not durable is rolled back": (nothing, a_failed_sync_leaves_no_row),
    "a round in doubt is answered after the ledger was opened anew and checkpointed": (
        lambda _, ended: ended,
        a_commit_in_doubt_is_no_answer,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_of_rounds_its_test_fails(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, test = GUARDS[guard]
    test(RoundHarness())
    rounds = RoundHarness()
    remove(monkeypatch, guard, variant)
    with pytest.raises(AssertionError):
        test(rounds)


def test_what_is_given_back_is_ready_again(rounds: RoundHarness) -> None:
    rounds.round(Publish(QUEUE, b"one"), Take(QUEUE))
    rounds.do(GiveBack(QUEUE, [0]))
    assert rounds.ready == [b"one"]
