"""The accounts of queues that are emptied, and of those whose messages are redriven, notice what may not be."""

import pytest
from support.queue_account import Left, Wrong

from simulation.queue_emptied import StormAccount
from simulation.queue_world import EMPTIED, MOVED, PLANS

VALUE = "one"


def account() -> StormAccount:
    made = StormAccount(PLANS, {VALUE: {"value": VALUE}}, EMPTIED, MOVED)
    for name in (EMPTIED, MOVED[0]):
        made.queues[name].asked.add(VALUE)
    return made


def stored(queue: str, message_id: str = "a") -> dict[str, object]:
    return {"queue_id": queue, "messages": [{"sequence": 0, "message_id": message_id}]}


def delivered(message_id: str) -> dict[str, object]:
    return {"value": VALUE, "message_id": message_id, "deliveries": 1, "priority": 0}


def test_what_was_purged_for_certain_is_over_and_need_not_have_ended() -> None:
    queue = account().emptied
    queue.store(stored("first"), [VALUE])
    with pytest.raises(Wrong, match="is lost"):
        queue.check_ends(None, {}, {}, ())
    queue.end(queue.begin(), done=True)
    assert VALUE in queue.over
    queue.check_ends(None, {}, {}, ())


def test_a_purge_that_was_refused_takes_nothing() -> None:
    queue = account().emptied
    queue.store(stored("first"), [VALUE])
    queue.end(queue.begin(), done=False)
    assert VALUE not in queue.over
    with pytest.raises(Wrong, match="is lost"):
        queue.check_ends(None, {}, {}, ())


def test_another_queue_of_the_name_follows_a_deletion_only() -> None:
    queue = account().emptied
    queue.note_id("first")
    queue.end(queue.begin(), done=True)
    with pytest.raises(Wrong, match="was first, and is second"):
        queue.note_id("second")
    queue.end(queue.begin(), done=True, deleted=True)
    queue.note_id("second")
    assert queue.buried == {"first"}
    with pytest.raises(Wrong, match="was second, and is third"):
        queue.note_id("third")


def test_a_message_that_was_redriven_has_another_id_and_is_done_with_once() -> None:
    made = account()
    tasks, failed = made.moved
    tasks.store(stored("tasks", "a"), [VALUE])
    with pytest.raises(Wrong, match="is lost"):
        made.check_moved(())
    for queue, message_id in ((tasks, "a"), (failed, "b"), (tasks, "c")):
        queue.deliver(delivered(message_id))
    tasks.ask_for_ack(delivered("c"))
    tasks.acked(delivered("c"))
    assert VALUE in failed.over
    made.check_moved(())


def test_what_a_bound_dropped_is_a_dead_letter_of_that_queue_alone() -> None:
    made = account()
    made.emptied.store(stored("first"), [VALUE])
    dropped = Left(VALUE, EMPTIED, "max-length", "a")
    made.check_ends(EMPTIED, None, [dropped])
    mails = made.queues["mails"]
    mails.asked.add(VALUE)
    with pytest.raises(Wrong, match="there is no bound"):
        made.check_ends("mails", None, [dropped._replace(queue="mails")])
