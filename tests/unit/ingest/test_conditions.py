"""Headers that ask for a repeat to be recognised: each has one meaning, or is refused."""

import pytest

from bottomless.errors import Code, InvalidRequest
from bottomless.model.chunk import AppendMode
from bottomless_server.core.principal import Principal
from bottomless_server.core.short_hash import hash_of
from bottomless_server.ingest.front.forms import read_form
from bottomless_server.ingest.records.conditions import (
    NO_CONDITIONS,
    SEQUENCE_MAX,
    Conditions,
    FromProducer,
    WithKey,
    read_conditions,
)
from bottomless_server.runtime.base.principal import note_principal


def conditions(**headers: str) -> Conditions:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_conditions(given.get)


def test_who_asks_for_nothing_gets_the_one_promise_of_nothing() -> None:
    assert conditions() is NO_CONDITIONS
    assert not NO_CONDITIONS.numbered
    assert not NO_CONDITIONS.keyed


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        (
            {"producer_id": "p", "producer_seq": "0"},
            FromProducer("p", 0, AppendMode.STRICT, 0),
        ),
        (
            {"producer_id": "p", "producer_epoch": "3", "producer_seq": str(SEQUENCE_MAX)},
            FromProducer("p", 3, AppendMode.STRICT, SEQUENCE_MAX),
        ),
        (
            {"producer_id": "p", "producer_seq": "7", "producer_start": "any"},
            FromProducer("p", 0, AppendMode.STRICT, 7, start_any=True),
        ),
        ({"producer_id": "p.a-b_c"}, FromProducer("p.a-b_c", 0, AppendMode.HIGHWATER)),
        (
            {"producer_id": "p", "txn_number": "12"},
            FromProducer("p", 0, AppendMode.TRANSACTION, 12),
        ),
        ({"idempotency_key": "a key, (any)"}, WithKey(hash_of(b"a key, (any)"))),
    ],
)
def test_headers_are_read_as_what_they_ask_for(headers: dict[str, str], identity: object) -> None:
    assert conditions(**headers) == Conditions(identity)  # type: ignore[arg-type]
    expected = conditions(**headers, stream_expected_offset="9007199254740992")
    assert (expected.identity, expected.expected_offset) == (identity, SEQUENCE_MAX + 1)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"producer_seq": "0"}, "producer-seq"),
        ({"producer_epoch": "0"}, "producer-epoch"),
        ({"txn_number": "0"}, "txn-number"),
        ({"producer_start": "any"}, "producer-start"),
        ({"producer_id": "p", "producer_start": "any"}, "producer-start"),
        ({"producer_id": "p", "producer_seq": "0", "producer_start": "0"}, "producer-start"),
        ({"producer_id": "p", "producer_seq": "0", "txn_number": "0"}, "txn-number"),
        ({"producer_id": "p", "idempotency_key": "k"}, "idempotency-key"),
        (
            {"producer_id": "p", "producer_seq": "0", "idempotency_key": "k"},
            "idempotency-key",
        ),
        ({"producer_id": ""}, "producer-id"),
        ({"producer_id": "a/b"}, "producer-id"),
        ({"producer_id": "a..b"}, "producer-id"),
        ({"producer_id": "p" * 256}, "producer-id"),
        ({"idempotency_key": ""}, "idempotency-key"),
        ({"idempotency_key": " "}, "idempotency-key"),
        ({"idempotency_key": "k" * 256}, "idempotency-key"),
        ({"idempotency_key": "a\x7f"}, "idempotency-key"),
    ],
)
def test_headers_that_do_not_go_together_are_refused(headers: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        conditions(**headers)
    assert refused.value.code is Code.BAD_HEADER
    assert [fault.header for fault in refused.value.faults] == [named]


@pytest.mark.parametrize(
    "text", ["", " 1", "+1", "-1", "01", "1.0", "1e3", "1_000", "٣", "9007199254740993", "9" * 40]
)
@pytest.mark.parametrize("name", ["producer_seq", "txn_number", "producer_epoch"])
def test_numbers_are_plain_decimal_integers(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        conditions(producer_id="p", **{name: text})
    assert refused.value.code is Code.BAD_HEADER
    assert text not in refused.value.message or len(text) < 3


@pytest.mark.parametrize("text", ["", "-0", "00", "9007199254740993"])
def test_an_expected_offset_is_one_that_a_stream_can_have(text: str) -> None:
    with pytest.raises(InvalidRequest):
        conditions(stream_expected_offset=text)


def test_a_key_is_that_of_its_sender() -> None:
    """What one principal stored is nothing to another who chooses the same key."""

    def sent_by(actor: str) -> object:
        headers = [(b"content-type", b"application/json"), (b"idempotency-key", b"k")]
        scope = {"type": "http", "headers": headers, "query_string": b""}
        note_principal(scope, Principal(tenant="acme", actor=actor))
        return read_form(scope).conditions.identity

    assert sent_by("a") == sent_by("a")
    assert sent_by("a") != sent_by("b")
    assert sent_by("a") != conditions(idempotency_key="k").identity
