"""An older copy of coordination comes back under writers of leaderless streams, in every order of events."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import pytest
from support.guards import remove

from model.put_back_orders import Order, orders, search

EVENTS: Final = os.environ.get("BOTTOMLESS_TEST_PUT_BACK_EVENTS")
"""So many events after the copy came back, in all orders; else one, in some orders."""
EVERY: Final = 13
"""Of the orders of one event; no number of choices is a multiple of it."""


def tried() -> Iterator[Order]:
    return islice(orders(1), 0, None, EVERY) if EVENTS is None else orders(int(EVENTS))


@pytest.mark.timeout(7200 if EVENTS else 300)
def test_no_order_of_events_gives_an_offset_twice_or_moves_what_was_seen() -> None:
    found = search(tried())
    print(f"{found.orders:,} orders")
    assert found.violation is None, f"{found.violation}: {found.order}"
    assert found.orders > 20, "nothing was searched"


async def _nobody(*_: object) -> dict[Any, Any]:
    return {}


def _false(*_: object) -> bool:
    return False


NOTES_OF_OTHERS: Final = "what other writers may know of, in a new run of the store"
RUN_OF_COMMIT: Final = "the run of the store, known before a lost commit is taken for none"
COMES_FIRST: Final = "what may have been seen, committed again before anything else"


@pytest.mark.parametrize(
    ("guard", "variant", "acknowledged", "violation"),
    [
        (NOTES_OF_OTHERS, _nobody, True, "an offset that was acknowledged"),
        (RUN_OF_COMMIT, _false, False, "what readers saw"),
        (COMES_FIRST, _false, False, "what readers saw"),
    ],
    ids=["notes of others", "run of the store", "comes first"],
)
def test_each_guard_that_is_taken_away_is_missed(
    guard: str,
    variant: Callable[..., Any],
    acknowledged: bool,
    violation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, guard, variant)
    # Where a reply is lost too, that is what is seen first.
    found = search(
        one
        for one in orders(1)
        if (one.acknowledged, bool(one.lost)) == (acknowledged, not acknowledged)
    )
    print(f"{found.orders} orders: {found.order}")
    assert violation in str(found.violation)
