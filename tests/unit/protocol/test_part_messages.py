"""What nodes say to each other of parts of requests comes back as it was, and nonsense is a fault."""

from typing import Any

import pytest
from pydantic import ValidationError

from bottomless.errors import Code, InvalidRequest, Unavailable
from bottomless_server.protocol.parts import (
    PART_QUERY,
    LayoutTold,
    PartAsked,
    PartSaid,
    StepAsked,
    StepBody,
    StepSaid,
    decode_part,
    decode_part_asked,
    decode_step_said,
    encode_layout,
    encode_part,
    encode_step,
    encode_step_said,
)
from unit.protocol.wire import received, sent

PART = PartSaid(7, 9, 1_000, 2, 0, False)
FORGOTTEN = PartSaid(None, 9, None, 0, 2, True)
ASKED = StepAsked("raise-parts", "p", 3, 10, 19, 77, True, [1, 2], 9, 2)
SAID = StepSaid("go-on", 3, 9, 1_000, PART, ((1, 9), (2, 19)))


def test_a_part_is_asked_for_by_its_query() -> None:
    for asked in (PartAsked(2), PartAsked(2, 1, "p", 3, 10, 19, 2**32 - 1)):
        query = {name: PART_QUERY[name](str(value)) for name, value in asked.params().items()}
        assert decode_part_asked(query) == asked
    with pytest.raises(InvalidRequest):
        decode_part_asked({})


def test_what_is_said_of_parts_and_steps_comes_back() -> None:
    for part in (PART, FORGOTTEN):
        assert decode_part(received(sent(encode_part(part)))) == part
    for said in (SAID, StepSaid()):
        assert decode_step_said(received(sent(encode_step_said(said)))) == said
    body = StepBody.model_validate(received(sent(encode_step(ASKED))))
    assert body.asked() == ASKED
    assert LayoutTold.model_validate(received(sent(encode_layout(4)))).layout == 4


def test_a_step_of_a_name_that_is_none_is_refused() -> None:
    for name in ("part.1:p", ""):
        body = StepBody.model_validate(encode_step(ASKED._replace(producer_id=name)))
        with pytest.raises(InvalidRequest):
            body.asked()
    for change in ({"step": "later"}, {"epoch": -1}, {"body_crc": 2**32}, {"more": 1}):
        with pytest.raises(ValidationError):
            StepBody.model_validate({**encode_step(ASKED), **change})


@pytest.mark.parametrize(
    "change", [{"replayed": 1}, {"next_offset": None}, {"record_count": "2"}, {"first_offset": 1.0}]
)
def test_nonsense_of_a_part_is_the_fault_of_who_says_it(change: dict[str, Any]) -> None:
    for decode, said in (
        (decode_part, {**encode_part(PART), **change}),
        (decode_step_said, {**encode_step_said(SAID), "part": {**encode_part(PART), **change}}),
    ):
        with pytest.raises(Unavailable) as raised:
            decode(said)
        assert raised.value.code is Code.PEER_UNAVAILABLE


@pytest.mark.parametrize("change", [{"state": "later"}, {"last": True}, {"parts": [[1]]}])
def test_nonsense_of_a_step_is_too(change: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        decode_step_said({**encode_step_said(SAID), **change})
