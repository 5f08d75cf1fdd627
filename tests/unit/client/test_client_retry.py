from collections.abc import Iterator

import pytest

from bottomless.client.retry import Backoff, jittered, may_repeat, retried
from bottomless.errors import (
    Code,
    InvalidRequest,
    Outcome,
    Overloaded,
    StoreError,
    Unavailable,
    WrongOffset,
)

UNKNOWN = Unavailable("lost", outcome=Outcome.UNKNOWN)
NOTHING_DONE = Overloaded("full")


@pytest.mark.parametrize(
    ("error", "repeatable", "again"),
    [
        (NOTHING_DONE, False, True),
        (NOTHING_DONE, True, True),
        (UNKNOWN, False, False),
        (UNKNOWN, True, True),
        (InvalidRequest("wrong"), True, False),
        (Unavailable("stranger", retryable=False), True, False),
        (WrongOffset("gap", code=Code.PRODUCER_SEQUENCE_GAP, retryable=True), True, False),
    ],
)
def test_a_call_is_repeated_only_where_that_does_nothing_twice(
    error: StoreError, repeatable: bool, again: bool
) -> None:
    assert may_repeat(error, repeatable=repeatable) is again


def test_waits_are_jittered_from_nothing_to_a_bound_that_doubles() -> None:
    for failures, longest in ((0, 0.1), (1, 0.2), (3, 0.8), (50, 5.0)):
        waits = [jittered(failures, None) for _ in range(300)]
        assert 0 <= min(waits) < 0.2 * longest
        assert 0.8 * longest < max(waits) <= longest


def test_the_server_is_never_asked_before_the_time_that_it_named() -> None:
    assert all(2.0 <= jittered(0, 2.0) <= 2.1 for _ in range(100))


def test_no_wait_ends_after_the_deadline() -> None:
    now = [0.0]
    backoff = Backoff(10, clock=lambda: now[0])
    assert backoff.after(Overloaded("full", retry_after_seconds=9)) is not None
    now[0] = 2.0
    assert backoff.after(Overloaded("full", retry_after_seconds=9)) is None


@pytest.mark.parametrize("first", [Outcome.UNKNOWN, Outcome.COMMITTED])
async def test_a_doubt_about_one_attempt_stays_when_the_last_one_did_nothing(
    first: Outcome,
) -> None:
    errors: Iterator[StoreError] = iter(
        [Unavailable("lost", outcome=first), InvalidRequest("wrong")]
    )

    async def call() -> None:
        raise next(errors)

    with pytest.raises(InvalidRequest) as caught:
        await retried(call, 60, repeatable=True)
    assert caught.value.outcome is Outcome.UNKNOWN
