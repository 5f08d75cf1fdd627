"""What metrics say, for tests: each sample by its name and labels."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

Shown = dict[tuple[object, ...], float]


def samples(families: Iterable[Metric]) -> Shown:
    """Every sample: its name and then each label as a pair, in the order of their names."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
