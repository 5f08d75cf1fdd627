"""When a node believes in its lease, and what counts as a lapse."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.node.core.belief import SLEEP_SECONDS_MIN, Belief, Moment, is_lapse

SECONDS = st.floats(0, 1e6)


def later(moment: Moment, awake: float, asleep: float = 0.0) -> Moment:
    return Moment(moment.monotonic + awake, moment.boot + awake + asleep)


@given(monotonic=SECONDS, boot=SECONDS, awake=st.floats(0, 20), asleep=st.floats(0, 20))
def test_a_belief_ends_with_its_time_and_with_any_sleep(
    monotonic: float, boot: float, awake: float, asleep: float
) -> None:
    since = Moment(monotonic, boot)
    belief = Belief(since, 8.0)

    holds = belief.holds(later(since, awake, asleep))

    if awake < 7.999 and asleep < SLEEP_SECONDS_MIN - 0.001:
        assert holds
    if awake > 8.001 or asleep > SLEEP_SECONDS_MIN + 0.001:
        assert not holds


@given(gap=st.floats(0, 1e4), awake=st.floats(0, 7.9))
def test_what_passes_between_two_readings_of_clocks_is_not_a_sleep(
    gap: float, awake: float
) -> None:
    """A process that gets no time between them: at the begin the monotonic clock is read first,
    later the boot clock is, so that both gaps hide a sleep and never feign one."""
    since = Moment(monotonic=100.0, boot=100.0 + gap)
    seen_late = Moment(monotonic=100.0 + awake + gap, boot=100.0 + awake)

    assert not Belief(since, 1e9).slept(seen_late)


def test_only_an_answer_in_time_to_an_unbroken_row_of_renewals_is_no_lapse() -> None:
    since = Moment(50.0, 70.0)
    before = Belief(since, 8.0)
    in_time, late = later(since, 7.9), later(since, 8.0)

    assert not is_lapse(before, in_time, taken=False, unheard=False)
    assert is_lapse(before, in_time, taken=True, unheard=False), "somebody may have come between"
    assert is_lapse(before, in_time, taken=False, unheard=True), "that one may have taken it"
    assert is_lapse(before, late, taken=False, unheard=False)
    assert is_lapse(before, later(since, 1.0, 5.0), taken=False, unheard=False), "it slept"
    assert is_lapse(None, in_time, taken=False, unheard=False)
