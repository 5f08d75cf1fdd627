"""Erlang terms: what is written so is read, and what no message holds, or what is hostile, is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.erlang_terms import as_term

from bottomless.errors import Corrupt
from bottomless.formats.erlang_term import DEPTH_MAX, Atom, Pairs, Term, decode_term

terms: st.SearchStrategy[Term] = st.recursive(
    st.integers(-(2**400), 2**400)
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=9)
    | st.builds(Atom, st.text("aé_Z", max_size=9)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(st.tuples(inner, inner), max_size=3).map(tuple).map(Pairs)
    ),
    max_leaves=12,
)
A_MESSAGE: Term = (
    Atom("basic_message"),
    (Atom("resource"), b"/", Atom("exchange"), b""),
    [b"jobs"],
    (
        Atom("content"),
        60,
        Atom("none"),
        b"\x10\x00\x02",
        Atom("rabbit_framing_amqp_0_9_1"),
        [b"second", b"first "],
    ),
    bytes(16),
    Atom("true"),
)


@given(term=terms)
def test_a_term_is_read_as_it_was_written(term: Term) -> None:
    assert decode_term(as_term(term)) == term


def test_a_message_of_a_broker_is_read() -> None:
    assert decode_term(as_term(A_MESSAGE)) == A_MESSAGE


@pytest.mark.parametrize(
    ("raw", "term"),
    [
        (b"\x83d\x00\x02\xe9a", Atom("éa")),
        (b"\x83s\x01\xe9", Atom("é")),
        (b"\x83v\x00\x02\xc3\xa9", Atom("é")),
        (b"\x83i\x00\x00\x00\x01a\x07", (7,)),
        (b"\x83o\x00\x00\x00\x01\x01\x05", -5),
        (b"\x83c" + b"1.50000000000000000000e+00".ljust(31, b"\0"), 1.5),
        (b"\x83l\x00\x00\x00\x01a\x01j", [1]),
        (b"\x83k\x00\x02\x01\xff", [1, 255]),
    ],
)
def test_older_forms_are_read_too(raw: bytes, term: Term) -> None:
    assert decode_term(raw) == term


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "1 bytes are said to follow, and 0 do"),
        (b"\x82a\x01", "version 130 is not known"),
        (b"\x83a\x01\x00", "1 bytes follow it"),
        (b"\x83P\x00\x00\x00\x01x", "tag 80"),
        (b"\x83g", "tag 103"),
        (b"\x83l\x00\x00\x00\x01a\x01a\x02", "does not end as one"),
        (b"\x83l\xff\xff\xff\xff", "4294967295 terms are said to follow in 0 bytes"),
        (b"\x83t\xff\xff\xff\xff", "terms are said to follow"),
        (b"\x83m\xff\xff\xff\xff", "4294967295 bytes are said to follow"),
        (b"\x83n\x01\x02\x05", "the sign 2"),
        (b"\x83o\x00\x00\x00\x41\x00" + bytes(65), "an integer has 65 bytes"),
        (b"\x83F" + struct.pack(">d", float("nan")), "no number"),
        (b"\x83c" + b"inf".ljust(31, b"\0"), "no number"),
        (b"\x83c" + b"one".ljust(31, b"\0"), "no number"),
        (b"\x83w\x01\xff", "not UTF-8"),
        (b"\x83" + b"h\x01" * (DEPTH_MAX + 1) + b"j", "nested more than 64 deep"),
    ],
)
def test_what_no_message_holds_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_term(raw)


def test_a_term_that_is_cut_anywhere_is_refused() -> None:
    raw = as_term(A_MESSAGE)
    for end in range(len(raw)):
        with pytest.raises(Corrupt):
            decode_term(raw[:end])
