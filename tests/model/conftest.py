"""A seed of a model tells the same story in each process."""

from support.same_examples import read_nothing_in_sources

read_nothing_in_sources()
