"""Cuts: by size, by age, on drain; every byte once."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.uploader.core.cutter import (
    SEEN_COUNT_MAX,
    ChunksFetched,
    CommitSeen,
    Cut,
    Cutter,
    Fetch,
    Measure,
    Wait,
)


def a_commit(next_offset: int, log_end: int, epoch: int = 1) -> CommitSeen:
    return CommitSeen(epoch, next_offset, log_end, target_bytes=1_000, max_age_ms=500)


def fetched(first: int, next_offset: int, size: int, log_end: int) -> ChunksFetched:
    return ChunksFetched(first, next_offset, size, log_end)


def a_cutter(published_next: int = 0) -> Cutter:
    cutter = Cutter()
    cutter.restart(published_next)
    return cutter


def cut(cutter: Cutter, now: int) -> Cut:
    decision = cutter.decide(now)
    assert isinstance(decision, Cut)
    cutter.cut_taken()
    return decision


def test_without_commits_there_is_nothing_to_wait_for() -> None:
    assert a_cutter().decide(now=0) == Wait(None)


def test_a_young_and_small_tail_waits_until_its_first_commit_is_old_enough() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=50)
    cutter.commit_seen(a_commit(20, log_end=200), now=300)

    assert cutter.decide(now=300) == Wait(550)
    assert cutter.decide(now=549) == Wait(550)
    assert cutter.decide(now=550) == Fetch(0, 1_000)


def test_one_cut_takes_everything_that_is_there_when_its_oldest_commit_is_due() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.commit_seen(a_commit(20, log_end=200), now=400)
    cutter.chunks_fetched(fetched(0, 20, 200, 200))

    assert cut(cutter, now=500) == Cut(0, 20)
    assert cutter.decide(now=500) == Wait(None)


def test_what_was_committed_after_a_cut_has_its_own_age() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.commit_seen(a_commit(20, log_end=200), now=400)
    cutter.chunks_fetched(fetched(0, 10, 100, 100))
    cutter.chunks_fetched(fetched(10, 10, 0, 100))

    assert cut(cutter, now=500) == Cut(0, 10)
    assert cutter.decide(now=500) == Wait(900)


def test_a_full_target_is_cut_at_once() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=2_500), now=0)
    assert cutter.decide(now=0) == Measure(0)
    cutter.measured(fetched(0, 1, 100, 100))

    assert cutter.decide(now=0) == Fetch(0, 1_000)
    cutter.chunks_fetched(fetched(0, 4, 900, 900))
    assert cutter.decide(now=0) == Fetch(4, 100)
    cutter.chunks_fetched(fetched(4, 5, 300, 1_200))
    assert cut(cutter, now=0) == Cut(0, 5)
    assert cutter.decide(now=0) == Fetch(5, 1_000)


def test_less_than_a_target_by_measure_waits_for_its_age() -> None:
    cutter = a_cutter(published_next=90)
    cutter.commit_seen(a_commit(100, log_end=50_000), now=0)
    assert cutter.decide(now=0) == Measure(90)
    cutter.measured(fetched(90, 91, 100, 49_600))

    assert cutter.decide(now=0) == Wait(500)
    assert cutter.decide(now=500) == Fetch(90, 500)


def test_a_new_owner_has_a_new_scale() -> None:
    cutter = a_cutter(published_next=90)
    cutter.commit_seen(a_commit(100, log_end=50_000), now=0)
    cutter.measured(fetched(90, 91, 100, 49_600))
    cutter.commit_seen(a_commit(110, log_end=60_000, epoch=2), now=1)

    assert cutter.decide(now=1) == Measure(90)


def test_a_drain_cuts_what_is_pending_at_once() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.drain()

    assert cutter.decide(now=1) == Fetch(0, 1_000)
    cutter.chunks_fetched(fetched(0, 10, 100, 100))
    assert cut(cutter, now=1) == Cut(0, 10)
    assert not cutter.uncut


def test_a_feed_that_ends_early_cuts_what_it_gave() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.chunks_fetched(fetched(0, 4, 40, 40))
    assert cutter.decide(now=500) == Fetch(4, 60)
    cutter.chunks_fetched(fetched(4, 4, 0, 40))

    assert cut(cutter, now=500) == Cut(0, 4)
    assert cutter.uncut


def test_after_a_restart_what_was_cut_but_not_applied_is_due_at_once() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.chunks_fetched(fetched(0, 10, 100, 100))
    cut(cutter, now=500)
    cutter.restart(0)

    assert cutter.decide(now=501) == Fetch(0, 1_000)


def test_a_restart_further_on_forgets_what_others_published() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.restart(10)

    assert cutter.decide(now=1_000) == Wait(None)


def test_an_older_word_of_the_same_commit_changes_no_age() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(10, log_end=100), now=0)
    cutter.commit_seen(a_commit(10, log_end=100), now=400)

    assert cutter.decide(now=400) == Wait(500)


def test_a_stuck_stream_remembers_a_bounded_number_of_commits() -> None:
    cutter = a_cutter()
    for n in range(10 * SEEN_COUNT_MAX):
        cutter.commit_seen(a_commit(n + 1, log_end=n), now=n * 100)
    cutter.check()

    assert cutter.decide(now=500) == Fetch(0, 1_000)


def test_a_stuck_stream_that_begins_again_after_each_part_of_what_was_due_has_one_mark_of_it() -> (
    None
):
    """Uploads fail again and again under a stream that grows: found by chaos."""
    cutter = a_cutter()
    for n in range(10 * SEEN_COUNT_MAX):
        cutter.commit_seen(a_commit(10 * n + 10, log_end=n + 1), now=n * 100)
    for end in (5, 4, 3):
        cutter.chunks_fetched(fetched(0, end, 1_000, end))
        cut(cutter, now=100_000)
        cutter.restart(0)
        assert cutter.decide(now=0) == Fetch(0, 1_000)


def test_what_was_gathered_and_dropped_is_fetched_again() -> None:
    cutter = a_cutter()
    cutter.commit_seen(a_commit(100, 5_000), 0)
    cutter.chunks_fetched(fetched(0, 10, 500, 500))
    assert cutter.decide(0) == Fetch(10, 500)

    cutter.gathered_dropped()
    assert cutter.decide(0) == Fetch(0, 1_000)
    cutter.chunks_fetched(fetched(0, 20, 1_000, 1_000))
    assert cutter.decide(0) == Cut(0, 20)


@given(
    sizes=st.lists(st.integers(8, 700), min_size=1, max_size=40),
    arrivals=st.lists(st.integers(0, 300), min_size=40, max_size=40),
    answers=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    published=st.integers(0, 10),
)
def test_every_chunk_is_cut_once_and_in_time(
    sizes: list[int], arrivals: list[int], answers: list[int], published: int
) -> None:
    """Chunks of one record arrive while cuts are made; the owner answers a varying number of them."""
    published = min(published, len(sizes))
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    cutter, cuts, now, turn = a_cutter(published), list[tuple[int, int]](), 0, 0

    def serve(first: int, max_bytes: int) -> ChunksFetched:
        # Whole chunks up to max_bytes, at least one; now and then fewer than there is room for.
        count = 1
        while first + count < committed and (
            sum(sizes[first : first + count + 1]) <= max_bytes
            and count != answers[turn % len(answers)]
        ):
            count += 1
        return fetched(
            first, first + count, sum(sizes[first : first + count]), ends[first + count - 1]
        )

    for committed in range(1, len(sizes) + 1):
        now += arrivals[committed - 1]
        cutter.commit_seen(a_commit(committed, ends[committed - 1]), now)
        while not isinstance(decision := cutter.decide(now), Wait):
            turn += 1
            match decision:
                case Measure(first):
                    cutter.measured(serve(first, 1))
                case Fetch(first, max_bytes):
                    assert first + 1 <= committed
                    cutter.chunks_fetched(serve(first, max_bytes))
                case Cut(first, next_offset):
                    cuts.append((first, next_offset))
                    size = sum(sizes[first:next_offset])
                    assert size < 1_000 + max(sizes)
                    cutter.cut_taken()
        uncut = sum(sizes[cuts[-1][1] if cuts else published : committed])
        assert uncut < 1_000
        assert decision.until is None or decision.until > now

    cutter.drain()
    while not isinstance(decision := cutter.decide(now), Wait):
        if isinstance(decision, Fetch):
            cutter.chunks_fetched(serve(*decision))
        elif isinstance(decision, Cut):
            cuts.append(decision)
            cutter.cut_taken()
    assert [first for first, _ in cuts] == [published, *(end for _, end in cuts)][: len(cuts)]
    assert not cuts or cuts[-1][1] == len(sizes)
