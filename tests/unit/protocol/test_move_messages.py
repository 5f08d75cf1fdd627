"""What uploaders and manifest say of moves, back to the same values, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.asgi import scope_of

from bottomless.errors import InvalidRequest, Unavailable
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.names import StreamId, Uid
from bottomless.model.tiers import COPY_MAX, Move
from bottomless_server.protocol.moves import (
    MOVES_QUERY,
    ClaimAsked,
    FinishAsked,
    GiveUpAsked,
    MoveClaimed,
    MoveFound,
    MovesAsked,
    decode_claimed,
    decode_found,
    encode_claim,
    encode_claimed,
    encode_finish,
    encode_found,
    encode_give_up,
)
from bottomless_server.runtime.http.queries import parse_query

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")

offsets = st.integers(0, OFFSET_MAX)
numbers = st.integers(0, 2**32)
copies = st.integers(1, COPY_MAX)
drives = st.integers(0, 254)
moves = st.builds(Move, copies, offsets, offsets, drives, drives, st.text(min_size=1), numbers)
infos = st.builds(
    lambda uid, parts, drive, copy: FragmentInfo(Uid(uid.hex()), *parts)._replace(
        drive=drive, copy=copy
    ),
    st.binary(min_size=16, max_size=16),
    st.tuples(*[numbers] * 9),
    drives,
    st.just(0) | copies,
)


@given(move=moves, fragments=st.lists(infos, max_size=3))
def test_a_claim_is_told_whole(move: Move, fragments: list[FragmentInfo]) -> None:
    said = encode_claimed("acme", move, fragments)
    assert decode_claimed(said) == MoveClaimed("acme", move, tuple(fragments))


@given(copy=copies, session=st.text(min_size=1, max_size=128))
def test_the_number_of_a_move_survives_what_json_does_to_numbers(copy: int, session: str) -> None:
    asked = ClaimAsked.model_validate(encode_claim(session, copy))
    assert (asked.session, int(asked.move, 16)) == (session, copy)
    uids = [Uid("0f" * 16)]
    done = FinishAsked.model_validate(encode_finish(session, copy, uids))
    assert (done.session, int(done.move, 16), done.uids) == (session, copy, uids)
    assert int(GiveUpAsked.model_validate(encode_give_up(copy)).move, 16) == copy
    found = (MoveFound(STREAM, copy, (0, 7)),)
    assert decode_found(encode_found(found, STREAM)) == (found, STREAM)
    assert decode_found(encode_found((), None)) == ((), None)


def test_a_step_of_the_walk_is_asked_for_by_a_query() -> None:
    assert MovesAsked("m1", STREAM).params() == {"session": "m1", "after": STREAM}
    assert MovesAsked("m1").params() == {"session": "m1"}
    asked = parse_query(scope_of(query=f"session=m1&after={STREAM}"), MOVES_QUERY)
    assert MovesAsked(**asked) == ("m1", STREAM)
    for query in ("session=", f"session={'m' * 129}", "after=x", "of=m1"):
        with pytest.raises(InvalidRequest):
            parse_query(scope_of(query=query), MOVES_QUERY)


@pytest.mark.parametrize("body", [{}, {"items": [{}], "after": None}, {"items": [], "after": 1}])
def test_an_answer_of_another_version_is_a_fault_of_manifest(body: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        decode_found(body)
    with pytest.raises(Unavailable):
        decode_claimed(body)


@pytest.mark.parametrize("move", ["", "1", "F" * 16, "0" * 17, 1])
def test_a_number_of_another_form_is_refused(move: Any) -> None:
    with pytest.raises(ValidationError):
        ClaimAsked.model_validate({"session": "m1", "move": move})
