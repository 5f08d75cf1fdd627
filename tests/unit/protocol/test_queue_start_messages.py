"""What a node of queues asks for at its start, and what manifest says, come back as they were."""

from typing import Any

import pytest
from pydantic import ValidationError

from bottomless.errors import InvalidRequest, Unavailable
from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.protocol.queue_starts import (
    StartAskedBody,
    StartSaid,
    decode_start_said,
    encode_start_asked,
    encode_start_said,
    start_node_in,
    start_path,
)
from unit.protocol.wire import received, sent

NODE = NodeId("a" * 32)
START = QueueStart(NODE, 3, "1" * 32, "2" * 32, "a:1", 1_000)
ASKED = encode_start_asked(START, ["3" * 32], accept_loss=False, only_look=True)


@pytest.mark.parametrize(
    ("start", "said"), [(START, StartSaid(3, "1" * 32)), (None, StartSaid(None, None))]
)
def test_a_start_comes_back_as_it_was_said(start: QueueStart | None, said: StartSaid) -> None:
    assert decode_start_said(received(sent(encode_start_said(start)))) == said


def test_what_a_node_asks_for_comes_back_as_it_was() -> None:
    body = StartAskedBody.model_validate(received(sent(ASKED)))
    assert (body.token, body.lock, body.url, body.started_at) == ("1" * 32, "2" * 32, "a:1", 1_000)
    assert (body.known, body.accept_loss, body.only_look) == (["3" * 32], False, True)


@pytest.mark.parametrize(
    "change", [{"token": "x"}, {"url": ""}, {"known": ["1" * 32] * 5}, {"started_at": -1}]
)
def test_a_question_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StartAskedBody.model_validate({**ASKED, **change})


@pytest.mark.parametrize("body", [None, [], {}, {"number": "1", "token": None}])
def test_nonsense_is_manifests_fault(body: Any) -> None:
    with pytest.raises(Unavailable):
        decode_start_said(body)


def test_paths_say_whose_start_is_asked_for() -> None:
    assert start_path(NODE) == f"/internal/v1/queue-starts/{NODE}"
    assert start_node_in({"node_id": NODE}) == NODE
    with pytest.raises(InvalidRequest):
        start_node_in({"node_id": "x"})
