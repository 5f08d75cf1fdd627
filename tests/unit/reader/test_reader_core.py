"""The reader's small decisions: windows, ranges, tokens, starts."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.reader.harness import Sent, a_chunk
from unit.reader.protocol import STREAM_ID

from bottomless.errors import InvalidRequest, OffsetGone
from bottomless.formats.fragment import FragmentIndex, decode_index, pack_fragment
from bottomless.model.names import Uid
from bottomless.model.offset_spec import At, First, Since, Tail
from bottomless_server.reader.core.byte_range import (
    ByteRange,
    NotSatisfiable,
    choose_range,
    etag_matches,
)
from bottomless_server.reader.core.locator import (
    Start,
    above_floor,
    below_end,
    chunks_wanted,
    since_clamped,
)
from bottomless_server.reader.core.page_token import PageToken, decode_token, encode_token
from bottomless_server.reader.core.rendering import timestamp_text
from bottomless_server.reader.core.window import Window


@dataclass(frozen=True)
class Piece:
    size: int


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(0, 50))
def test_a_window_gives_everything_in_order_and_holds_its_budget(
    sizes: list[int], budget: int
) -> None:
    pieces = [Piece(size) for size in sizes]
    window, given_out, in_flight = Window(pieces, budget), [], 0
    while True:
        started = window.start()
        given_out += started
        in_flight += len(started)
        assert window.held <= max(budget, *sizes, 0)
        if not in_flight:
            break
        window.consumed()
        in_flight -= 1

    assert given_out == pieces
    assert window.held == 0


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=5-", ByteRange(5, 5)),
        ("bytes=-3", ByteRange(7, 3)),
        ("bytes=-30", ByteRange(0, 10)),
        ("bytes=9-100", ByteRange(9, 1)),
        ("Bytes = 1 - 2", ByteRange(1, 2)),
        ("bytes=10-", NotSatisfiable()),
        ("bytes=10-20", NotSatisfiable()),
        ("bytes=-0", NotSatisfiable()),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("bytes=a-b", None),
        ("items=0-1", None),
        ("bytes=0-99999999999999999999999", None),
    ],
)
def test_ranges(header: str | None, chosen: ByteRange | NotSatisfiable | None) -> None:
    assert choose_range(header, 10) == chosen
    assert type(choose_range(header, 10)) is type(chosen)


def test_tags_match_as_the_rfc_says() -> None:
    assert etag_matches('"x", W/"a"', '"a"', weak=True)
    assert etag_matches("*", '"a"', weak=True)
    assert not etag_matches('"b"', '"a"', weak=True)
    assert not etag_matches(None, '"a"', weak=True)
    assert not etag_matches('W/"a"', '"a"', weak=False)


SECRET = b"s" * 32
TOKEN = PageToken(STREAM_ID, 100, 30)


def signed_token() -> str:
    """As a release made it whose tokens were signed, and could be read."""
    body = orjson.dumps([*TOKEN])
    signature = hmac.new(SECRET, b"acme\0" + body, hashlib.sha256).digest()[:16]
    return urlsafe_b64encode(signature + body).decode("ascii").rstrip("=")


def test_tokens_come_back() -> None:
    assert decode_token(encode_token(TOKEN, "acme", SECRET), "acme", SECRET) == TOKEN


@pytest.mark.parametrize("tenant", ["acm", "acme2", "default"])
def test_a_token_of_another_tenant_is_not_taken(tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_token(encode_token(TOKEN, "acme", SECRET), tenant, SECRET)


@given(st.data())
def test_no_changed_token_is_taken(data: st.DataObject) -> None:
    token = encode_token(TOKEN, "acme", SECRET)
    place = data.draw(st.integers(0, len(token) - 2))
    letter = data.draw(st.sampled_from("ABCxyz019-_é ="))
    changed = token[:place] + letter + token[place + 1 :]
    if changed == token:
        return
    with pytest.raises(InvalidRequest):
        decode_token(changed, "acme", SECRET)


@pytest.mark.parametrize(
    "text", ["", "A", "é", "AAAA", "A" * 40, encode_token(TOKEN, "acme", b"o" * 32), signed_token()]
)
def test_no_made_up_token_is_taken(text: str) -> None:
    """Nor one of the release whose tokens were signed: it is told to begin the list anew."""
    with pytest.raises(InvalidRequest, match="begin the list anew") as caught:
        decode_token(text, "acme", SECRET)
    assert [fault.parameter for fault in caught.value.faults] == ["page_token"]


def test_a_token_says_nothing_to_its_holder() -> None:
    token = encode_token(TOKEN, "acme", SECRET)
    assert STREAM_ID.encode() not in urlsafe_b64decode(token + "=" * (-len(token) % 4))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_start_always_lands_in_the_stream(wanted: int, floor: int, count: int) -> None:
    end = floor + count
    start = above_floor(At(wanted), wanted, floor, end, strict=False)
    start = below_end(At(wanted), start, floor, end, strict=False)

    assert floor <= start.offset <= end
    assert (start.clamped is None) == (start.offset == wanted)


def test_only_numbers_are_out_of_range() -> None:
    assert above_floor(Tail(9), -4, 0, 5, strict=True) == Start(0, "low")
    assert above_floor(First(), 3, 3, 5, strict=True) == Start(3)
    with pytest.raises(OffsetGone) as low:
        above_floor(At(1), 1, 3, 5, strict=True)
    with pytest.raises(OffsetGone) as high:
        below_end(At(6), Start(6), 3, 5, strict=True)

    bounds = {"first_offset": 3, "next_offset": 5}
    assert (low.value.facts, high.value.facts) == (bounds, bounds)


def test_a_time_before_the_first_record_is_clamped_low() -> None:
    assert since_clamped(Since(9), Start(3), 3, 10) == Start(3, "low")
    assert since_clamped(Since(10), Start(3), 3, 10) == Start(3)
    assert since_clamped(Since(9), Start(4), 3, 10) == Start(4)
    assert since_clamped(At(3), Start(3), 3, 10) == Start(3)


def an_index(chunk_count: int) -> FragmentIndex:
    chunks = [a_chunk(10 * n, [Sent(b"x" * 50)] * 10, timestamp=n) for n in range(chunk_count)]
    packed = pack_fragment(STREAM_ID, Uid("a" * 32), [chunk.data for chunk in chunks])
    whole = b"".join(packed.parts)
    return decode_index(whole[packed.info.index_position :])


def test_chunks_are_wanted_by_size_and_end() -> None:
    index = an_index(8)
    size = index.place(0).size

    assert chunks_wanted(index, 35, 1, 1_000) == range(3, 4)
    assert chunks_wanted(index, 35, size + 1, 1_000) == range(3, 5)
    assert chunks_wanted(index, 35, 2**40, 1_000) == range(3, 8)
    assert chunks_wanted(index, 35, 2**40, 60) == range(3, 6)
    assert chunks_wanted(index, 35, 2**40, 61) == range(3, 7)
    assert chunks_wanted(index, 35, 1, 0) == range(3, 4)


def test_times_beyond_four_digit_years_are_numbers() -> None:
    assert timestamp_text(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp_text(2**60) == 2**60
