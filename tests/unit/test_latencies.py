"""The times that the proxy before an object store makes requests take: they are what is said."""

import random
from statistics import NormalDist

import pytest
from support.latencies import EXPRESS, STANDARD, STORES, Latency


@pytest.mark.parametrize(
    ("latency", "p50_ms", "p99_ms"), [(STANDARD["PUT"], 100, 195), (EXPRESS["PUT"], 6, 20)]
)
def test_the_quantiles_of_a_store_are_exactly_what_is_said(
    latency: Latency, p50_ms: float, p99_ms: float
) -> None:
    assert latency.quantile(0.5) == pytest.approx(p50_ms, rel=1e-12)
    assert latency.quantile(0.99) == pytest.approx(p99_ms, rel=1e-12)


@pytest.mark.parametrize("latency", [one for store in STORES.values() for one in store.values()])
def test_times_grow_with_the_part_and_have_no_jump(latency: Latency) -> None:
    parts = [part / 1000 for part in range(1, 1000)]
    times = [latency.quantile(part) for part in parts]
    assert times == sorted(times)
    assert times[0] > 0
    # Log-normal: logarithms are as far apart as the normal quantiles are.
    assert latency.quantile(0.01) == pytest.approx(latency.p50_ms**2 / latency.p99_ms)
    assert latency.quantile(NormalDist().cdf(1)) ** 2 == pytest.approx(
        latency.p50_ms * latency.quantile(NormalDist().cdf(2))
    )


class Told(random.Random):
    """Chance that gives what it is told."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def random(self) -> float:
        return self.part


def test_a_draw_is_the_quantile_of_what_chance_gives() -> None:
    latency = STANDARD["PUT"]
    assert latency.draw(Told(0.99)) == pytest.approx(195)
    assert 0 < latency.draw(Told(0.0)) < latency.draw(Told(1 - 2**-53)) < 60_000


def test_a_seed_draws_the_same_times_again() -> None:
    def times(seed: str) -> list[float]:
        chance = random.Random(seed)
        return [EXPRESS["PUT"].draw(chance) for _ in range(20)]

    assert times("one") == times("one") != times("another")
