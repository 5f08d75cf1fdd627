"""What a connection brings, in any pieces: whole answers in their order, or a refusal."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless.client.answer_parser import HEAD_SIZE_MAX, AnswerParser, NotHttp, TooLong

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRequest-Id: 01A\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;name=x\r\nabc\r\n0a\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\nX: 1\r\nx:  2 \r\n\r\n"
INFORMED = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + PLAIN
ALL = PLAIN + CHUNKED + EMPTY + INFORMED + PLAIN
BODIES = [
    (200, b"hello"),
    (404, b"abc0123456789"),
    (204, b""),
    (200, b"hello"),
    (200, b"hello"),
]


@settings(max_examples=60)
@given(st.lists(st.integers(0, len(ALL)), max_size=20))
def test_answers_are_the_same_in_whatever_pieces_they_come(cuts: list[int]) -> None:
    parser = AnswerParser()
    bounds = [0, *sorted(cuts), len(ALL)]
    answers = [answer for start, end in pairwise(bounds) for answer in parser.feed(ALL[start:end])]
    assert [(answer.status, answer.body) for answer in answers] == BODIES
    assert not parser.begun
    assert not parser.last


def test_headers_are_found_in_upper_and_lower_case_and_repeated_ones_are_joined() -> None:
    (answer,) = AnswerParser().feed(EMPTY)
    assert (answer.headers["X"], answer.headers["x"]) == ("1, 2", "1, 2")
    assert "Request-Id" not in answer.headers
    assert answer.headers.get("Retry-After") is None
    assert len(answer.headers) == 1


@pytest.mark.parametrize(
    ("head", "last"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\nConnection: Close\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", False),
    ],
)
def test_it_says_whether_the_server_closes_after_an_answer(head: bytes, last: bool) -> None:
    parser = AnswerParser()
    assert len(list(parser.feed(head))) == 1
    assert parser.last is last


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = AnswerParser()
    assert list(parser.feed(b"HTTP/1.1 200 OK\r\n\r\nsome")) == []
    assert list(parser.feed(b" more")) == []
    answer = parser.end()
    assert answer is not None
    assert (answer.body, parser.last) == (b"some more", True)


def test_a_body_of_known_length_does_not_end_with_the_connection() -> None:
    parser = AnswerParser()
    assert list(parser.feed(PLAIN[:-1])) == []
    assert (parser.end(), parser.begun) == (None, True)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\0\1\2 garbage",
        b"SSH-2.0-server\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 099 x\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_SIZE_MAX,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * HEAD_SIZE_MAX + b"xx",
    ],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(wrong: bytes) -> None:
    with pytest.raises(NotHttp):
        list(AnswerParser().feed(wrong))


@pytest.mark.parametrize(
    "long",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n5\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n12345678901",
    ],
)
def test_a_body_that_is_longer_than_any_is_refused_before_it_is_held(long: bytes) -> None:
    with pytest.raises(TooLong):
        list(AnswerParser(size_max=10).feed(long))
