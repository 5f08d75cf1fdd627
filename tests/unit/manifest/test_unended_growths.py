"""A growth counts as long as this process looks at it."""

from bottomless_server.manifest.common.unended_growths import UnendedGrowths


def test_the_oldest_growth_counts_until_it_ends() -> None:
    growths = UnendedGrowths()
    assert growths.oldest_ms(5_000, 0) == 0
    growths.note("a", 1_000, 0)
    growths.note("b", 3_000, 0)
    assert growths.oldest_ms(5_000, 0) == 4_000
    growths.end("a")
    assert growths.oldest_ms(5_000, 0) == 2_000


def test_what_another_process_may_have_ended_does_not_count() -> None:
    growths = UnendedGrowths()
    growths.note("a", 1_000, 0)
    assert growths.oldest_ms(61_000, 60_000) == 60_000
    assert growths.oldest_ms(601_000, 600_000) == 0
