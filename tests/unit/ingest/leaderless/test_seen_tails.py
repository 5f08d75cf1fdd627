"""What this process has seen of tails never goes back, and is bounded."""

from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.leaderless.tail import UNSEEN, new_tail
from unit.ingest.leaderless.making import IDS

TAIL = new_tail(generation=0, created_at=0, max_age_ms=1)._replace(next_offset=9)


def test_the_highest_that_was_seen_stays() -> None:
    seen = SeenTails()
    assert seen.of(IDS[0]) == UNSEEN
    seen.note(IDS[0], TAIL)
    seen.note(IDS[0], TAIL._replace(next_offset=5))

    assert seen.of(IDS[0]).next_offset == 9


def test_the_one_that_was_written_longest_ago_makes_room() -> None:
    seen = SeenTails(count_max=2)
    for stream in (0, 1, 0, 2):
        seen.note(IDS[stream], TAIL)

    assert [seen.of(IDS[stream]) == UNSEEN for stream in range(3)] == [False, True, False]
