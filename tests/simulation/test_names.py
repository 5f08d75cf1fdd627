"""Names in any order of questions, answers and deletions: see names.py."""

from simulation.names import play_names


def test_nobody_is_told_what_a_name_has_not_meant_for_longer_than_it_may_be_believed() -> None:
    """Of the first ten seeds eight failed before callers who join another's question, and answers that
    come too late, were thought of."""
    assert sum(play_names(seed) for seed in range(1, 21)) > 2_000
