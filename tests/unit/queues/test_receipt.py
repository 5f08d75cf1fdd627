"""Receipts: opaque, one text each, and good for one delivery of one item of one ledger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless_server.queues.core import receipt as receipts
from bottomless_server.queues.core.receipt import (
    RECEIPT_SIZE,
    Receipt,
    There,
    Verdict,
    judged,
    read_receipt,
    write_receipt,
)

STORE_ID = bytes(range(16))
MSG_ID = bytes(range(16, 32))
GIVEN = Receipt(STORE_ID[:4], inside=5, sequence=41, deliveries=2, message=MSG_ID[-6:])
numbers = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        Receipt,
        st.binary(min_size=4, max_size=4),
        numbers,
        numbers,
        st.integers(1, 2**32 - 1),
        st.binary(min_size=6, max_size=6),
    )
)
def test_a_receipt_is_read_as_it_was_written(receipt: Receipt) -> None:
    text = write_receipt(receipt)
    assert len(text) == RECEIPT_SIZE
    assert read_receipt(text) == receipt


@given(st.text("AQab_-=/+\né", max_size=50) | st.text("AQ_-=", min_size=40, max_size=40))
def test_any_text_is_a_receipt_that_is_written_so_or_none(text: str) -> None:
    receipt = read_receipt(text)
    assert receipt is None or write_receipt(receipt) == text


@pytest.mark.parametrize(
    "wrong",
    [
        GIVEN._replace(deliveries=0),
        GIVEN._replace(inside=2**63),
        GIVEN._replace(sequence=2**64 - 1),
    ],
)
def test_numbers_that_no_ledger_has_are_no_receipt(wrong: Receipt) -> None:
    assert read_receipt(write_receipt(wrong)) is None


@pytest.mark.parametrize(
    ("receipt", "deliveries", "verdict"),
    [
        (GIVEN, 2, Verdict.GOOD),
        (GIVEN, 3, Verdict.STALE),
        (GIVEN, None, Verdict.GONE),
        (GIVEN._replace(deliveries=3), 2, Verdict.GONE),
        (GIVEN._replace(inside=6), 2, Verdict.GONE),
        (GIVEN._replace(store=b"else"), 2, Verdict.STALE),
        (GIVEN._replace(store=b"else"), None, Verdict.STALE),
        (GIVEN._replace(message=b"others"), 2, Verdict.STALE),
        (GIVEN._replace(message=b"others", deliveries=3), 2, Verdict.STALE),
    ],
)
def test_a_receipt_is_good_until_its_item_is_delivered_again_or_gone(
    receipt: Receipt, deliveries: int | None, verdict: Verdict
) -> None:
    there = None if deliveries is None else There(deliveries, MSG_ID)
    assert judged(receipt, STORE_ID, 5, there) is verdict


def test_without_the_store_in_it_a_receipt_would_acknowledge_what_has_its_numbers_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert receipts.is_of_store(GIVEN, STORE_ID)
    of_the_ledger_before = GIVEN._replace(store=b"else")
    assert judged(of_the_ledger_before, STORE_ID, 5, There(2, MSG_ID)) is Verdict.STALE
    remove(monkeypatch, "the store in a receipt", lambda *_: True)
    assert judged(of_the_ledger_before, STORE_ID, 5, There(2, MSG_ID)) is Verdict.GOOD
